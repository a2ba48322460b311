"""Live Sessions when things go wrong: processes die or pause, the server restarts, forgets, or loses messages."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from redis import Redis
from redis.exceptions import RedisError

from app.embedded import DURABLE, VOLATILE, EmbeddedServer
from feedback import LiveSessions, QueueUnavailable, keys
from feedback.connection import connect
from feedback.live_core import BATCH, _hold, _leave, _reply
from tests.harness import wait_until
from tests.integration.live_hosts import LIFE, Asker, Gate, host_of, registration
from tests.proxy import Proxy, names, runs

ROOT = Path(__file__).parents[2]
KINDS = ("threads", "asyncio")

pytestmark = pytest.mark.server


@contextmanager
def host_process(url: str, ttl: float, *session_ids: str) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    """Another process that holds Sessions open, and its owner id; killed in the end."""
    command = [sys.executable, "-W", "error", "-m", "tests.integration.live_child", url, str(ttl), *session_ids]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process, line_of(process)
        finally:
            process.kill()


def line_of(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


class Named:
    """A host of which only the owner id is known."""

    def __init__(self, owner_id: str) -> None:
        self.owner_id = owner_id


@pytest.fixture
def asker(redis_client: Redis) -> Asker:
    return Asker(redis_client)


@pytest.mark.process
def test_a_killed_host_is_forgotten_by_itself(valkey_url: str, redis_client: Redis) -> None:
    """Its own key goes within the TTL; the Sessions' keys count for nothing without it, and expire later."""
    with host_process(valkey_url, 0.5, "s") as (process, owner_id):
        assert redis_client.exists(keys.owner(owner_id))
        process.kill()
        process.wait()
        wait_until(lambda: not redis_client.exists(keys.owner(owner_id)), "the owner expired")
        assert registration(redis_client)[b"owner"] == owner_id.encode()
        assert 0 < redis_client.ttl(keys.live("s")) <= keys.LIVE_TTL_S


@pytest.mark.process
def test_a_host_that_dies_without_closing_ends_at_once(valkey_url: str, redis_client: Redis) -> None:
    """Its threads hold nobody up: the process ends when its program does."""
    program = (
        "import sys; from feedback import *; live = LiveSessions.from_url(sys.argv[1]);"
        "live.register('s', SessionIdentity(created_at=1), lambda: None)"
    )
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", program, valkey_url],
        cwd=ROOT,
        timeout=60,
        check=True,
        capture_output=True,
    )
    assert ended.stderr == b""
    assert redis_client.exists(keys.live("s"))


@pytest.mark.process
def test_a_paused_host_expires_and_comes_back(valkey_url: str, redis_client: Redis) -> None:
    """What was asked meanwhile is past its deadline, and dropped; the next request is answered."""
    asker = Asker(redis_client)
    with host_process(valkey_url, 0.5, "s") as (process, owner_id):
        host = Named(owner_id)
        os.kill(process.pid, signal.SIGSTOP)
        wait_until(lambda: not redis_client.exists(keys.owner(owner_id)), "the owner expired")
        asked = asker.ask(host, seconds=0)
        os.kill(process.pid, signal.SIGCONT)
        wait_until(lambda: redis_client.exists(keys.owner(owner_id)), "the owner is back")
        assert asker.flushed(host).status == "flushed"
        assert asker.unanswered(asked)


@pytest.mark.parametrize("kind", KINDS)
def test_a_server_that_forgot_everything_is_told_again_in_bounded_calls(
    kind: str, valkey_url: str, redis_client: Redis, asker: Asker
) -> None:
    with host_of(kind, valkey_url, ttl=0.3) as host:
        for number in range(3 * BATCH):
            host.register(f"s{number}", LIFE, lambda: 1)
        with redis_client.pipeline() as forgetting:
            forgetting.execute_command("FLUSHALL")
            forgetting.execute_command("CONFIG", "RESETSTAT")
            forgetting.execute()
        wait_until(lambda: redis_client.dbsize() == 3 * BATCH + 1, "all is registered again")
        stats = redis_client.info("commandstats")
        assert stats["cmdstat_evalsha"]["calls"] == stats["cmdstat_set"]["calls"], "each call renews the owner"
        assert stats["cmdstat_hset"]["calls"] == 2 * 3 * BATCH, "each Session once, its cwd apart"
        assert asker.flushed(host, "s7").status == "flushed"


