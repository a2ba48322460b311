"""The traps of RQ and redis-py that were measured before this was built (PEERS, section 3): ours has none of them.

Each test is named after the fact's number there.
"""

import json
import logging
import pickle
import signal
import socket
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest
from redis import Redis
from rq.job import JobStatus
from rq.worker import Worker

from app.embedded import VOLATILE, EmbeddedServer
from feedback import FeedbackClient, Put, keys, wire
from feedback.commands import PutCommand
from feedback.connection import connect
from feedback.errors import FeedbackError, InvalidRequest
from feedback.events import Event
from feedback.flows import _enqueue
from feedback.results import Result
from feedback.scripting import Script
from feedback.settings import Settings
from tests.harness import serving, settings_for, wait_until, write_session
from tests.integration.rq_jobs import (
    enqueue_raw,
    events_of,
    failed_registry,
    fetch,
    has_nothing_waiting,
    partition_of,
    put_command,
    request_of,
    results_of,
    send,
    set_up,
    worker_process,
)
from tests.integration.test_foreign_jobs import Canary, bomb, fired
from tests.proxy import Proxy, Trap, runs
from worker.leases import _heartbeat
from worker.queue import CLAIM, FINISH

pytestmark = pytest.mark.server

SESSION = "s-traps"
MESSAGES = tuple(f"m{number}" for number in range(4))


@pytest.fixture
def settings(valkey_url: str, redis_client: Redis, tmp_path: Path) -> Settings:
    """A system with a Session of four messages; nobody serves it yet, and the server knows the scripts."""
    settings = settings_for(valkey_url, tmp_path, lease_ttl=1.0)
    prepare(redis_client, settings)
    return settings


def prepare(redis: Redis, settings: Settings) -> None:
    write_session(settings, SESSION, *MESSAGES, "last")
    set_up(redis, settings)
    for script in (CLAIM, FINISH, _enqueue):
        redis.script_load(script.source)  # so that the first request of each is the one that counts


@pytest.fixture
def client(settings: Settings) -> Iterator[FeedbackClient]:
    with FeedbackClient.from_url(settings.redis_url) as client:
        yield client


@pytest.fixture
def proxy(settings: Settings) -> Iterator[Proxy]:
    with Proxy(settings.redis_url) as proxy:
        yield proxy


@pytest.fixture
def commands(settings: Settings, client: FeedbackClient) -> list[PutCommand]:
    """One command per message, enqueued in order."""
    return enqueue_all(client)


def through(proxy: Proxy, settings: Settings) -> Settings:
    """The same system, reached through the proxy."""
    return msgspec.structs.replace(settings, redis_url=proxy.url)


def enqueue_all(client: FeedbackClient) -> list[PutCommand]:
    """One command per message, in order."""
    commands = [put_command(SESSION, message) for message in MESSAGES]
    client.submit_many([request_of(command) for command in commands])
    return commands


def assert_applied_once_in_order(redis: Redis, settings: Settings, commands: list[PutCommand]) -> None:
    """One event and one result each, in queue order; nothing is left anywhere."""
    partition = partition_of(settings, SESSION)
    wait_until(lambda: len(events_of(redis, partition)) >= len(commands), "all published")
    wait_until(lambda: has_nothing_waiting(redis, partition), "all acknowledged")
    events: list[Event] = events_of(redis, partition)
    assert [event.command_id for event in events] == [command.command_id for command in commands]
    assert [event.revision for event in events] == list(range(1, len(commands) + 1))
    assert [event.epoch for event in events] == sorted(event.epoch for event in events)
    for command in commands:
        assert results_of(redis, command.command_id) == [b"1"]
        assert fetch(redis, command.command_id).get_status() is JobStatus.FINISHED


@pytest.mark.parametrize("lost", [CLAIM, FINISH], ids=["claim", "finish"])
def test_1_lost_reply_loses_and_repeats_nothing(
    settings: Settings, commands: list[PutCommand], proxy: Proxy, redis_client: Redis, lost: Script
) -> None:
    """The same commands come next, in order; none is popped in place of another, none published twice."""
    trap = proxy.lose_reply(runs(lost))
    with serving(through(proxy, settings), projector=False):
        trap.wait()
        assert_applied_once_in_order(redis_client, settings, commands)


def test_1_every_connection_cut_at_once(
    settings: Settings, commands: list[PutCommand], proxy: Proxy, redis_client: Redis
) -> None:
    """With a batch claimed and not processed."""
    trap = proxy.hold_reply(runs(CLAIM))
    with serving(through(proxy, settings), projector=False):
        trap.wait()
        trap.cut()
        proxy.cut_all()
        assert_applied_once_in_order(redis_client, settings, commands)


