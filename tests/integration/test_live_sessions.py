"""Live Sessions of hosts with threads and with asyncio, on a real server: what workers see and hear of them."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from redis import Redis

from feedback import LiveSessions, QueueUnavailable, SessionIdentity, ShuttingDown, keys
from feedback.live import LiveSession
from tests.harness import wait_until
from tests.integration.live_hosts import LIFE, Asker, Gate, Host, host_of, registration

pytestmark = pytest.mark.server


@pytest.fixture(params=["threads", "asyncio"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def host(kind: str, valkey_url: str, redis_client: Redis) -> Iterator[Host]:
    """A host of each kind, on an empty server."""
    with host_of(kind, valkey_url) as host:
        yield host


@pytest.fixture
def asker(redis_client: Redis) -> Asker:
    return Asker(redis_client)


def test_a_registration_says_who_holds_what_and_expires_by_itself(host: Host, redis_client: Redis) -> None:
    host.register("s", LIFE, lambda: None)
    assert registration(redis_client) == {
        b"owner": host.owner_id.encode(),
        b"session": b"s",
        b"created_at": str(LIFE.created_at).encode(),
        b"cwd": b"/w",
    }
    assert 0 < redis_client.ttl(keys.live("s")) <= keys.LIVE_TTL_S
    assert 0 < redis_client.pttl(keys.owner(host.owner_id)) <= 6000


def test_a_header_without_a_working_directory_has_none_here(host: Host, redis_client: Redis) -> None:
    host.register("s", SessionIdentity(created_at=7), lambda: None)
    assert registration(redis_client).keys() == {b"owner", b"session", b"created_at"}


def test_closing_leaves_nothing_behind(host: Host, redis_client: Redis) -> None:
    for number in range(300):
        host.register(f"s{number}", LIFE, lambda: None)
    host.close()
    assert redis_client.keys("*") == []
    host.close()
    with pytest.raises(ShuttingDown):
        host.register("s", LIFE, lambda: None)


def test_a_host_that_never_registered_closes_without_a_word(kind: str) -> None:
    """Not even a server is needed."""
    with host_of(kind, "redis://127.0.0.1:1"):
        pass


@pytest.mark.parametrize("durable", [0, 7, None])
def test_a_flush_is_answered_with_how_far_the_log_is_durable(host: Host, asker: Asker, durable: int | None) -> None:
    host.register("s", LIFE, lambda: durable)
    reply = asker.flushed(host)
    assert (reply.status, reply.durable) == ("flushed", durable)


def test_a_reply_expires_when_its_worker_is_gone(host: Host, asker: Asker, redis_client: Redis) -> None:
    host.register("s", LIFE, lambda: None)
    asker.ask(host)
    wake = keys.wake(asker.worker_id)
    assert 0 < wait_until(lambda: max(0, redis_client.ttl(wake)), "the reply came") <= keys.WAKE_TTL_S


def test_a_flush_that_raises_is_answered_with_its_reason_and_may_succeed_later(host: Host, asker: Asker) -> None:
    outcomes: list[Exception | int] = [OSError(28, "No space left on device"), ValueError("bad \ud800"), 5]

    def flush() -> int:
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    host.register("s", LIFE, flush)
    replies = [asker.flushed(host) for _ in range(3)]
    assert [(reply.status, reply.reason) for reply in replies] == [
        ("failed", "OSError: [Errno 28] No space left on device"),
        ("failed", "ValueError: bad \\ud800"),
        ("flushed", ""),
    ]


def test_a_flush_that_ends_its_thread_is_answered_too(valkey_url: str, asker: Asker) -> None:
    def flush() -> int:
        raise SystemExit(1)

    with LiveSessions.from_url(valkey_url) as host:
        host.register("s", LIFE, flush)
        assert [asker.flushed(host).reason for _ in range(6)] == ["SystemExit: 1"] * 6


def test_requests_during_a_flush_are_served_by_one_more(host: Host, asker: Asker) -> None:
    gate = Gate()
    host.register("s", LIFE, gate)
    first = asker.ask(host)
    gate.wait()
    more = [asker.ask(host) for _ in range(20)]
    asker.pass_through(host)
    gate.open()
    assert {asker.reply(request).status for request in (first, *more)} == {"flushed"}
    assert gate.calls == 2


def test_a_slow_flush_delays_neither_heartbeats_nor_other_sessions(
    kind: str, valkey_url: str, redis_client: Redis, asker: Asker
) -> None:
    """The owner outlives its TTL many times over while one of its flushes runs."""
    with host_of(kind, valkey_url, ttl=0.3) as host:
        gate = Gate()
        host.register("slow", LIFE, gate)
        host.register("s", LIFE, lambda: 2)
        asked = asker.ask(host, "slow")
        gate.wait()
        redis_client.config_resetstat()
        wait_until(lambda: heartbeats(redis_client) >= 10, "ten heartbeats")
        assert redis_client.exists(keys.owner(host.owner_id))
        assert asker.flushed(host).durable == 2
        assert asker.unanswered(asked)
        gate.open()
        assert asker.reply(asked).status == "flushed"


def heartbeats(redis_client: Redis) -> int:
    """How often an owner's life was renewed since the statistics were reset."""
    return int(redis_client.info("commandstats").get("cmdstat_set", {"calls": 0})["calls"])


