"""Commands that failed for good: found, put back in order, dropped; on a real server, with real workers."""

import zlib
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from redis import Redis

from feedback import FeedbackClient, LogCorrupt, Ok, keys
from feedback.calls import wall_clock_ms
from feedback.errors import CommandUnknown, InvalidRequest
from feedback.partitions import PartitionId, Topology
from feedback.settings import Settings
from feedback.wire import encode_job
from persistence.sidecar import open_store
from tests.harness import serving, settings_for, wait_until, write_session
from tests.integration.rq_jobs import damaged_log, events_of, fetch, partition_of, put_command, request_of, set_up
from worker import topology as topologies
from worker.dead_letters import DeadLetters, Retried
from worker.letters import MAX_TRACEBACK_CHARS, DeadLetter, Filter, Place, choose_for_drop, choose_for_retry

pytestmark = pytest.mark.server

SESSIONS = ("s-one", "s-two")
MESSAGES = tuple(f"m{number}" for number in range(20))


@pytest.fixture
def settings(valkey_url: str, redis_client: Redis, tmp_path: Path) -> Settings:
    """A system with two Sessions; nobody serves it yet."""
    settings = settings_for(valkey_url, tmp_path, lease_ttl=1.0)
    for session_id in SESSIONS:
        write_session(settings, session_id, *MESSAGES)
    set_up(redis_client, settings)
    return settings


@pytest.fixture
def client(settings: Settings) -> Iterator[FeedbackClient]:
    with FeedbackClient.from_url(settings.redis_url) as client:
        yield client


@pytest.fixture
def dead(redis_client: Redis, settings: Settings) -> DeadLetters:
    return DeadLetters(redis_client)


def fail(settings: Settings, client: FeedbackClient, session_id: str, *message_ids: str) -> list[str]:
    """Puts that failed together on a corrupt log, which is mended by now; their ids, in the order of submission."""
    commands = [put_command(session_id, message_id) for message_id in message_ids]
    with damaged_log(settings, session_id), serving(settings, projector=False):
        for ticket in client.submit_many([request_of(command) for command in commands]):
            with pytest.raises(LogCorrupt):
                ticket.result()
    return [command.command_id for command in commands]


def retry(dead: DeadLetters, **rule: str) -> Retried:
    rules = Filter(**rule)
    return dead.retry(choose_for_retry(filter(rules.matches, dead.letters()), wall_clock_ms()).chosen)


def waiting(redis: Redis, partition: PartitionId) -> list[str]:
    queue: list[bytes] = redis.execute_command("LRANGE", keys.queue(partition), 0, -1)
    return [job_id.decode() for job_id in queue]


def listed(dead: DeadLetters) -> list[str]:
    return [letter.job_id for letter in dead.letters()]


def failed_job(redis: Redis, partition: PartitionId, job_id: str, score: float, **fields: bytes | str) -> None:
    """An entry and its job, as anybody could write them."""
    if fields:
        redis.hset(keys.job(job_id), items=["status", "failed", *(part for pair in fields.items() for part in pair)])
    redis.zadd(keys.failed_registry(partition), {job_id: score})


def test_a_letter_says_what_failed_and_why(settings: Settings, client: FeedbackClient, dead: DeadLetters) -> None:
    before = wall_clock_ms()
    (command_id,) = fail(settings, client, "s-one", "m1")
    (letter,) = dead.letters()
    assert letter.command is not None
    assert (letter.job_id, letter.command.session_id, letter.command.message_id) == (command_id, "s-one", "m1")
    assert letter.failure.code == "LogCorrupt"
    assert "s-one" in letter.failure.message
    assert letter.failures == 1
    assert letter.enqueued_at is not None
    assert letter.failed_at is not None
    assert before <= letter.enqueued_at <= letter.failed_at <= wall_clock_ms()
    assert letter.place.partition == partition_of(settings, "s-one")
    assert "LogCorrupt" in (dead.traceback(letter) or "")
    assert dead.find([b"unknown", command_id.encode()]) == [letter]


