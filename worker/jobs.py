"""The one function that RQ jobs of this system name. Any stock RQ worker may call it."""

import contextlib
import os
from typing import Any

import msgspec
from redis import Redis
from redis.exceptions import RedisError
from rq import get_current_job

from feedback import connection, keys
from feedback.commands import Command, command_from_members
from feedback.errors import FeedbackError, InvalidRequest, QueueUnavailable
from feedback.events import Event, result_of
from feedback.failures import encode_failure, failure_of
from feedback.settings import Settings, load_settings
from worker.runtime import Runtime, open_runtime
from worker.single import apply_one


def apply_command(members: object) -> Any:
    """Apply one command under its partition's lease and fence; the contract's result, as plain members.

    Runs in a stock RQ worker (`rq worker --serializer feedback.wire.Serializer`), or in the caller's process
    with `is_async=False`. Settings come from the environment (`FEEDBACK_*`), the server from the job.

    Raises:
        FeedbackError: the command failed; RQ moves it to the failed registry.
    """
    job = get_current_job()
    if job is None:
        raise InvalidRequest("$", "this function runs as an RQ job")
    try:
        runtime = _opened.get(load_settings({}, os.environ), job.connection)
        event = _applied(runtime, _command_of(job.id, members))
    except Exception as error:
        _note_failure(job.connection, keys.job(job.id), error)
        raise
    job.connection.hset(keys.job(job.id), "revision", event.revision)
    return msgspec.to_builtins(result_of(event))


def _command_of(job_id: str, members: object) -> Command:
    command = command_from_members(members)
    if command.command_id != job_id:
        raise InvalidRequest("$.commandId", "is not the job's id")
    return command


def _applied(runtime: Runtime, command: Command) -> Event:
    try:
        return apply_one(runtime, command)
    except RedisError as error:
        raise QueueUnavailable(f"Redis: {error}") from error


def _note_failure(redis: Redis, job: str, error: Exception) -> None:
    """What RQ does not keep: the failure that the client raises from, and when it happened first (`dlq` retries in
    that order)."""
    seconds, microseconds = redis.time()
    with redis.pipeline() as pipeline:
        if isinstance(error, FeedbackError):
            pipeline.hset(job, "failure", encode_failure(failure_of(error)))
        pipeline.hsetnx(job, "first_failed", f"{seconds}{microseconds:06d}-0")
        pipeline.execute()


class _Opened:
    """The runtime of the last job, kept for the next: a stock worker tells its jobs nothing of its end."""

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self._runtime: Runtime | None = None
        self._of: tuple[Settings, Redis] | None = None

    def get(self, settings: Settings, redis: Redis) -> Runtime:
        """What these settings and this server need; what was open for others is closed."""
        if self._runtime is None or self._of != (settings, redis):
            self.close()
            own = self._stack.enter_context(contextlib.closing(connection.like(redis)))
            self._runtime = self._stack.enter_context(open_runtime(settings, own))
            self._of = (settings, redis)
        return self._runtime

    def close(self) -> None:
        """Close what is open. Repeatable; `get` opens it again."""
        self._runtime, self._of = None, None
        self._stack.close()


_opened = _Opened()