def test_who_is_not_held_is_detached(host: Host, asker: Asker, redis_client: Redis) -> None:
    """Never held, of another life, or closed: and the server forgets it, so that nobody asks twice."""
    handle = host.register("s", LIFE, lambda: 1)
    redis_client.hset(keys.live("stale"), "owner", host.owner_id)
    assert asker.flushed(host, "stale").status == "detached"
    assert registration(redis_client, "stale") == {}
    other = asker.ask(host, "s", SessionIdentity(created_at=LIFE.created_at + 1, cwd="/w"))
    assert asker.reply(other).status == "detached"
    assert asker.flushed(host).status == "flushed"
    handle.close()
    assert asker.flushed(host).status == "detached"
    assert registration(redis_client) == {}


def test_closing_a_session_waits_for_its_flush(host: Host, asker: Asker, redis_client: Redis) -> None:
    """What runs is answered as it ends, what waits is detached after it; then the flush is never called again."""
    gate = Gate()
    handle = host.register("s", LIFE, gate)
    running = asker.ask(host)
    gate.wait()
    waiting = asker.ask(host)
    with ThreadPoolExecutor(1) as threads:
        closing = threads.submit(handle.close)
        asker.pass_through(host)
        assert not closing.done()
        assert asker.unanswered(waiting)
        gate.open()
        closing.result()
    assert asker.reply(running).status == "flushed"
    assert asker.reply(waiting).status == "detached"
    assert asker.flushed(host).status == "detached"
    assert gate.calls == 1
    assert registration(redis_client) == {}


def test_closing_all_waits_for_flushes_and_answers_everybody(host: Host, asker: Asker, redis_client: Redis) -> None:
    gate = Gate()
    host.register("s", LIFE, gate)
    host.register("idle", LIFE, lambda: 1)
    running = asker.ask(host)
    gate.wait()
    waiting = asker.ask(host)
    with ThreadPoolExecutor(1) as threads:
        closing = threads.submit(host.close)
        wait_until(lambda: not registration(redis_client, "idle"), "the idle Session was let go")
        late = asker.ask(host, "idle")
        assert asker.reply(late).status == "detached"
        assert redis_client.exists(keys.owner(host.owner_id)), "it lives as long as its flush runs"
        gate.open()
        closing.result()
    assert asker.reply(running).status == "flushed"
    assert asker.reply(waiting).status == "detached"
    assert redis_client.keys("*") == []


def test_a_session_may_close_itself_from_its_flush(valkey_url: str, asker: Asker) -> None:
    """A host that finds its log broken lets go of it there."""
    handles: list[LiveSession] = []

    def flush() -> int:
        handles[0].close()
        raise OSError("the log is broken")

    with LiveSessions.from_url(valkey_url) as host:
        handles.append(host.register("s", LIFE, flush))
        assert asker.flushed(host).status == "failed"
        assert asker.flushed(host).status == "detached"