def test_commands_that_failed_in_one_batch_are_applied_in_the_order_in_which_they_were_sent(
    settings: Settings, client: FeedbackClient, dead: DeadLetters, redis_client: Redis
) -> None:
    """They bear one time, one score, and ids in no order; and so again when they failed a second time, each alone."""
    ids = fail(settings, client, "s-one", *MESSAGES)
    others = fail(settings, client, "s-two", "m1", "m2")
    with damaged_log(settings, "s-one"), serving(settings, projector=False):
        for command_id in reversed(ids):
            dead.retry(choose_for_retry(dead.find([command_id.encode()]), wall_clock_ms()).chosen)
            with pytest.raises(LogCorrupt):
                client.result_of(command_id)
    assert retry(dead, session_id="s-one") == Retried(len(ids), 0, 0)
    assert waiting(redis_client, partition_of(settings, "s-one")) == ids
    assert sorted(listed(dead)) == sorted(others)
    assert retry(dead, code="LogCorrupt") == Retried(2, 0, 0)
    assert retry(dead) == Retried(0, 0, 0), "twice is once"
    with serving(settings, projector=False):
        for command_id in ids + others:
            assert client.result_of(command_id).ok
    events = events_of(redis_client, partition_of(settings, "s-one"))
    assert [(event.command_id, event.revision) for event in events if event.session_id == "s-one"] == [
        (command_id, place) for place, command_id in enumerate(ids, start=1)
    ]
    assert listed(dead) == []


def test_what_failed_under_rqs_own_worker_goes_back_in_the_order_of_failing(
    settings: Settings, dead: DeadLetters, redis_client: Redis
) -> None:
    """RQ notes no more than a time, and no reason where a work horse died. Failing again, they keep their order."""
    partition, commands = partition_of(settings, "s-one"), [put_command("s-one", message) for message in MESSAGES[:5]]
    for place, command in reversed(list(enumerate(commands))):
        ended_at = f"2026-01-01T00:00:00.00000{place}Z"
        failed_job(redis_client, partition, command.command_id, 2e10, data=encode_job(command), ended_at=ended_at)
    assert {letter.failure.code for letter in dead.letters()} == {"CommandFailed"}
    for second in range(2):
        assert retry(dead).retried == 5
        assert waiting(redis_client, partition) == [command.command_id for command in commands]
        redis_client.delete(keys.queue(partition))
        for place, command in enumerate(commands):
            ended_at = f"2026-01-0{2 + second}T00:00:00.00000{9 - place}Z"
            failed_job(redis_client, partition, command.command_id, 2e10, ended_at=ended_at)


def test_who_waits_gets_the_new_answer_and_an_idle_worker_takes_it(
    settings: Settings, client: FeedbackClient, dead: DeadLetters, redis_client: Redis
) -> None:
    (command_id,) = fail(settings, client, "s-one", "m1")
    with serving(settings, projector=False):
        assert retry(dead).retried == 1
        assert client.result_of(command_id).revision == 1
    assert fetch(redis_client, command_id).origin == keys.queue_name(partition_of(settings, "s-one"))


def test_the_owner_of_an_empty_queue_is_rung(
    settings: Settings, client: FeedbackClient, dead: DeadLetters, redis_client: Redis
) -> None:
    """Once, whatever stood in the queue's place; and what waits lives until it is served, as when it was enqueued."""
    ids = fail(settings, client, "s-one", "m1", "m2")
    partition = partition_of(settings, "s-one")
    redis_client.set(keys.queue(partition), "in the way")
    redis_client.hset(keys.owners(1), str(partition.number), "w")
    retry(dead)
    assert redis_client.lrange(keys.wake("w"), 0, -1) == [str(partition.number).encode()]
    assert [redis_client.ttl(keys.job(command_id)) for command_id in ids] == [-1, -1]


def test_two_operators_at_once_put_each_command_back_once(
    settings: Settings, client: FeedbackClient, dead: DeadLetters, redis_client: Redis
) -> None:
    """Also when it has failed again before the second one's turn comes."""
    ids = fail(settings, client, "s-one", "m1", "m2")
    first, second = (choose_for_retry(dead.letters(), wall_clock_ms()).chosen for _ in range(2))
    assert dead.retry(first) == Retried(2, 0, 0)
    assert dead.retry(second) == Retried(0, 2, 0)
    assert waiting(redis_client, partition_of(settings, "s-one")) == ids
    with damaged_log(settings, "s-one"), serving(settings, projector=False):
        wait_until(lambda: len(listed(dead)) == 2, "failed again")
    assert dead.retry(second) == Retried(0, 2, 0)
    assert dead.drop(second) == 0, "what was asked for is not this failure"
    assert sorted(listed(dead)) == sorted(ids)
    assert [letter.failures for letter in dead.letters()] == [2, 2]


def test_a_command_goes_where_its_session_is_served_now(
    settings: Settings, client: FeedbackClient, dead: DeadLetters, redis_client: Redis
) -> None:
    ids = fail(settings, client, "s-one", "m1", "m2")
    with closing(open_store(settings.sidecar_url)) as store:
        topologies.change(redis_client, store, 7)
    assert sorted(listed(dead)) == sorted(ids), "failures of the former generation are found"
    place = Topology(generation=2, partitions=7, max_note_bytes=1).partition_of("s-one")
    assert retry(dead).retried == 2
    assert waiting(redis_client, place) == ids
    assert fetch(redis_client, ids[0]).origin == keys.queue_name(place)


