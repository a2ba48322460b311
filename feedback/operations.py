"""The client's operations with their arguments and promises, written once for both clients.

Each is a flow (`feedback.flows`): `FeedbackClient` runs it to its end, `AsyncFeedbackClient` awaits it.
"""

import time
from collections.abc import Callable, Iterable, Sequence

from feedback import tracing
from feedback.calls import Flow
from feedback.flows import Flows, Submitted
from feedback.hosts import check_host
from feedback.identities import SessionIdentities
from feedback.model import Rating
from feedback.requests import Delete, ExpiresAt, Put, Request, check_timeout
from feedback.results import Result

DEFAULT_TIMEOUT_S = 30.0


class Operations:
    """What a client can do. `timeout` is in seconds everywhere, and bounds the whole call."""

    def __init__(
        self,
        *,
        block_s: float,
        max_queued: int,
        clock_ms: Callable[[], int],
        logs: SessionIdentities | None,
        host: str | None,
    ) -> None:
        if host is not None:
            check_host("host", host)
        self._flows = Flows(block_s=block_s, max_queued=max_queued, clock_ms=clock_ms, logs=logs, host=host)

    def put(
        self,
        session_id: str,
        message_id: str,
        rating: Rating,
        *,
        note: str | None = None,
        if_version: str | None = None,
        actor: str | None = None,
        command_id: str | None = None,
        expires_at: ExpiresAt = None,
        timeout: float = DEFAULT_TIMEOUT_S,
    ) -> Flow[Result]:
        """Rate one message and wait for the committed answer.

        `if_version` is the version of the item that the caller has seen, None for "create only".

        Raises:
            InvalidRequest: a member is malformed; nothing was sent.
            QueueUnavailable, QueueFull: the command was not accepted in time.
            ResultTimeout: no answer in time; the command may still be applied, ask again by its id.
            FeedbackError: the command failed; the contract's typed failure.
        """
        request = Put(session_id, message_id, rating, note, if_version, actor, command_id, expires_at)
        return (yield from self._mutate(request, timeout))

    def delete(
        self,
        session_id: str,
        message_id: str,
        *,
        if_version: str | None,
        actor: str | None = None,
        command_id: str | None = None,
        expires_at: ExpiresAt = None,
        timeout: float = DEFAULT_TIMEOUT_S,
    ) -> Flow[Result]:
        """Remove the feedback on one message and wait for the committed answer. Raises as `put`."""
        request = Delete(session_id, message_id, if_version, actor, command_id, expires_at)
        return (yield from self._mutate(request, timeout))

    def list(self, session_id: str, *, at_least: int | None = None, timeout: float = DEFAULT_TIMEOUT_S) -> Flow[Result]:
        """A Session's feedback in order of first creation, never older than what anybody was told before the call.

        `at_least` is a revision (`result.revision`) that the answer must have reached.

        Raises:
            InvalidRequest: an argument is malformed.
            QueueUnavailable: no projector answered in time.
            FeedbackError: the Session's log or the store could not answer.
        """
        return (yield from self._flows.list_feedback(session_id, at_least, check_timeout(timeout)))

    def result_of(self, command_id: str, *, timeout: float = DEFAULT_TIMEOUT_S) -> Flow[Result]:
        """The answer to a command that was submitted before, by anyone; waits while it is still under way.

        Raises:
            CommandUnknown: it is neither waiting nor recorded.
            ResultTimeout, FeedbackError: as `put`.
        """
        return (yield from self._flows.outcome(command_id, check_timeout(timeout)))

    def submit(self, commands: Iterable[Request], timeout: float, *, durable: bool) -> Flow["tuple[Submitted, ...]"]:
        """Check all, then enqueue in order."""
        deadline = time.monotonic() + check_timeout(timeout)
        return tuple((yield from self._send(tuple(commands), deadline, durable=durable)))

    def settle(self, submitted: Submitted, timeout: float) -> Flow[Result]:
        """The answer to one submitted command: known already, or waited for."""
        seconds = check_timeout(timeout)
        if submitted.error is not None:
            raise submitted.error
        if submitted.result is not None:
            return submitted.result
        return (yield from self._flows.wait(submitted.command_id, seconds))

    def _send(
        self, requests: tuple[Request, ...], deadline: float, *, durable: bool = False
    ) -> Flow[Sequence[Submitted]]:
        """Submit, as part of the caller's trace, if there is one."""
        if not tracing.is_on():
            return (yield from self._flows.submit(requests, deadline, durable=durable))
        with tracing.sending(len(requests)) as traceparent:
            return (yield from self._flows.submit(requests, deadline, durable=durable, traceparent=traceparent))

    def _mutate(self, request: Request, timeout: float) -> Flow[Result]:
        deadline = time.monotonic() + check_timeout(timeout)
        submitted = yield from self._send((request,), deadline)
        return (yield from self.settle(submitted[0], max(0.0, deadline - time.monotonic())))