def test_the_last_registration_of_an_id_wins_within_a_host(host: Host, asker: Asker, redis_client: Redis) -> None:
    """The former handle is spent: closing it does not let go of the Session."""
    former = host.register("s", LIFE, lambda: 1)
    later_life = SessionIdentity(created_at=LIFE.created_at + 5)
    later = host.register("s", later_life, lambda: 2)
    former.close()
    assert asker.reply(asker.ask(host, "s", later_life)).durable == 2
    assert asker.flushed(host).status == "detached"
    assert b"cwd" not in registration(redis_client)
    later.close()
    wait_until(lambda: not registration(redis_client), "it was let go")


def test_malformed_and_late_requests_are_dropped(host: Host, asker: Asker, redis_client: Redis) -> None:
    flushes = []
    host.register("s", LIFE, lambda: flushes.append(1))
    for junk in (b"", b"junk", b"\xc0", b"\x80", b"{}", b"\x93\x01\x02\x03", "ä" * 1000):
        redis_client.rpush(keys.flushes(host.owner_id), junk)
    late = asker.ask(host, seconds=-1)
    asker.pass_through(host)
    assert asker.unanswered(late)
    assert flushes == []
    assert asker.flushed(host).status == "flushed"


def test_keys_that_strangers_took_stop_nobody(host: Host, asker: Asker, redis_client: Redis) -> None:
    """A registration is written over; a wake list of another type hears nothing, and others do."""
    redis_client.set(keys.live("s"), "mine")
    host.register("s", LIFE, lambda: 1)
    assert registration(redis_client)[b"session"] == b"s"
    stranger = Asker(redis_client)
    redis_client.set(keys.wake(stranger.worker_id), "mine")
    stranger.ask(host)
    assert asker.flushed(host).status == "flushed"


def test_ids_are_any_unicode(host: Host, asker: Asker) -> None:
    life = SessionIdentity(created_at=1, cwd="/ä\n=😀")
    for session_id in ("", "ä/..\0😀", "x" * 10_000):
        host.register(session_id, life, lambda: 1)
        assert asker.reply(asker.ask(host, session_id, life)).status == "flushed"


def test_a_server_out_of_reach_is_told_by_register_alone(kind: str) -> None:
    with host_of(kind, "redis://127.0.0.1:1") as host, pytest.raises(QueueUnavailable, match=r"within 0\.2 s"):
        host.register("s", LIFE, lambda: None, timeout=0.2)


def test_a_server_that_refuses_is_told_at_once(kind: str, valkey_url: str) -> None:
    """Waiting would not help, so nobody waits for the timeout."""
    url = valkey_url.replace("redis://", "redis://nobody:wrong@")
    with host_of(kind, url) as host, pytest.raises(QueueUnavailable, match=r"WRONGPASS|username"):
        host.register("s", LIFE, lambda: None, timeout=1e6)


def test_the_callers_client_stays_the_callers(valkey_url: str) -> None:
    """It may decode answers and have a short timeout; it works on when we are closed."""
    with Redis.from_url(valkey_url, decode_responses=True, socket_timeout=0.5) as client:
        with LiveSessions(client) as live, live.register("s", LIFE, lambda: 3) as session:
            assert (session.session_id, session.identity) == ("s", LIFE)
            with Redis.from_url(valkey_url) as other:
                assert Asker(other).flushed(live).durable == 3
        assert client.ping()


def test_registering_from_many_threads_at_once(host: Host, redis_client: Redis) -> None:
    barrier = threading.Barrier(8)

    def register(number: int) -> None:
        barrier.wait()
        for step in range(20):
            host.register(f"s{number}-{step}", LIFE, lambda: None)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(register, range(8)))
    assert len(redis_client.keys(keys.LIVE_PREFIX + "*")) == 160
