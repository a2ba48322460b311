"""The access rights of `docs/acl.md`, on a real server: each role can do its work, and no more."""

import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from uuid import uuid4

import msgspec
import pytest
from redis import Redis
from redis.exceptions import NoPermissionError
from rq import Queue

from app.embedded import DURABLE, EmbeddedServer
from app.metrics.exposing import Exposition
from feedback import FeedbackClient, Item, ItemList, LiveSessions, Ok, QueueUnavailable, SessionIdentity, keys
from feedback.settings import Settings
from feedback.wire import Serializer, encode_job
from persistence.session_log import SessionLogs
from tests.acceptance.command_line import feedback
from tests.harness import CREATED_AT, HOST, settings_for, wait_until, write_session
from tests.integration.rq_jobs import partition_of, put_command
from tests.processes import children

pytestmark = [pytest.mark.server, pytest.mark.process]

PAGE = Path(__file__).parents[2] / "docs/acl.md"
RULES = {words[1]: words[2:] for words in map(str.split, re.findall(r"^user .*$", PAGE.read_text(), re.MULTILINE))}
FOREIGN_KEY = "somebody:elses"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Redis]:
    """A durable server with the page's users, and the default user's client."""
    embedded = EmbeddedServer(tmp_path_factory.mktemp("valkey"), DURABLE)
    embedded.start()
    try:
        with Redis.from_url(embedded.url) as admin:
            for user, rules in RULES.items():
                admin.execute_command("ACL", "SETUSER", user, *rules)
            yield admin
    finally:
        embedded.stop()


def url(server: Redis, role: str) -> str:
    port = server.connection_pool.connection_kwargs["port"]
    return f"redis://{role}:{role}-password@127.0.0.1:{port}/0"


