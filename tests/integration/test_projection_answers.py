"""The responder on a real server: lists that are never older than the question, waiting, bad questions."""

import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from uuid import UUID

import msgspec
import pytest
from redis import Redis

from feedback import keys, queries
from feedback.calls import wall_clock_ms
from feedback.client import FeedbackClient
from feedback.connection import connect
from feedback.errors import CommandUnknown, LogCorrupt, StoreUnavailable
from feedback.model import Item, SessionIdentity
from feedback.queries import (
    Answer,
    Answered,
    Failed,
    ListQuery,
    OutcomeQuery,
    Query,
    Unknown,
    Unsupported,
    decode_answer,
    encode_query,
)
from feedback.results import ItemList, Ok, Rejected, Result, SessionNotFound, result_from_builtins
from persistence.sidecar import SqliteStore
from projections import queries as responding
from projections import resolving
from projections.cache import ListCache
from projections.queries import Responder
from projections.views import load
from tests.integration.projecting import LIFE, NEXT_LIFE, Deployment, running, wait_until


@pytest.fixture
def deployment(redis_client: Redis, tmp_path: Path) -> Iterator[Deployment]:
    with closing(SqliteStore(tmp_path / "sidecar.sqlite3")) as store:
        yield Deployment(redis_client, store)


@pytest.fixture
def responder(valkey_url: str, deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> Iterator[Responder]:
    """A responder to be stepped by the test: a step answers all that it took, however busy the machine is."""
    monkeypatch.setattr(resolving, "_SOON_S", 30)
    with (
        connect(valkey_url) as client,
        closing(Responder(client, deployment.store, deployment, 2)) as responder,
    ):
        yield responder


@pytest.fixture
def client(valkey_url: str, responder: Responder) -> Iterator[FeedbackClient]:
    """A client whose questions a running responder answers."""
    with running(responder), FeedbackClient.from_url(valkey_url) as client:
        yield client


def in_ms(seconds: float) -> int:
    return wall_clock_ms() + int(1000 * seconds)


def ask(redis: Redis, *asked: Query | bytes) -> None:
    for query in asked:
        redis.rpush(keys.QUERIES, query if isinstance(query, bytes) else encode_query(query))


def answers(redis: Redis, query_id: str) -> list[Answer]:
    return [decode_answer(data) for data in redis.execute_command("LRANGE", keys.reply(query_id), 0, -1)]


def step(responder: Responder, block_s: float = 1) -> None:
    """Take one batch, and send its answers at once."""
    responder.step(block_s)
    responder.flush()


def answered(responder: Responder, redis: Redis, query_id: str) -> Answer:
    """Step until there is an answer."""

    def is_answered() -> bool:
        step(responder, 0.05)
        return bool(answers(redis, query_id))

    wait_until(is_answered, f"an answer to {query_id}")
    return answers(redis, query_id)[0]


def list_query(query_id: str, session_id: str, *, at_least: int | None = None, seconds: float = 60) -> ListQuery:
    return ListQuery(query_id=query_id, deadline=in_ms(seconds), session_id=session_id, at_least=at_least)


def items_of(result: Result) -> tuple[Item, ...]:
    assert isinstance(result, Ok)
    assert isinstance(result.value, ItemList)
    return result.value.items


def test_lists_what_is_committed(client: FeedbackClient, deployment: Deployment) -> None:
    """Without any follower: each list is as of the question, with its revision."""
    first = deployment.put("s1", "m1", note="as it was written ")
    result = client.list("s1")
    assert (items_of(result), result.revision) == ((first.item,), 1)
    second = deployment.put("s1", "m2", "negative", publish=False)
    result = client.list("s1")
    assert (items_of(result), result.revision) == ((first.item, second.item), 2)
    deployment.delete("s1", "m1")
    assert items_of(client.list("s1")) == (second.item,)


def test_sessions_without_feedback(client: FeedbackClient, deployment: Deployment) -> None:
    """A Session nobody rated has an empty list; one that does not exist is a business answer."""
    deployment.put("rated")
    deployment.identities["unrated"] = deployment.identities["rated"]
    result = client.list("unrated")
    assert (items_of(result), result.revision) == ((), 0)
    for session_id in ("", "nobody", "na\x00me\n", "x" * 5000):
        assert client.list(session_id) == Rejected(error=SessionNotFound(session_id=session_id))


def test_feedback_of_another_life_counts_as_absent(client: FeedbackClient, deployment: Deployment) -> None:
    """Only items bound to the current header identity are listed, cached or not."""
    deployment.put("s1")
    assert len(items_of(client.list("s1"))) == 1
    life = deployment.identities["s1"]
    deployment.identities["s1"] = NEXT_LIFE
    result = client.list("s1")
    assert (items_of(result), result.revision) == ((), 1)
    deployment.identities["s1"] = life
    assert len(items_of(client.list("s1"))) == 1


def test_a_log_that_cannot_be_inspected_is_a_failure(client: FeedbackClient, deployment: Deployment) -> None:
    """Typed as it was raised, and other Sessions of the batch are answered."""
    deployment.put("s1")
    deployment.identities["broken"] = LogCorrupt("broken", "/log", "a row is missing")
    with pytest.raises(LogCorrupt, match="a row is missing") as caught:
        client.list("broken")
    assert (caught.value.session_id, caught.value.path) == ("broken", "/log")
    assert len(items_of(client.list("s1"))) == 1


def test_a_miss_fills_the_cache(responder: Responder, deployment: Deployment) -> None:
    """The next one to ask reads it there."""
    deployment.put("s1")
    ask(deployment.redis, list_query("q", "s1"))
    step(responder)
    assert deployment.cached("s1") == {"s1": deployment.view("s1")}


def test_a_current_entry_answers(responder: Responder, deployment: Deployment) -> None:
    """An entry whose revision and life the store confirms is what is answered."""
    deployment.put("s1")
    view = load(deployment.store, "s1")
    assert view is not None
    marked = msgspec.structs.replace(view, items=(msgspec.structs.replace(view.items[0], note="from the cache"),))
    cache = ListCache(deployment.redis)
    assert cache.store(cache.read(()).era, [marked])
    ask(deployment.redis, list_query("q", "s1"))
    step(responder)
    (answer,) = answers(deployment.redis, "q")
    assert isinstance(answer, Answered)
    assert items_of(result_from_builtins(answer.result))[0].note == "from the cache"


@pytest.mark.parametrize("revision", [1, 3, 9])
def test_a_poisoned_entry_is_not_served(responder: Responder, deployment: Deployment, revision: int) -> None:
    """Older, of another life, or newer than the store ever was: the store answers, and replaces it."""
    deployment.put("s1", "m1")
    deployment.put("s1", "m2")
    deployment.put("s1", "m3")
    view = deployment.view("s1")
    assert view is not None
    forged = msgspec.structs.replace(view, revision=revision, identity=NEXT_LIFE, items=())
    cache = ListCache(deployment.redis)
    assert cache.store(cache.read(()).era, [forged])
    ask(deployment.redis, list_query("q", "s1"))
    step(responder)
    (answer,) = answers(deployment.redis, "q")
    assert isinstance(answer, Answered)
    assert answer.revision == 3
    assert items_of(result_from_builtins(answer.result)) == view.items
    assert deployment.cached("s1") == {"s1": view}


def test_at_least_waits_for_the_revision(responder: Responder, deployment: Deployment) -> None:
    """A question for a later revision waits, however often it is asked, and others are answered meanwhile."""
    deployment.put("s1", "m1")
    redis = deployment.redis
    ask(redis, list_query("later", "s1", at_least=2), list_query("later", "s1", at_least=2), list_query("now", "s1"))
    step(responder)
    assert len(answers(redis, "now")) == 1
    ask(redis, list_query("now-2", "s1", at_least=1))
    step(responder)
    assert len(answers(redis, "now-2")) == 1
    assert answers(redis, "later") == []
    deployment.put("s1", "m2")
    answer = answered(responder, redis, "later")
    assert isinstance(answer, Answered)
    assert len(answers(redis, "later")) == 1
    assert answer.revision == 2


def test_at_least_in_vain(client: FeedbackClient, deployment: Deployment) -> None:
    """At its deadline the question fails, and says how far the store is."""
    deployment.put("s1")
    with pytest.raises(StoreUnavailable, match="revision 1, and did not reach 7"):
        client.list("s1", at_least=7, timeout=0.5)
    with pytest.raises(StoreUnavailable, match="revision 0"):
        deployment.identities["unrated"] = NEXT_LIFE
        client.list("unrated", at_least=1, timeout=0.5)


def test_reading_ones_own_write(client: FeedbackClient, deployment: Deployment) -> None:
    """A list at the revision of a write that was just answered holds it, published or not."""
    for number in range(20):
        event = deployment.put("s1", f"m{number}", publish=False)
        assert event.item in items_of(client.list("s1", at_least=event.revision))


def test_the_recorded_answer_to_a_command(client: FeedbackClient, deployment: Deployment) -> None:
    """By its id, with the revision; an id without a record is unknown."""
    put, deleted = deployment.put("s1"), deployment.delete("s1")
    result = client.result_of(put.command_id)
    assert (result, result.revision) == (Ok(value=put.item), 1)
    assert ListCache(deployment.redis).read(["s1"]).latest == {"s1": 1}, "no older list is read without the store"
    assert client.result_of(deleted.command_id).revision == 2
    rejected = deployment.reject("s1")
    assert client.result_of(rejected.command_id) == Rejected(error=rejected.error)
    with pytest.raises(CommandUnknown):
        client.result_of("00000000-0000-4000-8000-000000000000")


def test_a_server_that_forgot_the_script_costs_no_question(responder: Responder, deployment: Deployment) -> None:
    """What is taken together with answers that must be sent again is answered as well."""
    ask(deployment.redis, list_query("first", "nobody"))
    responder.step(1)
    ask(deployment.redis, list_query("second", "nobody"), list_query("third", "nobody"))
    deployment.redis.script_flush()
    step(responder)
    for query_id in ("first", "second", "third"):
        assert len(answers(deployment.redis, query_id)) == 1


def test_bad_questions_are_dropped(responder: Responder, deployment: Deployment) -> None:
    """Garbage, foreign types, late questions: no answer, and the next is answered."""
    deployment.put("s1")
    deep = b"\x91" * 100_000
    ask(deployment.redis, b"", b"\xc1", b"garbage", deep, bytes(2**20 + 1))
    ask(deployment.redis, msgspec.msgpack.encode({"type": "drop-everything"}), list_query("late", "s1", seconds=-100))
    ask(deployment.redis, list_query("q", "s1"))
    step(responder)
    assert len(answers(deployment.redis, "q")) == 1
    assert not deployment.redis.exists(keys.reply("late"), keys.QUERIES)


def test_a_projector_whose_clock_is_ahead_answers(responder: Responder, deployment: Deployment) -> None:
    """A question that came past its deadline by this clock; only what it would wait for is not waited for."""
    deployment.put("s1")
    for query_id, at_least in (("list", None), ("reached", 1), ("not-reached", 2)):
        ask(deployment.redis, list_query(query_id, "s1", at_least=at_least, seconds=-10))
    ask(deployment.redis, OutcomeQuery(query_id="outcome", deadline=in_ms(-10), command_id=str(UUID(int=1))))
    step(responder)
    for query_id, kind in (("list", Answered), ("reached", Answered), ("not-reached", Failed), ("outcome", Unknown)):
        assert [type(answer) for answer in answers(deployment.redis, query_id)] == [kind]


@pytest.mark.parametrize("newer", [{"type": "count"}, {"extra": 1}, {"schema": 2}], ids=lambda newer: next(iter(newer)))
def test_a_question_of_a_newer_client_is_refused_at_once(
    responder: Responder, deployment: Deployment, newer: dict[str, object]
) -> None:
    """An unknown type, member or schema: it would be misread, or waited for in vain. Past its deadline nobody waits."""
    for query_id, seconds in (("q", 60), ("late", -100)):
        query = msgspec.to_builtins(list_query(query_id, "s1", seconds=seconds)) | newer
        ask(deployment.redis, msgspec.msgpack.encode(query))
    step(responder)
    assert answers(deployment.redis, "q") == [Unsupported(schema=1)]
    assert not deployment.redis.exists(keys.reply("late"))


def test_answers_do_not_stay(responder: Responder, deployment: Deployment) -> None:
    """An answer nobody fetches expires."""
    ask(deployment.redis, list_query("q", "nobody"), OutcomeQuery(query_id="o", deadline=in_ms(60), command_id="x"))
    step(responder)
    (answer,) = answers(deployment.redis, "o")
    assert isinstance(answer, Failed)
    assert answer.failure.code == "InvalidRequest"
    for query_id in ("q", "o"):
        assert 0 < deployment.redis.ttl(keys.reply(query_id)) <= keys.REPLY_TTL_S


def test_a_store_that_cannot_be_read(responder: Responder, deployment: Deployment) -> None:
    """A typed failure for whoever asked, also for those that wait."""
    deployment.put("s1")
    redis = deployment.redis
    ask(redis, list_query("waiting", "s1", at_least=5))
    step(responder)
    deployment.store.close()
    ask(
        redis,
        list_query("list", "s1"),
        OutcomeQuery(query_id="outcome", deadline=in_ms(60), command_id=str(UUID(int=1))),
    )
    for query_id in ("waiting", "list", "outcome"):
        answer = answered(responder, redis, query_id)
        assert isinstance(answer, Failed)
        assert answer.failure.code == "StoreUnavailable"


def test_a_queries_list_of_another_type(client: FeedbackClient, deployment: Deployment) -> None:
    """Somebody's key in the place of the queue is dropped."""
    deployment.put("s1")
    deployment.redis.delete(keys.QUERIES)
    deployment.redis.sadd(keys.QUERIES, "x")
    wait_until(lambda: deployment.redis.type(keys.QUERIES) != b"set", "the foreign key is dropped")
    assert len(items_of(client.list("s1"))) == 1


class SlowLogs:
    """Identities, of which those of Session `slow` takes as long as the test wants."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.lives = [LIFE, NEXT_LIFE]

    def known_identity(self, session_id: str) -> SessionIdentity | None:
        del session_id
        return None

    def identity(self, session_id: str) -> SessionIdentity | None:
        if session_id != "slow":
            return LIFE
        life = self.lives.pop(0)
        self.go_on.wait(30)
        return life


def test_a_slow_log_holds_up_nobody_else(valkey_url: str, deployment: Deployment) -> None:
    """Others are answered meanwhile; who asked while the log was being read gets a look that began later."""
    deployment.put("slow", "old")
    deployment.put("s1")
    redis, logs = deployment.redis, SlowLogs()
    with (
        connect(valkey_url) as client,
        closing(Responder(client, deployment.store, logs, 2)) as responder,
    ):
        try:
            ask(redis, list_query("first", "slow"), list_query("second", "s1"))
            answered(responder, redis, "second")
            ask(redis, list_query("third", "slow"), list_query("fourth", "s1"))
            answered(responder, redis, "fourth")
            assert answers(redis, "first") == answers(redis, "third") == []
        finally:
            logs.go_on.set()
        first, third = answered(responder, redis, "first"), answered(responder, redis, "third")
    assert isinstance(first, Answered)
    assert isinstance(third, Answered)
    assert len(items_of(result_from_builtins(first.result))) == 1
    assert items_of(result_from_builtins(third.result)) == ()


@pytest.mark.parametrize("most_bytes", [1, 1000, 2**20])
def test_a_batch_of_many_sessions(
    responder: Responder, deployment: Deployment, monkeypatch: pytest.MonkeyPatch, most_bytes: int
) -> None:
    """One look at cache and store answers all of them, each with its own, in requests of a bounded size."""
    monkeypatch.setattr(responding, "_MOST_REPLY_BYTES", most_bytes)
    events = {session_id: deployment.put(session_id) for session_id in (f"s{number}" for number in range(40))}
    ask(deployment.redis, *(list_query(f"q-{session_id}", session_id) for session_id in events))
    responder.step(1)
    responder.step(0.01)
    for session_id, event in events.items():
        (answer,) = answers(deployment.redis, f"q-{session_id}")
        assert isinstance(answer, queries.Answered)
        assert items_of(result_from_builtins(answer.result)) == (event.item,)