def test_a_change_of_partitions_meanwhile_is_noticed(
    settings: Settings, client: FeedbackClient, dead: DeadLetters, redis_client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is put where nobody serves it."""
    ids = fail(settings, client, "s-one", "m1")
    chosen = choose_for_retry(dead.letters(), wall_clock_ms()).chosen
    current, known = dead._known_topology(), [Topology(generation=9, partitions=4, max_note_bytes=1)]
    monkeypatch.setattr(dead, "_known_topology", lambda: known.pop() if known else current)
    assert dead.retry(chosen).retried == 1
    assert known == []
    assert waiting(redis_client, partition_of(settings, "s-one")) == ids


def test_a_full_queue_takes_the_first_and_the_rest_stay_failed(
    settings: Settings, client: FeedbackClient, redis_client: Redis
) -> None:
    ids = fail(settings, client, "s-one", *MESSAGES[:5])
    dead = DeadLetters(redis_client, max_queued=2)
    assert retry(dead) == Retried(2, 0, 3)
    assert waiting(redis_client, partition_of(settings, "s-one")) == ids[:2]
    assert sorted(listed(dead)) == sorted(ids[2:])


def test_an_expired_command_is_left(settings: Settings, client: FeedbackClient, dead: DeadLetters) -> None:
    fail(settings, client, "s-one", "m1")
    (letter,) = dead.letters()
    assert letter.command is not None
    choice = choose_for_retry([letter], letter.command.expires_at + 1)
    assert (choice.chosen, choice.expired, choice.foreign) == ([], 1, 0)


def test_a_dropped_command_is_unknown_and_its_id_free(
    settings: Settings, client: FeedbackClient, dead: DeadLetters, redis_client: Redis
) -> None:
    command = put_command("s-one", "m1")
    with damaged_log(settings, "s-one"), serving(settings), pytest.raises(LogCorrupt):
        client.submit(request_of(command)).result()
    chosen = choose_for_drop(dead.letters())
    assert (dead.drop(chosen), dead.drop(chosen)) == (1, 0)
    assert not redis_client.exists(keys.job(command.command_id), keys.results(command.command_id))
    with serving(settings):
        with pytest.raises(CommandUnknown):
            client.result_of(command.command_id)
        assert isinstance(client.submit(request_of(command)).result(), Ok)


def test_what_waits_again_is_no_dead_letter(
    settings: Settings, client: FeedbackClient, dead: DeadLetters, redis_client: Redis
) -> None:
    """RQ's own enqueueing of an id leaves the registry's entry there; the command must not be dropped with it."""
    (command_id,) = fail(settings, client, "s-one", "m1")
    chosen = choose_for_drop(dead.letters())
    redis_client.hset(keys.job(command_id), "status", "queued")
    assert listed(dead) == []
    assert dead.drop(chosen) == 0
    assert redis_client.exists(keys.job(command_id))


FOREIGN: dict[str, dict[str, bytes | str]] = {
    "another function": {"data": b"\x94\xa9os.system\xc0\x91\xa61 + 1;\x80"},
    "no msgpack": {"data": b"\xc1", "failure": b"\xc1"},
    "no data": {"data": b""},
    "too large": {"data": bytes(2**21 + 1)},
    "a bomb": {"data": zlib.compress(bytes(2**24))},
    "another's id": {"data": encode_job(put_command("s-one", "m1"))},
    "large fields": {"data": b"x", "ended_at": "9" * 2**17, "failure": bytes(2**17), "created_at": "yesterday"},
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_a_foreign_job_is_shown_and_dropped_and_never_retried(
    settings: Settings, dead: DeadLetters, redis_client: Redis, kind: str
) -> None:
    failed_job(redis_client, partition_of(settings, "s-one"), "some-id", 2e10, **FOREIGN[kind])
    (letter,) = dead.letters()
    assert (letter.job_id, letter.command) == ("some-id", None)
    assert letter.problem
    assert letter.failure.code == "CommandFailed"
    choice = choose_for_retry([letter], wall_clock_ms())
    assert (choice.chosen, choice.foreign) == ([], 1)
    assert dead.drop(choose_for_drop([letter])) == 1
    assert not redis_client.exists(keys.job("some-id"), keys.failed_registry(partition_of(settings, "s-one")))


def make_string(redis: Redis, job_id: str) -> None:
    redis.set(keys.job(job_id), "x")


def make_nothing(redis: Redis, job_id: str) -> None:
    redis.delete(keys.job(job_id))


@pytest.mark.parametrize("make", [make_string, make_nothing])
def test_an_entry_without_a_job_can_be_dropped(
    settings: Settings, dead: DeadLetters, redis_client: Redis, make: Callable[[Redis, str], None]
) -> None:
    make(redis_client, "odd")
    failed_job(redis_client, partition_of(settings, "s-one"), "odd", 2e10)
    (letter,) = dead.find([b"odd"])
    assert letter.problem
    assert dead.drop(choose_for_drop(dead.letters())) == 1
    assert not redis_client.exists(keys.job("odd"), keys.failed_registry(partition_of(settings, "s-one")))


def test_a_registry_of_another_type_hides_no_other(
    settings: Settings, client: FeedbackClient, dead: DeadLetters, redis_client: Redis
) -> None:
    (command_id,) = fail(settings, client, "s-one", "m1")
    other = next(n for n in range(4) if n != partition_of(settings, "s-one").number)
    redis_client.set(keys.failed_registry(PartitionId(1, other)), "x")
    assert listed(dead) == [command_id]
    assert [letter.job_id for letter in dead.find([command_id.encode()])] == [command_id]


def test_a_listing_is_whole_and_continues_behind_what_is_gone(
    settings: Settings, dead: DeadLetters, redis_client: Redis
) -> None:
    """Pages by score and id, also past hundreds of one score; expired entries are passed over."""
    ids = [f"id-{number:04}" for number in range(700)]
    partition = partition_of(settings, "s-one")
    for place, job_id in enumerate(ids):
        failed_job(redis_client, partition, job_id, 2e10 + place // 300, data="x")
    failed_job(redis_client, partition, "expired", 1, data="x")
    failed_job(redis_client, partition, "last", float("inf"), data="x")
    letters = list(dead.letters())
    assert [letter.job_id for letter in letters] == [*ids, "last"]
    for place in (0, 255, 298, 299, 300, 699):
        letter = letters[place]
        dead.drop(choose_for_drop([letter]))
        after = Place.of_cursor(letter.place.cursor)
        assert [one.job_id for one in dead.letters(after)] == [one.job_id for one in letters[place + 1 :]]
        failed_job(redis_client, partition, letter.job_id, float(letter.place.score), data="x")
        assert next(dead.letters(after)) == letters[place + 1]
    assert list(dead.letters(letters[-1].place)) == []


def test_large_data_is_read_in_parts(settings: Settings, dead: DeadLetters, redis_client: Redis) -> None:
    for number in range(20):
        failed_job(redis_client, partition_of(settings, "s-one"), f"id-{number:02}", 2e10, data=bytes(2**20))
    assert len(listed(dead)) == 20


@pytest.mark.parametrize("cursor", ["", "x", "lAE", "é", "\udcff"])
def test_what_is_no_cursor_is_refused(cursor: str) -> None:
    with pytest.raises(InvalidRequest, match="not a cursor"):
        Place.of_cursor(cursor)


def traced(redis: Redis, settings: Settings, exc_string: bytes) -> DeadLetter:
    redis.xadd(keys.results("odd"), {"type": 2, "exc_string": exc_string})
    failed_job(redis, partition_of(settings, "s-one"), "odd", 2e10, data="x")
    (letter,) = DeadLetters(redis).letters()
    return letter


@pytest.mark.parametrize(
    ("exc_string", "shown"),
    [
        (b64encode(zlib.compress(b"Traceback:\n  here")), "Traceback:\n  here"),
        (b64encode(zlib.compress(b"\xff")), "\\xff"),
        (b"not base64", "not readable"),
        (b64encode(b"not zlib"), "not readable"),
        (bytes(2**20 + 1), "1048577 bytes; not read"),
        (b64encode(zlib.compress(bytes(2**26))), "cut off here"),
    ],
)
def test_a_traceback_is_read_within_bounds(
    settings: Settings, dead: DeadLetters, redis_client: Redis, exc_string: bytes, shown: str
) -> None:
    text = dead.traceback(traced(redis_client, settings, exc_string))
    assert text is not None
    assert shown in text
    assert len(text) <= MAX_TRACEBACK_CHARS + 100


def test_a_job_without_a_traceback_shows_none(settings: Settings, dead: DeadLetters, redis_client: Redis) -> None:
    letter = traced(redis_client, settings, b"")
    redis_client.delete(keys.results("odd"))
    assert dead.traceback(letter) is None
    redis_client.set(keys.results("odd"), "in the way")
    assert dead.traceback(letter) is None
