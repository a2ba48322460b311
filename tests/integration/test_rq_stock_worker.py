"""Commands under RQ's own workers: slower than ours, and as safe (DESIGN, "Queue topology")."""

import contextlib
import signal
import subprocess
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from redis import Redis
from rq import Queue, SimpleWorker
from rq.job import JobStatus

from app.system import child_environ
from feedback import FeedbackClient, keys
from feedback.calls import wall_clock_ms
from feedback.commands import Command, DeleteCommand
from feedback.errors import LogCorrupt, SettingsInvalid
from feedback.partitions import PartitionId
from feedback.results import Result
from feedback.settings import Settings
from feedback.wire import Serializer
from persistence.sidecar import open_store
from tests.harness import serving, settings_for, wait_until, write_session
from tests.integration import test_foreign_jobs as foreign
from tests.integration.rq_jobs import (
    damaged_log,
    enqueue_by_rq,
    enqueue_raw,
    events_of,
    failed_registry,
    fetch,
    has_nothing_waiting,
    job_settings,
    partition_of,
    put_command,
    request_of,
    results_of,
    send,
    set_up,
    stock_queue,
    worker_process,
)
from tests.proxy import Proxy, runs
from worker.dead_letters import DeadLetters
from worker.letters import choose_for_retry
from worker.queue import CLAIM

pytestmark = pytest.mark.server

RQ = str(Path(sysconfig.get_path("scripts")) / "rq")
SESSION = "s-stock"
WAYS = ["ours", "SimpleWorker", "rq worker", "is_async=False"]


@pytest.fixture
def settings(
    valkey_url: str, redis_client: Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Settings]:
    """A system that nobody serves yet, and that the job function finds in the environment."""
    settings = settings_for(valkey_url, tmp_path, lease_ttl=1.0)
    write_session(settings, SESSION, *(f"m{number}" for number in range(12)))
    set_up(redis_client, settings)
    with job_settings(settings, monkeypatch):
        yield settings


@pytest.fixture
def client(settings: Settings) -> Iterator[FeedbackClient]:
    with FeedbackClient.from_url(settings.redis_url) as client:
        yield client


@pytest.fixture
def queue(settings: Settings, redis_client: Redis) -> Queue:
    return stock_queue(redis_client, settings, SESSION)


@pytest.fixture(autouse=True)
def signals() -> Iterator[None]:
    """RQ's workers take these and keep them."""
    taken = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)}
    yield
    for number, handler in taken.items():
        signal.signal(number, handler)


def burst(queue: Queue) -> None:
    """RQ's non-forking worker, until the queue is empty."""
    SimpleWorker([queue], connection=queue.connection, serializer=Serializer).work(burst=True, logging_level="ERROR")


def rq_worker(settings: Settings, queue: Queue, *words: str) -> "subprocess.Popen[bytes]":
    """RQ's command line: a worker process, until the queue is empty."""
    options = ("--burst", "--quiet", "--url", settings.redis_url, "--serializer", "feedback.wire.Serializer")
    return subprocess.Popen([RQ, "worker", *options, *words, queue.name], env=child_environ(settings))


def run(way: str, settings: Settings, queue: Queue, commands: Sequence[Command]) -> None:
    """Have commands of one partition processed, in order."""
    if way == "is_async=False":
        direct = Queue(queue.name, connection=queue.connection, serializer=Serializer, is_async=False)
        for command in commands:
            enqueue_by_rq(direct, command)
        return
    for command in commands:
        enqueue_by_rq(queue, command)
    match way:
        case "ours":
            with serving(settings, projector=False):
                wait_until(lambda: has_nothing_waiting(queue.connection, partition_of(settings, SESSION)), "done")
        case "SimpleWorker":
            burst(queue)
        case _:
            assert rq_worker(settings, queue).wait(60) == 0


def recorded(settings: Settings) -> list[tuple[int, bytes]]:
    """The store's log of outcomes: sequence and event."""
    with contextlib.closing(open_store(settings.sidecar_url)) as store:
        return list(store.outcomes(partition_of(settings, SESSION), 0, 100))


def without_chance(document: object) -> object:
    """A result without what differs from run to run."""
    if isinstance(document, dict):
        chance = ("version", "createdAt", "updatedAt")
        return {name: without_chance(value) for name, value in document.items() if name not in chance}
    return document


def delete_command(message_id: str, version: str | None) -> DeleteCommand:
    members: dict[str, Any] = msgspec.to_builtins(put_command(SESSION, message_id))
    del members["rating"]
    return msgspec.convert(members | {"type": "delete", "ifVersion": version}, DeleteCommand)


