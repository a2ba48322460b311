"""The client for hosts that run threads."""

import functools
import time
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from redis import Redis
from redis.exceptions import RedisError

from feedback import connection
from feedback.calls import Blocking, Call, Flow, wall_clock_ms
from feedback.errors import ShuttingDown
from feedback.flows import MAX_QUEUED, Submitted
from feedback.identities import SessionIdentities
from feedback.lines import Lines
from feedback.operations import DEFAULT_TIMEOUT_S, Operations
from feedback.requests import Request
from feedback.results import Result

P = ParamSpec("P")
T = TypeVar("T")


def _run(
    operation: Callable[Concatenate[Operations, P], Flow[T]],
) -> Callable[Concatenate["FeedbackClient", P], T]:
    """The operation as a method that runs it to its end."""

    @functools.wraps(operation)
    def method(self: "FeedbackClient", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._drive(operation(self._operations, *args, **kwargs))

    return method


class Ticket:
    """A submitted command: its id, and a way to its answer."""

    def __init__(self, settle: Callable[[Submitted, float], Result], submitted: Submitted) -> None:
        self._settle = settle
        self._submitted = submitted

    @property
    def command_id(self) -> str:
        """The idempotency key: with it anyone can ask for the answer again."""
        return self._submitted.command_id

    def result(self, timeout: float = DEFAULT_TIMEOUT_S) -> Result:
        """Wait for the answer, without polling.

        Raises:
            ResultTimeout: none came within `timeout` seconds; the command may still be applied.
            FeedbackError: the command was refused or failed (the contract's typed infrastructure failures).
        """
        return self._settle(self._submitted, timeout)

    def __repr__(self) -> str:
        return f"Ticket({self.command_id})"


class FeedbackClient:
    """Enqueues feedback commands and reads feedback. Safe to share between threads; use as a context manager.

    Results are the contract's (`feedback.results`): a conflict or a missing message is a value, not an
    exception. Exceptions are infrastructure failures (`feedback.errors`).
    """

    def __init__(
        self,
        redis: Redis,
        *,
        logs: SessionIdentities | None = None,
        host: str | None = None,
        max_queued: int = MAX_QUEUED,
        clock_ms: Callable[[], int] = wall_clock_ms,
    ) -> None:
        """Use the server of an existing redis-py client, which stays the caller's.

        `logs`, for a host that sees the log root (`persistence.session_log.SessionLogs(root)`): lists are then read
        from the cache, in one round trip, wherever that is certain to be current; the projector is asked for the rest.
        `host` names the host on which the logs of this client's Sessions lie (docs/agents.md): for a system whose
        workers and projector do not see them.
        `max_queued` is the length of a partition's queue past which commands are refused (`QueueFull`);
        deadlines are counted from `clock_ms`, milliseconds since the Unix epoch.
        """
        self._redis = connection.like(redis)
        self._lines = Lines(self._redis)
        self._operations = Operations(
            block_s=connection.BLOCK_S, max_queued=max_queued, clock_ms=clock_ms, logs=logs, host=host
        )
        self._closed = False

    @classmethod
    def from_url(
        cls, url: str, *, logs: SessionIdentities | None = None, host: str | None = None, max_queued: int = MAX_QUEUED
    ) -> Self:
        """Connect as `feedback.connection.connect` does; nothing is sent until the first call.

        Raises:
            QueueUnavailable: the URL is not one.
            InvalidRequest: `host` is no host's name.
        """
        return cls(connection.connect(url), logs=logs, host=host, max_queued=max_queued)

    put = _run(Operations.put)
    delete = _run(Operations.delete)
    list = _run(Operations.list)
    result_of = _run(Operations.result_of)

    def submit(self, command: Request, *, timeout: float = DEFAULT_TIMEOUT_S, durable: bool = False) -> Ticket:
        """Enqueue a command without waiting for its answer; `timeout` bounds the enqueueing. Raises as `put`."""
        (ticket,) = self.submit_many((command,), timeout=timeout, durable=durable)
        if ticket._submitted.error is not None:  # noqa: SLF001 - a single refusal is said at once
            raise ticket._submitted.error  # noqa: SLF001
        return ticket

    def submit_many(
        self, commands: Iterable[Request], *, timeout: float = DEFAULT_TIMEOUT_S, durable: bool = False
    ) -> "tuple[Ticket, ...]":
        """Enqueue commands in order, in few round trips. One that was refused raises at its ticket's `result`.

        `durable`: return only when the server has put them on its own stable storage (`WAITAOF`: Redis 7.2, Valkey 8,
        with the append-only file on). Otherwise a server that loses its memory may lose what nobody was answered for.

        Raises:
            InvalidRequest: one of them is malformed; none was enqueued.
            QueueUnavailable: the server did not take all of them in time, or not durably; sending them again by
                its `command_ids` is safe.
        """
        submitted = self._drive(self._operations.submit(commands, timeout, durable=durable))
        return tuple(Ticket(self._settle, one) for one in submitted)

    def close(self) -> None:
        """Release the connections. Later calls raise `ShuttingDown`."""
        self._closed = True
        self._lines.close()
        self._redis.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _settle(self, submitted: Submitted, timeout: float) -> Result:
        return self._drive(self._operations.settle(submitted, timeout))

    def _send(self, call: Call) -> Any:
        replies = self._lines.send(call.args, *call.then)
        return replies if call.then else replies[0]

    def _drive(self, flow: Flow[T]) -> T:
        if self._closed:
            raise ShuttingDown("this client is closed")
        try:
            step = next(flow)
            while True:
                if isinstance(step, Call):
                    try:
                        reply = self._send(step)
                    except RedisError as error:
                        step = flow.throw(error)
                    else:
                        step = flow.send(reply)
                elif isinstance(step, Blocking):
                    step = flow.send(step.work())
                else:
                    time.sleep(step.seconds)
                    step = next(flow)
        except StopIteration as end:
            answer: T = end.value
            return answer
