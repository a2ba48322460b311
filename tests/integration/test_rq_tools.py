"""RQ's own tools on our commands: what an operator knows from RQ works here (issue 2, item 6)."""

import subprocess
import sysconfig
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
from redis import Redis
from rq import Queue
from rq.job import Job, JobStatus
from rq.registry import CanceledJobRegistry, FinishedJobRegistry, clean_registries
from rq.results import Result
from rq.worker import Worker

from feedback import FeedbackClient, Put
from feedback.errors import CommandUnknown, LogCorrupt
from feedback.settings import Settings
from feedback.wire import FUNCTION, Serializer
from tests.harness import serving, settings_for, wait_until, write_session
from tests.integration.rq_jobs import (
    damaged_log,
    enqueue_by_rq,
    failed_registry,
    fetch,
    has_nothing_waiting,
    partition_of,
    put_command,
    request_of,
    results_of,
    set_up,
    stock_queue,
)

pytestmark = pytest.mark.server

RQ = str(Path(sysconfig.get_path("scripts")) / "rq")
SESSION = "s-tools"


@pytest.fixture
def settings(valkey_url: str, redis_client: Redis, tmp_path: Path) -> Settings:
    """A system with one Session of three messages; nobody serves it yet."""
    settings = settings_for(valkey_url, tmp_path, lease_ttl=1.0)
    write_session(settings, SESSION, "m1", "m2", "m3")
    set_up(redis_client, settings)
    return settings


@pytest.fixture
def client(settings: Settings) -> Iterator[FeedbackClient]:
    with FeedbackClient.from_url(settings.redis_url) as client:
        yield client


@pytest.fixture
def queue(settings: Settings, redis_client: Redis) -> Queue:
    """The Session's queue as RQ has it."""
    return stock_queue(redis_client, settings, SESSION)