@pytest.mark.parametrize("way", WAYS)
def test_every_way_gives_the_same_results_records_and_events(
    settings: Settings, client: FeedbackClient, queue: Queue, redis_client: Redis, way: str
) -> None:
    commands: list[Command] = [
        put_command(SESSION, "m0", note="first"),
        put_command(SESSION, "m0", note="conflicts"),
        put_command(SESSION, "none"),
        put_command(SESSION, "m1", note=" \ufeff"),
        delete_command("m2", None),
        put_command(SESSION, "m3", rating="negative"),
    ]
    run(way, settings, queue, commands)
    results = [client.result_of(command.command_id, timeout=5) for command in commands]
    item = {"messageId": "m0", "rating": "positive", "note": "first"}
    assert [without_chance(msgspec.to_builtins(result)) for result in results] == [
        {"ok": True, "value": item},
        {"ok": False, "error": {"code": "version-conflict", "current": item}},
        {"ok": False, "error": {"code": "target-not-found", "sessionId": SESSION, "messageId": "none"}},
        {"ok": False, "error": {"code": "note-blank"}},
        {"ok": True, "value": {"absent": True}},
        {"ok": True, "value": {"messageId": "m3", "rating": "negative"}},
    ]
    assert [result.revision for result in results] == [1, 1, 1, 1, 1, 2]
    published = events_of(redis_client, partition_of(settings, SESSION))
    assert [event.command_id for event in published] == [command.command_id for command in commands]
    assert [sequence for sequence, _ in recorded(settings)] == list(range(1, len(commands) + 1))
    for command, result in zip(commands, results, strict=True):
        job = fetch(redis_client, command.command_id)
        assert job.get_status() is JobStatus.FINISHED
        assert job.return_value() == msgspec.to_builtins(result)
    assert has_nothing_waiting(redis_client, partition_of(settings, SESSION))


@pytest.mark.parametrize("way", WAYS)
def test_redelivered_command_takes_effect_once(
    settings: Settings, client: FeedbackClient, queue: Queue, redis_client: Redis, way: str
) -> None:
    """The same answer again, byte for byte; one event."""
    command = put_command(SESSION, "m0")
    answers = []
    for _ in range(3):
        run(way, settings, queue, [command])
        answers.append(msgspec.json.encode(client.result_of(command.command_id)))
    assert len(set(answers)) == 1
    assert len(events_of(redis_client, partition_of(settings, SESSION))) == len(recorded(settings)) == 1


@pytest.mark.parametrize("way", ["SimpleWorker", "is_async=False"])
def test_waiting_client_gets_the_answer_of_a_stock_worker(
    settings: Settings, client: FeedbackClient, queue: Queue, way: str
) -> None:
    """It was enqueued by our client; the revision comes along."""
    command = put_command(SESSION, "m0")
    ticket = client.submit(request_of(command))
    if way == "SimpleWorker":
        burst(queue)
    else:
        run(way, settings, queue, [command])
    assert ticket.result(timeout=5).revision == 1


def test_owner_of_the_partition_is_fenced_off_and_recovers(
    settings: Settings, client: FeedbackClient, queue: Queue, redis_client: Redis
) -> None:
    """Single jobs and a worker that owns the partition, in turns: nothing is lost, doubled or out of order."""
    partition = partition_of(settings, SESSION)
    results: list[Result] = []
    with serving(settings, projector=False):
        for number in range(0, 12, 2):
            results.append(client.put(SESSION, f"m{number}", "positive"))
            single = put_command(SESSION, f"m{number + 1}")
            run("is_async=False", settings, queue, [single])
            results.append(client.result_of(single.command_id))
    assert [result.revision for result in results] == list(range(1, 13))
    events = events_of(redis_client, partition)
    assert [event.revision for event in events] == list(range(1, 13))
    epochs = [event.epoch for event in events]
    assert epochs == sorted(epochs)
    assert epochs[0] < epochs[1] < epochs[2], "each single job took the partition, and the worker took it back"


def test_single_job_leaves_the_other_partitions_with_their_owner(
    settings: Settings, queue: Queue, redis_client: Redis
) -> None:
    """It is no worker that would get a share of them."""
    owners = keys.owners(1)
    others = [partition_of(settings, SESSION).number ^ bit for bit in (1, 2, 3)]
    with serving(settings, projector=False):
        wait_until(lambda: redis_client.hlen(owners) == settings.partitions, "everything owned")
        before = redis_client.hgetall(owners)
        for number in range(6):
            run("is_async=False", settings, queue, [put_command(SESSION, f"m{number}")])
        wait_until(lambda: redis_client.hgetall(owners) == before, "owned as before")
    with contextlib.closing(open_store(settings.sidecar_url)) as store:
        fences = store.acquire_fences([PartitionId(1, number) for number in others], "test")
    assert {fence.epoch for fence in fences.values()} == {2}, "the worker's only claim, and this one"


def test_two_stock_workers_on_one_partition(
    settings: Settings, client: FeedbackClient, queue: Queue, redis_client: Redis
) -> None:
    """They take turns: each command once, revisions dense."""
    commands = [put_command(SESSION, f"m{number}") for number in range(12)]
    tickets = client.submit_many([request_of(command) for command in commands])
    workers = [rq_worker(settings, queue, "--worker-class", "rq.SimpleWorker") for _ in range(2)]
    results = [ticket.result() for ticket in tickets]
    assert [worker.wait(60) for worker in workers] == [0, 0]
    assert sorted(result.revision or 0 for result in results) == list(range(1, 13))
    events = events_of(redis_client, partition_of(settings, SESSION))
    assert [event.revision for event in events] == list(range(1, 13))
    assert {event.command_id for event in events} == {command.command_id for command in commands}


