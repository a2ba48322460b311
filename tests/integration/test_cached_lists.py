"""Lists by who sees the log root: as quick as a look into the cache, and never older than what anybody was told."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from itertools import chain
from pathlib import Path

import msgspec
import pytest
from redis import Redis

from app.embedded import VOLATILE, EmbeddedServer
from feedback import AsyncFeedbackClient, FeedbackClient, Rejected, SessionNotFound, keys
from feedback.errors import LogCorrupt, QueueUnavailable
from feedback.lists import CachedList, ListCodec
from feedback.model import SessionIdentity
from feedback.settings import Settings
from persistence.session_log import SessionLogs
from projections.cache import ListCache
from tests.harness import CREATED_AT, serving, settings_for, wait_until, write_session
from tests.integration.rating import MESSAGES, item_of, items_of

pytestmark = pytest.mark.server

LIFE = SessionIdentity(created_at=CREATED_AT, cwd="/w")


def seeing(settings: Settings, url: str | None = None) -> FeedbackClient:
    """A client that sees the log root."""
    return FeedbackClient.from_url(url or settings.redis_url, logs=SessionLogs(Path(settings.sessions)))


def asked(redis: Redis) -> int:
    """How many questions were put to the projector."""
    calls: dict[str, dict[str, int]] = redis.info("commandstats")
    return calls.get("cmdstat_ltrim", {"calls": 0})["calls"]


@contextmanager
def without_asking(redis: Redis) -> Iterator[None]:
    """Nothing in the block is answered by the projector."""
    before = asked(redis)
    yield
    assert asked(redis) == before, "the projector was asked"


def warm(client: FeedbackClient, redis: Redis, *session_ids: str) -> None:
    """List until the lists come from the cache, of a projector that follows: one that starts may begin a new era."""
    wait_until(lambda: redis.exists(keys.checkpoint(1)), "the projector follows")

    def hit(session_id: str) -> bool:
        before = asked(redis)
        client.list(session_id)
        return asked(redis) == before

    for session_id in session_ids:
        wait_until(lambda session_id=session_id: hit(session_id), f"{session_id} is cached")  # type: ignore[misc]  # bound early


def test_hits_of_every_kind(system: Settings, redis_client: Redis) -> None:
    """Rated, emptied and never rated Sessions: what the projector says, without the projector, with the revision."""
    write_session(system, "unrated", "m1")
    write_session(system, "emptied", "m1")
    with seeing(system) as client, FeedbackClient.from_url(system.redis_url) as other:
        item = item_of(other.put("s", "m1", "positive", note="x" * 3000))
        other.delete("emptied", "m1", if_version=item_of(other.put("emptied", "m1", "negative")).version)
        warm(client, redis_client, "s", "unrated", "emptied")
        with without_asking(redis_client):
            assert (items_of(client.list("s")), client.list("s", at_least=1).revision) == ((item,), 1)
            assert (items_of(client.list("unrated")), client.list("unrated").revision) == ((), 0)
            assert (items_of(client.list("emptied")), client.list("emptied").revision) == ((), 2)
            with ThreadPoolExecutor(4) as threads:
                assert {len(items_of(listed)) for listed in threads.map(client.list, ["s"] * 40)} == {1}
        for session_id in ("s", "unrated", "emptied"):
            assert (client.list(session_id), client.list(session_id).revision) == (
                other.list(session_id),
                other.list(session_id).revision,
            )
        assert items_of(client.list("unrated", at_least=0)) == ()
        assert other.put("unrated", "m1", "positive").ok
        assert client.list("unrated").revision == 1
        assert client.list("nobody") == Rejected(error=SessionNotFound(session_id="nobody"))


def test_asyncio_hosts_see_the_same(system: Settings, redis_client: Redis) -> None:
    """Many at a time, hits and misses; logs are read beside the loop."""

    async def scenario() -> None:
        logs = SessionLogs(Path(system.sessions))
        async with AsyncFeedbackClient.from_url(system.redis_url, logs=logs) as client:
            for message_id in MESSAGES[:5]:
                revision = (await client.put("s", message_id, "positive")).revision
                listed = await asyncio.gather(*(client.list("s") for _ in range(8)), client.list("nobody"))
                assert {one.revision for one in listed[:-1]} == {revision}
                assert listed[-1] == Rejected(error=SessionNotFound(session_id="nobody"))

    asyncio.run(scenario())
    with seeing(system) as client:
        warm(client, redis_client, "s")


def test_nobody_is_shown_less_than_anybody_was_told(system: Settings) -> None:
    """Writers and readers at once, by both ways: each list is at least as new as every answer and list before it."""
    told = threading.Lock()
    newest = 0
    rounds = 40
    done = threading.Event()

    def note(revision: int | None) -> None:
        nonlocal newest
        with told:
            newest = max(newest, revision or 0)

    def write(client: FeedbackClient, number: int) -> None:
        version = None
        for _ in range(rounds):
            result = client.put("s", f"m{number}", "positive" if version is None else "negative", if_version=version)
            note(result.revision)
            version = item_of(result).version
            if len(version) and result.revision and result.revision % 7 == 0:
                note(client.delete("s", f"m{number}", if_version=version).revision)
                version = None

    def read(client: FeedbackClient) -> int:
        count = 0
        while not done.is_set():
            least = newest
            revision = client.list("s").revision or 0
            assert revision >= least
            note(revision)
            count += 1
        return count

    with ExitStack() as stack:
        writers = [stack.enter_context(FeedbackClient.from_url(system.redis_url)) for _ in range(3)]
        readers = [stack.enter_context(seeing(system)) for _ in range(2)]
        readers.append(stack.enter_context(FeedbackClient.from_url(system.redis_url)))
        threads = stack.enter_context(ThreadPoolExecutor(6))
        reading = [threads.submit(read, client) for client in readers]
        try:
            for writing in [threads.submit(write, client, number) for number, client in enumerate(writers)]:
                writing.result()
        finally:
            done.set()
        assert all(reader.result() > 0 for reader in reading)


def test_what_was_acknowledged_is_shown_or_nothing(redis_client: Redis, valkey_url: str, tmp_path: Path) -> None:
    """Without a projector, Sessions that nobody rated since are listed on; of the others no older list is shown."""
    settings = settings_for(valkey_url, tmp_path)
    for session_id in ("changed", "same"):
        write_session(settings, session_id, "m1", "m2")
    with seeing(settings) as client:
        with serving(settings):
            for session_id in ("changed", "same"):
                assert client.put(session_id, "m1", "positive").ok
            warm(client, redis_client, "changed", "same")
        with serving(settings, projector=False):
            assert client.put("changed", "m2", "positive").revision == 2
            assert client.list("same").revision == 1
            for at_least in (None, 2):
                with pytest.raises(QueueUnavailable, match="projector"):
                    client.list("changed", at_least=at_least, timeout=0.2)
            with pytest.raises(QueueUnavailable, match="projector"):
                client.list("same", at_least=2, timeout=0.2)
        with serving(settings):
            assert client.list("changed").revision == 2
            warm(client, redis_client, "changed")


def test_a_session_that_is_replaced_keeps_nothing(system: Settings, redis_client: Redis) -> None:
    """Another life of the same id: what is cached is of the former, so the projector says that nothing is there."""
    with seeing(system) as client:
        assert client.put("s", "m1", "positive").ok
        warm(client, redis_client, "s")
        (log,) = Path(system.sessions).glob("*/s/session*.jsonl*")
        log.unlink()
        assert client.list("s") == Rejected(error=SessionNotFound(session_id="s"))
        write_session(system, "s", "m1", cwd="/elsewhere")
        assert (items_of(client.list("s")), client.list("s").revision) == ((), 1)
        item = item_of(client.put("s", "m1", "negative"))
        assert items_of(client.list("s")) == (item,)
        warm(client, redis_client, "s")


def test_a_log_that_cannot_be_read_is_said_by_the_projector(system: Settings) -> None:
    """Typed as ever."""
    write_session(system, "broken", "m1", "m2")
    (path,) = Path(system.sessions).glob("*/broken/session*.jsonl*")
    path.write_bytes(path.read_bytes()[:-40] + b"\0" * 200)
    with seeing(system) as client, pytest.raises(LogCorrupt):
        client.list("broken")


def test_a_server_that_forgot_everything(system: Settings, redis_client: Redis) -> None:
    """Entries, era, all of it: lists are right at once, and cached again."""
    with seeing(system) as client:
        for number, message_id in enumerate(MESSAGES[:3], start=1):
            assert client.put("s", message_id, "positive").revision == number
            warm(client, redis_client, "s")
            redis_client.delete(keys.LIST_ERA)
            assert client.list("s").revision == number
            redis_client.flushall()
            assert client.list("s").revision == number


def entry(view: CachedList, **more: bytes | int) -> dict[str, bytes | int]:
    body = ListCodec().encode(view)
    assert body is not None
    fields: dict[str, bytes | int] = {"revision": view.revision, "latest": view.revision, "body": body}
    return fields | more


FORGED = CachedList(session_id="s", identity=LIFE, revision=1, items=())
POISON = {
    "older than the latest": entry(FORGED, latest=2),
    "newer than the latest": entry(msgspec.structs.replace(FORGED, revision=7), latest=1),
    "no latest": {key: value for key, value in entry(FORGED).items() if key != "latest"},
    "another Session's": entry(msgspec.structs.replace(FORGED, session_id="t")),
    "another revision in it": entry(FORGED, revision=2, latest=2),
    "another schema": entry(msgspec.structs.replace(FORGED, schema=2)),
    "garbage": entry(FORGED, body=b"\x00garbage"),
    "an unknown codec": entry(FORGED, body=b"\x07"),
    "nothing": entry(FORGED, body=b""),
}


def test_what_others_put_there_is_not_shown(system: Settings, redis_client: Redis) -> None:
    """Whatever stands in an entry, of whatever type: the projector answers, and puts the true list in its place."""
    name = keys.list_cache("s")
    with seeing(system) as client:
        version = item_of(client.put("s", "m1", "positive")).version
        item = item_of(client.put("s", "m1", "negative", if_version=version))
        warm(client, redis_client, "s")
        era = redis_client.get(keys.LIST_ERA)
        assert isinstance(era, bytes)
        for reason, fields in POISON.items():
            redis_client.delete(name)
            redis_client.execute_command("HSET", name, "era", era, *chain.from_iterable(fields.items()))
            assert items_of(client.list("s")) == (item,), reason
            warm(client, redis_client, "s")
        redis_client.delete(name)
        redis_client.set(name, "x")
        assert items_of(client.list("s")) == (item,)
        warm(client, redis_client, "s")
        redis_client.hset(name, "era", b"0" * 40 + b":another")
        assert items_of(client.list("s")) == (item,)
        redis_client.delete(keys.LIST_ERA)
        redis_client.sadd(keys.LIST_ERA, "x")
        assert items_of(client.list("s")) == (item,)


def test_a_host_that_may_not_read_the_cache_asks(
    system: Settings, redis_client: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """It says so once, and works."""
    rules = ("on", ">secret", "~*", "+@all", "-evalsha_ro", "-eval_ro")
    redis_client.execute_command("ACL", "SETUSER", "blind", "reset", *rules)
    try:
        with seeing(system, system.redis_url.replace("//", "//blind:secret@")) as client:
            for _ in range(3):
                assert client.list("s").ok
        assert len([line for line in caplog.messages if "not read for a while" in line]) == 1
    finally:
        redis_client.execute_command("ACL", "DELUSER", "blind")


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[tuple[EmbeddedServer, EmbeddedServer]]:
    """A primary and what will be its replica."""
    with ExitStack() as running:
        made = []
        for name in ("one", "two"):
            server = EmbeddedServer(tmp_path / name, {**VOLATILE, "repl-diskless-sync-delay": "0"})
            server.start()
            running.callback(server.stop)
            made.append(server)
        yield made[0], made[1]


def replicate(follower: Redis, leader: EmbeddedServer) -> None:
    host, port = leader.url.removeprefix("redis://").removesuffix("/0").split(":")
    follower.execute_command("REPLICAOF", host, port)
    wait_until(lambda: follower.info("replication").get("master_link_status") == "up", "the replica has all data")


def is_of_its_era(redis: Redis) -> bool:
    """Whether the Session's list looks current, but for the server."""
    era, revision, latest = redis.hmget(keys.list_cache("s"), "era", "revision", "latest")
    return era == redis.get(keys.LIST_ERA) and revision == latest


