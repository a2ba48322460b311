"""Sessions whose barrier fails retryably wait here, in order, while all others go on (DESIGN, "One batch")."""

from collections import deque
from collections.abc import Callable, Iterable

from feedback.errors import FeedbackError
from worker.claims import Claim, Ending, Failed
from worker.core import retry


class _Parked:
    def __init__(self) -> None:
        self.claims: deque[Claim] = deque()
        self.attempts = 0
        self.due_s = 0.0


class ParkingLot:
    """One partition's parked commands: claimed, not finished, tried again with backoff. Times are monotonic seconds."""

    def __init__(self, max_attempts: int, jitter: Callable[[], float]) -> None:
        self._max_attempts = max_attempts
        self._jitter = jitter
        self._sessions: dict[str, _Parked] = {}

    def __len__(self) -> int:
        """Commands that are parked."""
        return sum(len(parked.claims) for parked in self._sessions.values())

    def size(self) -> int:
        """Bytes that they hold."""
        return sum(claim.size for parked in self._sessions.values() for claim in parked.claims)

    def admit(self, claim: Claim) -> bool:
        """Park a newly claimed command behind its Session's earlier ones; False when there are none."""
        parked = self._sessions.get(claim.command.session_id)
        if parked is None:
            return False
        parked.claims.append(claim)
        return True

    def next_due(self) -> float | None:
        """When the next Session is to be tried again."""
        return min((parked.due_s for parked in self._sessions.values()), default=None)

    def due(self, now_s: float) -> list[Claim]:
        """Commands of the Sessions whose time has come; they stay parked until `settle` says how they ended."""
        return [claim for parked in self._sessions.values() if parked.due_s <= now_s for claim in parked.claims]

    def settle(
        self, tried: Iterable[Claim], deferred: Iterable[tuple[Claim, FeedbackError]], now_s: float
    ) -> list[tuple[Claim, Ending]]:
        """Take in what a batch left undone; the commands that were tried too often, with their end.

        `tried` are all claims of the batch, `deferred` those that must wait, both in claim order.
        """
        waiting: dict[str, list[tuple[Claim, FeedbackError]]] = {}
        for claim, error in deferred:
            waiting.setdefault(claim.command.session_id, []).append((claim, error))
        for session_id in {claim.command.session_id for claim in tried} - waiting.keys():
            self._sessions.pop(session_id, None)
        given_up: list[tuple[Claim, Ending]] = []
        for session_id, claims in waiting.items():
            given_up += self._park(session_id, claims, now_s)
        return given_up

    def _park(
        self, session_id: str, claims: list[tuple[Claim, FeedbackError]], now_s: float
    ) -> list[tuple[Claim, Ending]]:
        parked = self._sessions.setdefault(session_id, _Parked())
        if parked.claims and parked.claims[0] is not claims[0][0]:
            parked.attempts = 0  # its first command got through, another one waits now
        parked.claims = deque(claim for claim, _ in claims)
        parked.attempts += 1
        if parked.attempts < self._max_attempts:
            parked.due_s = now_s + retry.delay(parked.attempts, self._jitter())
            return []
        first, error = claims[0]
        parked.claims.popleft()
        parked.attempts, parked.due_s = 0, now_s
        if not parked.claims:
            del self._sessions[session_id]
        return [(first, Failed.of(error))]