def test_what_a_killed_worker_had_claimed_is_finished_first(
    settings: Settings, client: FeedbackClient, queue: Queue, redis_client: Redis
) -> None:
    """RQ's housekeeping, which a stock worker runs, does not touch it either."""
    partition = partition_of(settings, SESSION)
    claimed = [put_command(SESSION, f"m{number}") for number in range(3)]
    tickets = client.submit_many([request_of(command) for command in claimed])
    redis_client.script_load(CLAIM.source)
    with Proxy(settings.redis_url) as proxy:
        trap = proxy.hold_reply(runs(CLAIM))
        through = msgspec.structs.replace(settings, redis_url=proxy.url)
        with worker_process(through) as process:
            trap.wait()
            send(process, signal.SIGKILL)
    assert redis_client.llen(keys.claimed(partition)) == 3
    later = put_command(SESSION, "m0", note="too late")
    enqueue_by_rq(queue, later)
    burst(queue)
    assert [ticket.result(timeout=5).revision for ticket in tickets] == [1, 2, 3]
    order = [event.command_id for event in events_of(redis_client, partition)]
    assert order == [*(command.command_id for command in claimed), later.command_id]
    assert has_nothing_waiting(redis_client, partition)


@pytest.mark.parametrize("way", WAYS)
def test_corrupt_log_fails_typed_at_the_client(
    settings: Settings, client: FeedbackClient, queue: Queue, redis_client: Redis, way: str
) -> None:
    command = put_command("s-broken", "m1")
    write_session(settings, "s-broken", "m1")
    broken = stock_queue(redis_client, settings, "s-broken")
    with damaged_log(settings, "s-broken"):
        if way == "ours":
            enqueue_by_rq(broken, command)
            with serving(settings, projector=False), pytest.raises(LogCorrupt):
                client.result_of(command.command_id)
        else:
            run(way, settings, broken, [command])
            with pytest.raises(LogCorrupt, match="s-broken"):
                client.result_of(command.command_id)
    assert fetch(redis_client, command.command_id).get_status() is JobStatus.FAILED
    assert command.command_id in failed_registry(redis_client, partition_of(settings, "s-broken"))


def test_what_fails_twice_under_a_stock_worker_goes_back_in_the_order_in_which_it_failed_first(
    settings: Settings, redis_client: Redis
) -> None:
    """Whatever order RQ's own requeueing gave it in between."""
    write_session(settings, "s-broken", "m1")
    commands = [put_command("s-broken", "m1", note=f"note {number}") for number in range(3)]
    queue, partition = stock_queue(redis_client, settings, "s-broken"), partition_of(settings, "s-broken")
    with damaged_log(settings, "s-broken"):
        run("SimpleWorker", settings, queue, commands)
        for command in reversed(commands):
            failed_registry(redis_client, partition).requeue(command.command_id)
        burst(queue)
    dead = DeadLetters(redis_client)
    assert dead.retry(choose_for_retry(dead.letters(), wall_clock_ms()).chosen).retried == 3
    assert queue.get_job_ids() == [command.command_id for command in commands]


def test_wrong_settings_of_a_stock_worker_fail_typed_at_the_client(
    settings: Settings, client: FeedbackClient, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are found before the command is looked at; its caller hears of them all the same."""
    monkeypatch.setenv("FEEDBACK_SIDECAR_URL", "mysql://user:secret@host/db")
    ticket = client.submit(request_of(put_command(SESSION, "m0")))
    burst(queue)
    with pytest.raises(SettingsInvalid, match="sidecar_url") as caught:
        ticket.result(timeout=5)
    assert "secret" not in str(caught.value)


HARMLESS_TO_RQ = [kind for kind in foreign.DATA if kind != "zlib, 1 GB"]
"""RQ's own worker inflates without a bound before any of our code runs: ours does not."""


def test_foreign_data_is_not_executed_by_a_stock_worker_either(
    settings: Settings, client: FeedbackClient, queue: Queue, redis_client: Redis
) -> None:
    """Given our serializer, which knows one function: every such job fails, and the next command is served."""
    foreign.fired.clear()
    partition = partition_of(settings, SESSION)
    for number, kind in enumerate(HARMLESS_TO_RQ):
        fields = {"data": foreign.DATA[kind], "status": "queued", "origin": queue.name}
        enqueue_raw(redis_client, partition, f"foreign-{number}".encode(), fields)
    ticket = client.submit(request_of(put_command(SESSION, "m0")))
    burst(queue)
    assert ticket.result(timeout=5).revision == 1
    assert foreign.fired == []
    failed = set(failed_registry(redis_client, partition).get_job_ids())
    assert failed == {f"foreign-{number}" for number in range(len(HARMLESS_TO_RQ))}
    assert all(results_of(redis_client, job_id) == [b"2"] for job_id in failed)
    assert events_of(redis_client, partition)[0].command_id == ticket.command_id
