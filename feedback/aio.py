"""The client for hosts that run asyncio: the operations of `feedback.client`, awaited."""

import asyncio
import functools
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from redis import asyncio as aio
from redis.exceptions import RedisError

from feedback import connection
from feedback.calls import Blocking, Call, Flow, wall_clock_ms
from feedback.errors import ShuttingDown
from feedback.flows import MAX_QUEUED, Submitted
from feedback.identities import SessionIdentities
from feedback.lines import AsyncLines
from feedback.operations import DEFAULT_TIMEOUT_S, Operations
from feedback.requests import Request
from feedback.results import Result

P = ParamSpec("P")
T = TypeVar("T")


def _awaited(
    operation: Callable[Concatenate[Operations, P], Flow[T]],
) -> Callable[Concatenate["AsyncFeedbackClient", P], Coroutine[Any, Any, T]]:
    """The operation as a coroutine method."""

    @functools.wraps(operation)
    async def method(self: "AsyncFeedbackClient", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._drive(operation(self._operations, *args, **kwargs))

    return method


class AsyncTicket:
    """A submitted command: its id, and a way to its answer."""

    def __init__(self, settle: Callable[[Submitted, float], Awaitable[Result]], submitted: Submitted) -> None:
        self._settle = settle
        self._submitted = submitted

    @property
    def command_id(self) -> str:
        """The idempotency key: with it anyone can ask for the answer again."""
        return self._submitted.command_id

    async def result(self, timeout: float = DEFAULT_TIMEOUT_S) -> Result:
        """Wait for the answer. Raises as `feedback.client.Ticket.result`."""
        return await self._settle(self._submitted, timeout)

    def __repr__(self) -> str:
        return f"AsyncTicket({self.command_id})"


class AsyncFeedbackClient:
    """`FeedbackClient` for asyncio: the same arguments, results and exceptions; an async context manager."""

    def __init__(
        self,
        redis: aio.Redis,
        *,
        logs: SessionIdentities | None = None,
        host: str | None = None,
        max_queued: int = MAX_QUEUED,
        clock_ms: Callable[[], int] = wall_clock_ms,
    ) -> None:
        """Use the server of an existing redis-py asyncio client, which stays the caller's.

        `logs` as `FeedbackClient`; a log that must be read is read in a thread.
        """
        self._redis = connection.like_async(redis)
        self._lines = AsyncLines(self._redis)
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
        return cls(connection.connect_async(url), logs=logs, host=host, max_queued=max_queued)

    put = _awaited(Operations.put)
    delete = _awaited(Operations.delete)
    list = _awaited(Operations.list)
    result_of = _awaited(Operations.result_of)

    async def submit(
        self, command: Request, *, timeout: float = DEFAULT_TIMEOUT_S, durable: bool = False
    ) -> AsyncTicket:
        """Enqueue a command without waiting for its answer; `timeout` bounds the enqueueing. Raises as `put`."""
        (ticket,) = await self.submit_many((command,), timeout=timeout, durable=durable)
        if ticket._submitted.error is not None:  # noqa: SLF001 - a single refusal is said at once
            raise ticket._submitted.error  # noqa: SLF001
        return ticket

    async def submit_many(
        self,
        commands: Iterable[Request],
        *,
        timeout: float = DEFAULT_TIMEOUT_S,
        durable: bool = False,
    ) -> "tuple[AsyncTicket, ...]":
        """Enqueue commands in order, in few round trips; as `FeedbackClient.submit_many`."""
        submitted = await self._drive(self._operations.submit(commands, timeout, durable=durable))
        return tuple(AsyncTicket(self._settle, one) for one in submitted)

    async def close(self) -> None:
        """Release the connections. Later calls raise `ShuttingDown`."""
        self._closed = True
        await self._lines.close()
        await self._redis.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def _settle(self, submitted: Submitted, timeout: float) -> Result:
        return await self._drive(self._operations.settle(submitted, timeout))

    async def _send(self, call: Call) -> Any:
        replies = await self._lines.send(call.args, *call.then)
        return replies if call.then else replies[0]

    async def _drive(self, flow: Flow[T]) -> T:
        if self._closed:
            raise ShuttingDown("this client is closed")
        try:
            step = next(flow)
            while True:
                if isinstance(step, Call):
                    try:
                        reply = await self._send(step)
                    except RedisError as error:
                        step = flow.throw(error)
                    else:
                        step = flow.send(reply)
                elif isinstance(step, Blocking):
                    step = flow.send(await asyncio.to_thread(step.work))
                else:
                    await asyncio.sleep(step.seconds)
                    step = next(flow)
        except StopIteration as end:
            answer: T = end.value
            return answer