def test_heartbeats_of_ten_thousand_sessions_touch_none_of_them(valkey_url: str, redis_client: Redis) -> None:
    with LiveSessions.from_url(valkey_url, ttl=0.6) as live:
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(lambda number: live.register(f"s{number}", LIFE, lambda: None), range(10_000)))
        redis_client.config_resetstat()
        wait_until(lambda: redis_client.info("commandstats").get("cmdstat_set", {}).get("calls", 0) >= 3, "heartbeats")
        stats = redis_client.info("commandstats")
        assert stats.keys().isdisjoint({"cmdstat_hget", "cmdstat_hset"})
        assert stats["cmdstat_evalsha"]["calls"] == stats["cmdstat_set"]["calls"]
    assert redis_client.dbsize() == 0


@pytest.mark.parametrize("options", [VOLATILE, DURABLE], ids=["volatile", "durable"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_restarted_server_learns_of_all_sessions(kind: str, options: Mapping[str, str], tmp_path: Path) -> None:
    """Whether it lost everything, or only (as an AOF may) what came last, while the owner is still known."""
    server = EmbeddedServer(tmp_path, options)
    server.start()
    try:
        with host_of(kind, server.url) as host:
            host.register("first", LIFE, lambda: 1)
            host.register("last", LIFE, lambda: 2)
            with connect(server.url) as client:
                client.delete(keys.live("last"))
            server.stop()
            server.start()
            with connect(server.url) as client:
                wait_until(lambda: knows(client, "first", "last", host.owner_id), "both are registered")
                assert Asker(client).flushed(host, "last").durable == 2
    finally:
        server.stop()


def knows(client: Redis, first: str, last: str, owner_id: str) -> bool:
    with suppress(RedisError):
        return client.exists(keys.live(first), keys.live(last), keys.owner(owner_id)) == 3
    return False


@pytest.mark.parametrize("kind", KINDS)
def test_a_host_closes_although_its_server_is_gone(kind: str, tmp_path: Path) -> None:
    """It gives up soon, and answers nobody; the keys would expire by themselves."""
    server = EmbeddedServer(tmp_path, VOLATILE)
    server.start()
    try:
        with host_of(kind, server.url) as host:
            handle = host.register("s", LIFE, lambda: 1)
            server.stop()
            handle.close()
    finally:
        server.stop()


@pytest.mark.parametrize("kind", KINDS)
def test_lost_answers_and_broken_connections_are_got_over(kind: str, valkey_url: str, redis_client: Redis) -> None:
    """The answer to a registration, a popped request's reply and a deregistration are lost, each once."""
    with Proxy(valkey_url) as proxy:
        asker = Asker(redis_client)
        for script in (_hold, _reply, _leave):
            redis_client.script_load(script.source)
        proxy.lose_reply(runs(_hold))
        with host_of(kind, proxy.url) as host:
            handle = host.register("s", LIFE, lambda: 1)
            proxy.lose_reply(runs(_reply))
            assert asker.flushed(host).status == "flushed"
            proxy.cut_all()
            assert asker.flushed(host).status == "flushed"
            proxy.lose_reply(runs(_leave))
            handle.close()
            wait_until(lambda: not registration(redis_client), "it was let go")
        wait_until(lambda: not redis_client.exists(keys.owner(host.owner_id)), "the owner left")


def is_listening(redis: Redis) -> bool:
    """Whether some client is blocked in a BLPOP."""
    return any(client["cmd"] == "blpop" and "b" in client["flags"] for client in redis.client_list())


def test_a_request_whose_pop_got_lost_is_the_workers_to_repeat(valkey_url: str, redis_client: Redis) -> None:
    """The server has handed it out, the host never saw it: no reply, and a later request is served."""
    with Proxy(valkey_url) as proxy, LiveSessions.from_url(proxy.url) as live:
        asker = Asker(redis_client)
        live.register("s", LIFE, lambda: 1)
        assert asker.flushed(live).status == "flushed"
        wait_until(lambda: is_listening(redis_client), "the host waits for the next request")
        trap = proxy.lose_reply(names("BLPOP"))
        asker.pass_through(live)  # answers the BLPOP that was under way before the trap was set
        lost = asker.ask(live)
        trap.wait()
        # The server may hand the next one to the dead connection as well, until it notices: a worker repeats.
        wait_until(lambda: not asker.unanswered_soon(asker.ask(live)), "a repeated request is served")
        assert asker.unanswered(lost)


def test_a_connection_that_stalls_delays_a_registration_no_longer_than_its_timeout(
    valkey_url: str, redis_client: Redis
) -> None:
    """And the Session that was not registered in time is not left behind when the server did hear of it."""
    with Proxy(valkey_url) as proxy:
        redis_client.script_load(_hold.source)
        trap = proxy.hold_reply(runs(_hold))
        with LiveSessions.from_url(proxy.url) as live:
            with pytest.raises(QueueUnavailable, match="not registered within 1 s"):
                live.register("s", LIFE, lambda: 1, timeout=1.0)
            trap.wait()
            assert registration(redis_client), "the server did hear of it"
            trap.release()
            wait_until(lambda: not registration(redis_client), "it was let go")


@pytest.mark.process
def test_between_processes_the_last_registration_wins_until_its_owner_is_dead(
    valkey_url: str, redis_client: Redis
) -> None:
    """The former owner neither takes the Session back nor lets go of it, but holds it again when the other died."""
    with LiveSessions.from_url(valkey_url, ttl=0.5) as live:
        live.register("closed", LIFE, lambda: 1).close()
        former = live.register("s", LIFE, lambda: 1)
        live.register("kept", LIFE, lambda: 1)
        with host_process(valkey_url, 0.5, "s", "kept") as (process, owner_id):
            make_doubt(redis_client, live)
            former.close()
            wait_until(lambda: not registration(redis_client, "closed"), "an earlier one was let go")
            assert registration(redis_client)[b"owner"] == owner_id.encode()
            assert registration(redis_client, "kept")[b"owner"] == owner_id.encode()
            process.kill()
            process.wait()
            wait_until(lambda: not redis_client.exists(keys.owner(owner_id)), "the owner expired")
        make_doubt(redis_client, live)
        wait_until(lambda: registration(redis_client, "kept")[b"owner"] == live.owner_id.encode(), "held again")
        assert registration(redis_client)[b"owner"] == owner_id.encode(), "closed by its former owner"


def make_doubt(redis_client: Redis, live: LiveSessions) -> None:
    """Let the owner tell the server of all its Sessions again, and wait until it did."""
    live.register("marker", LIFE, lambda: 1)
    redis_client.delete(keys.live("marker"), keys.owner(live.owner_id))
    wait_until(lambda: registration(redis_client, "marker"), "all Sessions were told of again")


def test_a_pool_full_of_slow_flushes_serves_the_rest_in_turn(valkey_url: str, redis_client: Redis) -> None:
    """`max_flushes` run at once; nobody is forgotten."""
    gate, asker = Gate(), Asker(redis_client)
    with LiveSessions.from_url(valkey_url, max_flushes=2) as live:
        for number in range(6):
            live.register(f"s{number}", LIFE, gate)
        asked = [asker.ask(live, f"s{number}") for number in range(6)]
        asker.pass_through(live)
        wait_until(lambda: gate.calls == 2, "two run")
        assert all(asker.unanswered(request) for request in asked)
        gate.open()
        assert {asker.reply(request).status for request in asked} == {"flushed"}
        assert gate.calls == 6
