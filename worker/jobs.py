"""The one function that RQ jobs of this system name. Any stock RQ worker may call it."""

import contextlib
import functools
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
        runtime = _runtime(load_settings({}, os.environ), job.connection)
        command = command_from_members(members)
        if command.command_id != job.id:
            raise InvalidRequest("$.commandId", "is not the job's id")
        event = _applied(runtime, command)
    except FeedbackError as error:
        # RQ keeps only a traceback; this is what the client raises from.
        job.connection.hset(keys.job(job.id), "failure", encode_failure(failure_of(error)))
        raise
    job.connection.hset(keys.job(job.id), "revision", event.revision)
    return msgspec.to_builtins(result_of(event))


def _applied(runtime: Runtime, command: Command) -> Event:
    try:
        return apply_one(runtime, command)
    except RedisError as error:
        raise QueueUnavailable(f"Redis: {error}") from error


_open = contextlib.ExitStack()
"""Closed with the process: a stock worker tells its jobs nothing of its end."""


@functools.lru_cache(maxsize=1)
def _runtime(settings: Settings, redis: Redis) -> Runtime:
    return _open.enter_context(open_runtime(settings, connection.like(redis)))