def test_2_lost_reply_to_enqueue_enqueues_once(settings: Settings, proxy: Proxy, redis_client: Redis) -> None:
    """The put that asked again returns its own result; its id stands on the queue once."""
    lost, repeated = proxy.lose_reply(runs(_enqueue)), proxy.hold_reply(runs(_enqueue))
    with FeedbackClient.from_url(proxy.url) as client, ThreadPoolExecutor(1) as threads:
        answer = threads.submit(client.put, SESSION, "m0", "positive")
        lost.wait()
        repeated.wait()
        assert redis_client.llen(keys.queue(partition_of(settings, SESSION))) == 1
        repeated.release()
        with serving(settings, projector=False):
            assert answer.result().revision == 1
    assert len(events_of(redis_client, partition_of(settings, SESSION))) == 1


KILL_POINTS: dict[str, Callable[[Proxy], Trap]] = {
    "claimed, not started": lambda proxy: proxy.hold_reply(runs(CLAIM)),
    "committed, not acknowledged": lambda proxy: proxy.hold_request(runs(FINISH)),
    "acknowledged, not told": lambda proxy: proxy.hold_reply(runs(FINISH)),
}


@pytest.mark.process
@pytest.mark.parametrize("point", KILL_POINTS)
def test_3_killed_worker_is_taken_over(
    settings: Settings, commands: list[PutCommand], proxy: Proxy, redis_client: Redis, point: str
) -> None:
    """Whatever it had in hand is finished once by the next one, without any housekeeping."""
    trap = KILL_POINTS[point](proxy)
    with worker_process(through(proxy, settings)) as process:
        trap.wait()
        send(process, signal.SIGKILL)
        with serving(settings, projector=False):
            assert_applied_once_in_order(redis_client, settings, commands)


@pytest.mark.process
@pytest.mark.parametrize("point", ["claimed, not started", "committed, not acknowledged"])
def test_4_paused_worker_wakes_up_and_commits_nothing(
    settings: Settings, commands: list[PutCommand], proxy: Proxy, redis_client: Redis, point: str
) -> None:
    """Stopped past its lease, while another worker finished what it held. It serves again afterwards."""
    trap = KILL_POINTS[point](proxy)
    with worker_process(through(proxy, settings)) as process:
        trap.wait()
        send(process, signal.SIGSTOP)
        with serving(settings, projector=False):
            assert_applied_once_in_order(redis_client, settings, commands)
            trap.release()
            send(process, signal.SIGCONT)
            owners = keys.owners(1)
            wait_until(lambda: len(set(redis_client.hvals(owners))) == 2, "both serve")
            assert_applied_once_in_order(redis_client, settings, commands)
        with FeedbackClient.from_url(settings.redis_url) as client:
            last = client.put(SESSION, "m0", "negative", if_version=None)
        assert not last.ok, "the other worker has gone; this one answers, from what was committed"


def test_5_share_of_a_killed_worker_is_free_again(settings: Settings, redis_client: Redis) -> None:
    """No slot stays held for somebody who is gone."""
    owners = keys.owners(1)
    with worker_process(settings) as process:
        wait_until(lambda: redis_client.hlen(owners) == settings.partitions, "all owned")
        dead = set(redis_client.hvals(owners))
        send(process, signal.SIGKILL)
        with serving(settings, projector=False):
            wait_until(lambda: not dead & set(redis_client.hvals(owners)), "all taken over")
            wait_until(lambda: redis_client.scard(keys.WORKERS) == 1, "the dead one is forgotten")


def test_6_malformed_hash_stops_no_worker(settings: Settings, client: FeedbackClient, redis_client: Redis) -> None:
    """Neither the one that takes it nor its successor, and no lock stays behind."""
    partition = partition_of(settings, SESSION)
    fields: dict[str, bytes | str] = {"data": pickle.dumps(Canary()), "created_at": "x", "timeout": "x", "status": "x"}
    for number in range(2):
        enqueue_raw(redis_client, partition, f"malformed-{number}".encode(), fields)
        with serving(settings, projector=False):
            assert client.put(SESSION, f"m{number}", "positive").ok
            assert len(failed_registry(redis_client, partition).get_job_ids()) == number + 1
    assert not redis_client.keys("rq:clean_registries:*")


TROUBLES: dict[str, tuple[tuple[str, ...], tuple[str, ...], str]] = {
    "READONLY": (("REPLICAOF", "127.0.0.1", "1"), ("REPLICAOF", "NO", "ONE"), "read only replica"),
    "OOM": (("CONFIG", "SET", "maxmemory", "1"), ("CONFIG", "SET", "maxmemory", "0"), "used memory > 'maxmemory'"),
}


@pytest.mark.parametrize("trouble", TROUBLES)
def test_6_worker_survives_a_server_that_refuses(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, trouble: str
) -> None:
    """With commands on the queue; a put that is under way meanwhile gets its answer when the server is well again."""
    begin, end, words = TROUBLES[trouble]
    caplog.set_level(logging.WARNING)
    server = EmbeddedServer(tmp_path / "server", VOLATILE)
    server.start()
    try:
        settings = settings_for(server.url, tmp_path, lease_ttl=1.0)
        with (
            connect(server.url) as redis,
            FeedbackClient.from_url(server.url) as client,
            Proxy(server.url) as proxy,
            ThreadPoolExecutor(1) as threads,
        ):
            prepare(redis, settings)
            commands = enqueue_all(client)
            trap = proxy.hold_request(runs(CLAIM))
            with serving(through(proxy, settings), projector=False):
                trap.wait()
                redis.execute_command(*begin)
                try:
                    trap.release()
                    wait_until(lambda: said(caplog, "out of service", words), "the worker met it")
                    wait_until(lambda: said(caplog, "heartbeat failed", words), "its heart, too")
                    meanwhile = put_command(SESSION, "last")
                    answer = threads.submit(lambda: client.submit(request_of(meanwhile)).result())
                finally:
                    redis.execute_command(*end)
                assert answer.result().revision == len(commands) + 1
                assert_applied_once_in_order(redis, settings, [*commands, meanwhile])
    finally:
        server.stop()