def rq(settings: Settings, command: str, *words: str) -> str:
    """What RQ's command line prints."""
    done = subprocess.run(
        [RQ, command, "--url", settings.redis_url, *words], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_rq_info_lists_queues_and_workers(settings: Settings, client: FeedbackClient, redis_client: Redis) -> None:
    with serving(settings, projector=False):
        client.put(SESSION, "m1", "positive")
        (worker,) = wait_until(lambda: Worker.all(connection=redis_client, serializer=Serializer), "registered")
        assert worker.queue_names() == [f"feedback-1-{number}" for number in range(settings.partitions)]
        assert worker.last_heartbeat is not None
        assert (datetime.now(UTC) - worker.last_heartbeat).total_seconds() < 60
        (queue,) = Queue.all(connection=redis_client, serializer=Serializer)
        assert queue.name == stock_queue(redis_client, settings, SESSION).name
        assert Worker.all(queue=queue, serializer=Serializer) == [worker]
        shown = rq(settings, "info", "--raw")
        assert f"queue {queue.name} 0" in shown
        assert f"worker {worker.name} " in shown
    assert Worker.all(connection=redis_client, serializer=Serializer) == [], "a stopped worker is still listed"


def test_worker_is_listed_again_after_the_server_forgot_it(
    settings: Settings, redis_client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.rq_worker._HEARTBEAT_S", 0.05)
    with serving(settings, projector=False):
        wait_until(lambda: Worker.all(connection=redis_client, serializer=Serializer), "registered")
        redis_client.flushall()
        wait_until(lambda: Worker.all(connection=redis_client, serializer=Serializer), "registered again")


def test_fetched_job_has_the_answer(
    settings: Settings, client: FeedbackClient, queue: Queue, redis_client: Redis
) -> None:
    command = put_command(SESSION, "m1", note="Good ✓")
    with serving(settings, projector=False):
        result = client.submit(request_of(command)).result()
    job = fetch(redis_client, command.command_id)
    assert job.return_value() == msgspec.to_builtins(result)
    assert job.get_status() is JobStatus.FINISHED
    latest = job.latest_result()
    assert latest is not None
    assert (latest.type, latest.return_value) == (Result.Type.SUCCESSFUL, job.return_value())
    assert latest.worker_name
    assert job.func_name == FUNCTION
    assert job.args[0]["note"] == "Good ✓"
    assert (job.origin, job.description) == (queue.name, "feedback put")
    assert job.enqueued_at is not None
    assert job.ended_at is not None
    assert job.timeout, "RQ's forking worker reckons with a timeout"
    registry = FinishedJobRegistry(queue=queue)
    assert registry.get_job_ids() == [command.command_id]
    assert command.command_id not in failed_registry(redis_client, partition_of(settings, SESSION))


def test_business_refusal_is_a_finished_job(settings: Settings, client: FeedbackClient, redis_client: Redis) -> None:
    command = put_command(SESSION, "no such message")
    with serving(settings, projector=False):
        client.submit(request_of(command)).result()
    job = fetch(redis_client, command.command_id)
    assert job.get_status() is JobStatus.FINISHED
    assert job.return_value()["error"]["code"] == "target-not-found"


def fail_once(settings: Settings, client: FeedbackClient) -> str:
    """A command that failed on a corrupt log, which is mended by now; its id."""
    command = put_command(SESSION, "m1")
    with damaged_log(settings, SESSION), pytest.raises(LogCorrupt):
        client.submit(request_of(command)).result()
    return command.command_id


def test_failure_is_listed_with_its_reason(settings: Settings, client: FeedbackClient, redis_client: Redis) -> None:
    with serving(settings, projector=False):
        command_id = fail_once(settings, client)
    job = fetch(redis_client, command_id)
    assert job.get_status() is JobStatus.FAILED
    assert failed_registry(redis_client, partition_of(settings, SESSION)).get_job_ids() == [command_id]
    latest = job.latest_result()
    assert latest is not None
    assert latest.type is Result.Type.FAILED
    assert latest.exc_string is not None
    assert "LogCorrupt" in latest.exc_string
    with pytest.warns(DeprecationWarning, match="exc_info"):
        assert job.exc_info == latest.exc_string
    assert job.return_value() is None


@pytest.mark.parametrize("way", ["rq requeue", "rq requeue --all", "Job.requeue", "registry, at front"])
def test_requeued_command_is_applied_and_answers_anew(
    settings: Settings, client: FeedbackClient, queue: Queue, redis_client: Redis, way: str
) -> None:
    """Who waits for it gets the new answer, though the old failure still stands in the job's results."""
    registry = failed_registry(redis_client, partition_of(settings, SESSION))
    with serving(settings, projector=False):
        command_id = fail_once(settings, client)
    options = ("--queue", queue.name, "--serializer", "feedback.wire.Serializer")
    match way:
        case "rq requeue":
            rq(settings, "requeue", *options, command_id)
        case "rq requeue --all":
            rq(settings, "requeue", *options, "--all")
        case "Job.requeue":
            fetch(redis_client, command_id).requeue()
        case _:
            registry.requeue(command_id, at_front=True)
    assert queue.get_job_ids() == [command_id]
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(client.result_of, command_id)
        with serving(settings, projector=False):
            result = waiting.result()
    assert result.ok
    assert result.revision == 1
    job = fetch(redis_client, command_id)
    assert job.get_status() is JobStatus.FINISHED
    assert job.return_value() == msgspec.to_builtins(result)
    assert results_of(redis_client, command_id) == [b"2", b"1"]
    assert registry.get_job_ids() == []


def test_worker_takes_what_was_requeued_while_it_idles(
    settings: Settings, client: FeedbackClient, redis_client: Redis
) -> None:
    """RQ rings no bell of ours; the worker finds it by itself."""
    with serving(settings, projector=False):
        command_id = fail_once(settings, client)
        fetch(redis_client, command_id).requeue()
        assert client.result_of(command_id).ok


def test_requeued_command_that_fails_again_says_so(
    settings: Settings, client: FeedbackClient, redis_client: Redis
) -> None:
    with serving(settings, projector=False):
        command_id = fail_once(settings, client)
        with damaged_log(settings, SESSION):
            fetch(redis_client, command_id).requeue()
            with pytest.raises(LogCorrupt):
                client.result_of(command_id)
            wait_until(lambda: results_of(redis_client, command_id) == [b"2", b"2"], "failed twice")
    assert failed_registry(redis_client, partition_of(settings, SESSION)).get_job_ids() == [command_id]


def test_rqs_housekeeping_keeps_what_is_ours(
    settings: Settings, client: FeedbackClient, queue: Queue, redis_client: Redis
) -> None:
    """Entries go when they have expired, by RQ's cleaning or by our own, and not before."""
    failed = failed_registry(redis_client, partition_of(settings, SESSION))
    with serving(settings, projector=False):
        failed_id = fail_once(settings, client)
        done = put_command(SESSION, "m2")
        client.submit(request_of(done)).result()
        clean_registries(queue)
        assert failed.get_job_ids() == [failed_id]
        assert FinishedJobRegistry(queue=queue).get_job_ids() == [done.command_id]
        redis_client.zadd(failed.key, {"long gone": 1})
        client.put(SESSION, "m3", "negative")
        assert failed.get_job_ids(cleanup=False) == [failed_id], "an acknowledgement drops what has expired"
    failed.cleanup(timestamp=datetime.now(UTC).timestamp() + 2 * settings.failure_ttl)
    assert failed.get_job_ids(cleanup=False) == []


def test_cancelled_command_is_never_applied(
    settings: Settings, client: FeedbackClient, queue: Queue, redis_client: Redis
) -> None:
    commands = [put_command(SESSION, "m1"), put_command(SESSION, "m2")]
    client.submit_many([request_of(command) for command in commands])
    fetch(redis_client, commands[0].command_id).cancel()
    with serving(settings, projector=False):
        later = client.result_of(commands[1].command_id)
    assert later.revision == 1, "the cancelled one took effect"
    assert fetch(redis_client, commands[0].command_id).get_status() is JobStatus.CANCELED
    assert CanceledJobRegistry(queue=queue).get_job_ids() == [commands[0].command_id]


def test_deleted_command_is_never_applied_and_its_id_is_free_again(
    settings: Settings, client: FeedbackClient, redis_client: Redis
) -> None:
    command = put_command(SESSION, "m1")
    client.submit(request_of(command))
    fetch(redis_client, command.command_id).delete()
    assert not Job.exists(command.command_id, connection=redis_client)
    with serving(settings):
        with pytest.raises(CommandUnknown):
            client.result_of(command.command_id)
        assert client.put(SESSION, "m2", "positive").revision == 1
        assert client.submit(request_of(command)).result().revision == 2


def test_emptied_queue_drops_what_waited_and_nothing_else(
    settings: Settings, client: FeedbackClient, queue: Queue, redis_client: Redis
) -> None:
    tickets = client.submit_many([Put(SESSION, "m1", "positive"), Put(SESSION, "m2", "positive")])
    assert queue.count == 2
    assert queue.empty() == 2
    with serving(settings, projector=False):
        assert client.put(SESSION, "m3", "positive").revision == 1
    assert not any(Job.exists(ticket.command_id, connection=redis_client) for ticket in tickets)


def test_command_enqueued_by_rqs_api_is_processed(
    settings: Settings, client: FeedbackClient, queue: Queue, redis_client: Redis
) -> None:
    """Also while the worker idles: no bell of ours is rung."""
    first, second = put_command(SESSION, "m1"), put_command(SESSION, "m2")
    enqueue_by_rq(queue, first)
    with serving(settings, projector=False):
        assert client.result_of(first.command_id).revision == 1
        wait_until(lambda: has_nothing_waiting(redis_client, partition_of(settings, SESSION)), "idle")
        job = enqueue_by_rq(queue, second)
        result = client.result_of(second.command_id)
    assert result.revision == 2
    job.refresh()
    assert job.return_value() == msgspec.to_builtins(result)
    assert job.get_status() is JobStatus.FINISHED