def is_copied(primary: Redis, replica: Redis) -> bool:
    name = keys.list_cache("s")
    return is_of_its_era(replica) and replica.hgetall(name) == primary.hgetall(name)


def test_a_stale_replica_that_takes_over_shows_nothing_old(
    servers: tuple[EmbeddedServer, EmbeddedServer], tmp_path: Path
) -> None:
    """It has a list, and no trace of what was acknowledged after its last look: only a projector may vouch for it.

    Nor does a server that is no primary any more, or not yet, whatever it holds.
    """
    one, two = servers
    settings = settings_for(one.url, tmp_path)
    write_session(settings, "s", "m1", "m2")
    with ExitStack() as stack:
        first, second = (stack.enter_context(Redis.from_url(server.url)) for server in servers)
        before, after = seeing(settings), seeing(settings, two.url)
        stack.enter_context(before)
        stack.enter_context(after)
        replicate(second, one)
        with serving(settings):
            assert before.put("s", "m1", "positive").revision == 1
            warm(before, first, "s")
            wait_until(lambda: is_copied(first, second), "the replica has the list")
            with pytest.raises(QueueUnavailable):
                after.list("s", timeout=0.2)
            second.execute_command("REPLICAOF", "NO", "ONE")
            assert before.put("s", "m2", "positive").revision == 2
            assert is_of_its_era(second)
        with pytest.raises(QueueUnavailable, match="projector"):
            after.list("s", timeout=0.2)
        with serving(msgspec.structs.replace(settings, redis_url=two.url)):
            assert after.list("s").revision == 2
            warm(after, second, "s")
            replicate(first, two)
            with pytest.raises(QueueUnavailable):
                before.list("s", timeout=0.2)


def test_a_restarted_server_vouches_for_nothing(tmp_path: Path) -> None:
    """Its memory may be older than what callers were told; the projector begins a new era without being restarted."""
    server = EmbeddedServer(tmp_path / "valkey", {"appendonly": "yes", "appendfsync": "no", "save": ""})
    server.start()
    try:
        settings = settings_for(server.url, tmp_path)
        write_session(settings, "s", "m1")
        with serving(settings), seeing(settings) as client, Redis.from_url(server.url) as redis:
            assert client.put("s", "m1", "positive").revision == 1
            warm(client, redis, "s")
            era = redis.get(keys.LIST_ERA)
            server.stop()
            server.start()
            assert client.list("s").revision == 1
            warm(client, redis, "s")
            assert redis.get(keys.LIST_ERA) != era
            assert ListCache(redis).read(["s"]).latest == {"s": 1}
    finally:
        server.stop()