def said(caplog: pytest.LogCaptureFixture, *words: str) -> bool:
    """Whether one log message has all these words."""
    return any(all(word in message for word in words) for message in list(caplog.messages))


def test_7_bomb_costs_no_memory() -> None:
    """A megabyte that inflates to a gigabyte is given up at the cap."""
    data = bomb(2**30)
    tracemalloc.start()
    try:
        with pytest.raises(InvalidRequest, match="larger than"):
            wire.decode_job(data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 16 * 2**20


@pytest.mark.parametrize("value", [float("nan"), float("inf"), [[]], {"a": 1}, b"\xff", True])
def test_7_decoding_is_strict(value: object) -> None:
    members = msgspec.to_builtins(put_command(SESSION, "m0")) | {"expiresAt": value}
    with pytest.raises(FeedbackError):
        wire.decode_job(msgspec.msgpack.encode((wire.FUNCTION, None, (members,), {})))


def test_8_callbacks_webhooks_and_names_in_the_hash_are_ignored(
    settings: Settings, client: FeedbackClient, redis_client: Redis
) -> None:
    """A command is served, whatever else its hash asks for; nothing is imported, called or connected to."""
    command, refused = put_command(SESSION, "m0"), put_command(SESSION, "m1")
    fire = "tests.integration.test_foreign_jobs.fire"
    fired.clear()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        hook = {"url": f"http://127.0.0.1:{listener.getsockname()[1]}/", "statuses": ["finished", "failed"]}
        extras: dict[str, bytes | str] = {
            **{f"{kind}_callback_name": fire for kind in ("success", "failure", "stopped")},
            "func_name": fire,
            "webhooks": json.dumps([hook]),
            "meta": pickle.dumps(Canary()),
            "retries_left": "3",
            "repeats_left": "3",
            "repeat_intervals": "[0]",
            "dependency_ids": json.dumps(["nobody"]),
        }
        partition = partition_of(settings, SESSION)
        enqueue_raw(redis_client, partition, command.command_id.encode(), extras | {"data": wire.encode_job(command)})
        enqueue_raw(redis_client, partition, refused.command_id.encode(), extras | {"data": b"\xc1"})
        with serving(settings, projector=False):
            assert client.result_of(command.command_id).ok
            with pytest.raises(InvalidRequest):
                client.result_of(refused.command_id)
        with pytest.raises(BlockingIOError):
            listener.accept()
    assert fired == []
    assert results_of(redis_client, refused.command_id) == [b"2"], "it was not retried"
    assert results_of(redis_client, command.command_id) == [b"1"], "it was not repeated"


def test_9_idle_worker_costs_next_to_nothing(valkey_url: str, redis_client: Redis, tmp_path: Path) -> None:
    """With 32 partitions: under ten commands a heartbeat, scripts' own included, and by default that is a second."""
    settings = settings_for(valkey_url, tmp_path, partitions=32, lease_ttl=1.0)
    heartbeat = f"EVALSHA {_heartbeat.sha}"
    with serving(settings, projector=False):
        wait_until(lambda: redis_client.hlen(keys.owners(1)) == 32, "all owned")
        wait_until(lambda: Worker.all(connection=redis_client, serializer=wire.Serializer), "registered")
        with redis_client.monitor() as monitor:
            seen = (str(entry["command"]) for entry in monitor.listen())
            for command in seen:
                if command.startswith(heartbeat):
                    break
            beats = commands = 0
            while beats < 10:
                beats += next(seen).startswith(heartbeat)
                commands += 1
    assert commands < 10 * beats


def test_9_sessions_cost_no_keys(settings: Settings, client: FeedbackClient, redis_client: Redis) -> None:
    """5,000 Sessions: what stays is jobs and answers, which expire, and a fixed number of keys beside them."""
    requests = [Put(f"session-{number}", "m", "positive") for number in range(5000)]
    with serving(settings, projector=False):
        results: list[Result] = [ticket.result() for ticket in client.submit_many(requests)]
        assert not any(result.ok for result in results)
        wait_until(lambda: not redis_client.keys("feedback:claimed:*"), "all acknowledged")
        lasting = [key for key in redis_client.scan_iter(count=5000) if redis_client.ttl(key) == -1]
        expiring = redis_client.dbsize() - len(lasting)
    assert len(lasting) < 5 * settings.partitions + 10
    assert expiring <= 2 * len(requests) + 10