@pytest.fixture(scope="module")
def settings(server: Redis, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    """A system whose worker and projector run under their own users."""
    home = tmp_path_factory.mktemp("system")
    settings = settings_for(url(server, "worker"), home)
    with ExitStack() as running:
        running.enter_context(children("worker", settings=settings, logs=home))
        projector = settings_for(url(server, "projector"), home)
        running.enter_context(children("projector", settings=projector, logs=home))
        wait_until(lambda: server.hlen(keys.owners(1)) == settings.partitions, "the worker serves")
        yield settings


def refusals(server: Redis) -> list[Mapping[bytes, object]]:
    """What users were refused since the last look."""
    found: list[Mapping[bytes, object]] = server.execute_command("ACL", "LOG")
    server.execute_command("ACL", "LOG", "RESET")
    return found


def test_the_whole_way_of_a_command_needs_no_more_rights(server: Redis, settings: Settings) -> None:
    """Put, put again, list, delete as `host`: nobody is refused anything on the way."""
    write_session(settings, "s", "m")
    command_id = str(uuid4())
    with FeedbackClient.from_url(url(server, "host")) as host:
        stored = host.put("s", "m", "positive", note="fine", command_id=command_id)
        server.hset(keys.job(command_id), "status", "queued")  # as if the server had lost the rest
        assert host.put("s", "m", "positive", note="fine", command_id=command_id) == stored
        assert isinstance(stored, Ok)
        assert isinstance(stored.value, Item)
        logs = SessionLogs(Path(settings.sessions))
        with FeedbackClient.from_url(url(server, "host"), logs=logs) as seeing:
            assert seeing.list("s") == Ok(value=ItemList(items=(stored.value,)))
        assert host.list("s", at_least=stored.revision) == Ok(value=ItemList(items=(stored.value,)))
        assert host.delete("s", "m", if_version=stored.value.version).ok
    assert refusals(server) == []


def test_an_agent_answers_for_its_host_and_no_other(server: Redis, settings: Settings, tmp_path: Path) -> None:
    """Put and list of a Session elsewhere, its owner's flush included, without a refusal on the way."""
    agent = msgspec.structs.replace(settings, redis_url=url(server, "agent"), host=HOST, sessions=str(tmp_path))

    def flush() -> None:
        write_session(agent, "elsewhere", "m")

    identity = SessionIdentity(created_at=CREATED_AT, cwd="/w")
    with (
        children("agent", settings=agent, logs=tmp_path) as (process,),
        LiveSessions.from_url(url(server, "host")) as live,
        FeedbackClient.from_url(url(server, "host"), host=HOST) as client,
    ):
        wait_until(lambda: server.exists(keys.agent(HOST)), "the agent serves")
        with live.register("elsewhere", identity, flush):
            stored = client.put("elsewhere", "m", "positive")
        assert isinstance(stored, Ok)
        assert isinstance(stored.value, Item)
        assert client.list("elsewhere") == Ok(value=ItemList(items=(stored.value,)))
        assert process.stop(settings.shutdown_grace)
        assert not server.exists(keys.agent(HOST)), "who leaves says so"
    assert refusals(server) == []
    with Redis.from_url(url(server, "agent")) as other, pytest.raises(NoPermissionError):
        other.hset(keys.agent("another"), "agent", "me")
    refusals(server)


def test_a_projector_may_read_all_that_its_metrics_tell(server: Redis, settings: Settings) -> None:
    refusals(server)
    projector = msgspec.structs.replace(settings, redis_url=url(server, "projector"))
    with closing(Exposition(projector, "projector", has_store=True, has_system=True)) as exposition:
        told = exposition.metrics("").body.decode()
        assert exposition.readyz("").status == 200
    assert 'feedback_partitions{owned="yes"} 4.0' in told
    assert 'feedback_system_readable{part="store"} 1.0' in told
    assert refusals(server) == []


def test_a_reader_lists_and_cannot_put(server: Redis, settings: Settings) -> None:
    write_session(settings, "read", "m")
    with FeedbackClient.from_url(url(server, "reader")) as reader:
        assert not reader.list("no such Session").ok
    with FeedbackClient.from_url(url(server, "reader"), logs=SessionLogs(Path(settings.sessions))) as reader:
        assert reader.list("read").ok
        assert refusals(server) == []
        with pytest.raises(QueueUnavailable):
            reader.put("read", "m", "positive", timeout=1)
    refusals(server)


@pytest.mark.parametrize("role", RULES)
def test_no_role_reaches_other_keys_or_the_configuration(server: Redis, role: str) -> None:
    with Redis.from_url(url(server, role)) as client:
        for command in (("GET", FOREIGN_KEY), ("DEL", FOREIGN_KEY), ("CONFIG", "GET", "*"), ("FLUSHALL",)):
            with pytest.raises(NoPermissionError):
                client.execute_command(*command)
    refusals(server)


def test_an_operator_sees_and_requeues(server: Redis, settings: Settings) -> None:
    """`status`, `doctor`, `rebuild`, `partitions` and RQ's own tools, without a refusal."""
    operator = {
        "FEEDBACK_REDIS_URL": url(server, "operator"),
        "FEEDBACK_SIDECAR_URL": settings.sidecar_url,
        "FEEDBACK_SESSIONS": settings.sessions,
    }
    assert feedback("status", env=operator).code == 0
    doctor = feedback("doctor", env=operator)
    assert doctor.code == 0, doctor.out
    for words in (("rebuild",), ("partitions",), ("status", "--json")):
        assert feedback(*words, env=operator).code == 0, words
    rq = subprocess.run(
        [sys.executable, "-m", "rq.cli", "info", "--url", url(server, "operator")],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "feedback-1-" in rq.stdout
    with Redis.from_url(url(server, "operator")) as client:
        queue = Queue("feedback-1-0", connection=client, serializer=Serializer)
        job = queue.enqueue("os.getcwd")
        wait_until(lambda: job.id in queue.failed_job_registry.get_job_ids(), "the foreign job fails")
        queue.failed_job_registry.requeue(job.id)
        wait_until(lambda: job.id in queue.failed_job_registry.get_job_ids(), "it fails again")
    assert feedback("dlq", "list", env=operator).out.count(job.id) == 1
    assert feedback("dlq", "show", job.id, env=operator).code == 0
    assert feedback("dlq", "drop", job.id, env=operator).code == 0
    assert refusals(server) == []


def test_an_operator_retries(server: Redis, settings: Settings) -> None:
    """A failed command, back to its queue and its owner's bell."""
    write_session(settings, "failed", "m")
    command = put_command("failed", "m")
    server.hset(keys.job(command.command_id), items=["data", encode_job(command), "status", "failed"])
    server.zadd(keys.failed_registry(partition_of(settings, "failed")), {command.command_id: 2e10})
    answer = feedback("dlq", "retry", command.command_id, env={"FEEDBACK_REDIS_URL": url(server, "operator")})
    assert answer.code == 0, answer
    with FeedbackClient.from_url(url(server, "host")) as host:
        assert host.result_of(command.command_id).ok
    assert refusals(server) == []
