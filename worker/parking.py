"""Sessions that have to wait: for their live owner, their host's agent, or another try after a retryable failure.

Their commands stay claimed, in order, while all other Sessions go on (DESIGN, "One batch"). When they are more than
a worker may hold, each keeps its first one here, and the others are set aside in Redis (`worker.aside`).
"""

import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from msgspec import Struct

from barrier.rules import Answer, FlushNeeded, outcome_of, unanswered
from feedback.agent_desk import Asked, Told
from feedback.agent_desk import unanswered as agent_unanswered
from feedback.errors import FeedbackError
from feedback.evidence import LogQuestion
from feedback.flushing import FlushReply, LiveOwner
from worker.claims import Claim, Ending, Failed
from worker.core import retry
from worker.remote import EvidenceNeeded, OutOfTurn, question_of


class _Parked:
    """One Session's commands: the first `covered` of them may be tried at `due_s`, the rest came later."""

    def __init__(self) -> None:
        self.claims: deque[Claim] = deque()
        self.covered = 0
        self.aside = False
        """Whether more of them are set aside, behind these."""
        self.attempts = 0
        self.failure: FeedbackError | None = None
        self.due_s = 0.0
        self.needs: FlushNeeded | EvidenceNeeded | None = None
        """Who has to be asked, or was."""
        self.request_id: str | None = None
        self.asked: Asked | None = None
        """The request to an agent that is under way."""
        self.answer: Answer | None = None

    def cover(self, most: int) -> None:
        """Let what waits be tried together, up to one batch; but a suspect alone."""
        self.covered = 1 if self.claims and self.claims[0].suspect else min(most, len(self.claims))

    def is_asked(self, request_id: str) -> bool:
        """Whether this request is the one that is under way."""
        return self.request_id == request_id

    def give_up(self) -> None:
        """Nobody answered in time."""
        if self.asked is not None:
            self.answered(agent_unanswered(self.asked))
        elif isinstance(self.needs, FlushNeeded):
            self.answered(unanswered(self.needs.owner))

    def answered(self, answer: Answer) -> None:
        self.answer, self.request_id, self.asked = answer, None, None

    def kept(self) -> int:
        """How many of them cannot be set aside: the first one, and suspects, which nobody would know for such."""
        return max([1, *(place for place, claim in enumerate(self.claims, start=1) if claim.suspect)])


class Due(Struct, frozen=True):
    """Commands to be tried now, and the answers that they waited for."""

    claims: Sequence[Claim]
    answers: dict[str, Answer]


class Excess(Struct, frozen=True):
    """A command to be set aside: behind all others of its Session that are, or before them."""

    claim: Claim
    before: bool


class ParkingLot:
    """One partition's parked commands. Times are monotonic seconds."""

    def __init__(self, max_attempts: int, jitter: Callable[[], float], *, batch_size: int = 256) -> None:
        self._max_attempts = max_attempts
        self._jitter = jitter
        self._batch_size = batch_size
        self._sessions: dict[str, _Parked] = {}
        self._unheld: list[Claim] = []
        self._commands = self._bytes = 0

    def __len__(self) -> int:
        """Commands that are parked here."""
        return self._commands

    def __bool__(self) -> bool:
        """Whether any Session has to wait."""
        return bool(self._sessions)

    @property
    def sessions(self) -> int:
        """Sessions that have to wait. May be asked from any thread."""
        return len(self._sessions)

    def holds(self, session_id: str) -> bool:
        """Whether commands of this Session are parked."""
        return session_id in self._sessions

    def size(self) -> int:
        """Bytes that they hold here."""
        return self._bytes

    def failures(self) -> list[FeedbackError]:
        """Why the Sessions wait that were tried in vain, one failure each."""
        return [parked.failure for parked in self._sessions.values() if parked.failure is not None]

    def admit(self, claim: Claim) -> bool:
        """Park a newly claimed command behind its Session's earlier ones; False when there are none."""
        parked = self._sessions.get(claim.command.session_id)
        if parked is None:
            return False
        if parked.aside:
            self._unheld.append(claim)
        else:
            parked.claims.append(claim)
        self._count(1, claim.size)
        return True

    def excess(self, *, crowded: bool) -> list[Excess]:
        """What is to be set aside now, in this order, and counts no longer as held here.

        Newly admitted commands behind others that were set aside; if it is `crowded`, all that can be.
        """
        excess = [Excess(claim, before=False) for claim in self._unheld]
        self._unheld = []
        for parked in self._sessions.values() if crowded else ():
            kept = parked.kept()
            tail = [parked.claims.pop() for _ in range(len(parked.claims) - kept)]
            parked.covered = min(parked.covered, kept)
            parked.aside = parked.aside or bool(tail)
            excess += [Excess(claim, before=True) for claim in tail]
        for one in excess:
            self._count(-1, -one.claim.size)
        return excess

    def exhausted(self) -> list[str]:
        """Sessions whose commands are all set aside, by their ids: let them `resume`."""
        return [session_id for session_id, parked in self._sessions.items() if not parked.claims]

    def resume(self, session_id: str, claims: Sequence[Claim], *, aside: bool) -> None:
        """Take back an exhausted Session's first commands, to be tried at once; `aside`: whether there are more."""
        parked = self._sessions[session_id]
        parked.claims.extend(claims)
        parked.aside = aside
        for claim in claims:
            self._count(1, claim.size)
        if not (claims or aside):
            del self._sessions[session_id]

    def next_due(self) -> float | None:
        """When the next Session is to be tried again."""
        return min((parked.due_s for parked in self._sessions.values()), default=None)

    def due(self, now_s: float) -> Due:
        """The Sessions whose time has come; they stay parked until `settle` says how they ended."""
        claims: list[Claim] = []
        answers: dict[str, Answer] = {}
        for session_id, parked in self._sessions.items():
            if parked.due_s > now_s:
                continue
            if parked.request_id is not None:
                parked.give_up()
            if parked.answer is not None:
                answers[session_id] = parked.answer
            else:
                parked.cover(self._batch_size)
            claims += (parked.claims[place] for place in range(parked.covered))
        return Due(claims, answers)

    def settle(
        self, tried: Iterable[Claim], deferred: Iterable[tuple[Claim, FeedbackError]], now_s: float
    ) -> list[tuple[Claim, Ending]]:
        """Take in what a batch left undone; the commands that were tried too often, with their end.

        `tried` are all claims of the batch, `deferred` those that must wait, both in claim order.
        """
        waiting: dict[str, list[tuple[Claim, FeedbackError]]] = {claim.command.session_id: [] for claim in tried}
        for claim, error in deferred:
            waiting[claim.command.session_id].append((claim, error))
        given_up: list[tuple[Claim, Ending]] = []
        for session_id, claims in waiting.items():
            given_up += self._settle(session_id, claims, now_s)
        return given_up

    def flushes_needed(self) -> list[LiveOwner]:
        """The owners that have to flush before their Sessions' commands can be tried."""
        return [
            parked.needs.owner
            for parked in self._sessions.values()
            if isinstance(parked.needs, FlushNeeded) and parked.request_id is None and parked.due_s == math.inf
        ]

    def flush_requested(self, session_id: str, request_id: str, patience_until_s: float) -> None:
        """The owner was asked; without an answer by then, the flush has failed."""
        parked = self._sessions[session_id]
        parked.request_id, parked.due_s = request_id, patience_until_s
        # What is claimed from now on may be about messages that this flush does not reach.
        parked.cover(self._batch_size)

    def flush_answered(self, reply: FlushReply, now_s: float) -> None:
        """An owner answered; the commands that waited for it can be tried now."""
        for parked in self._sessions.values():
            if isinstance(parked.needs, FlushNeeded) and parked.is_asked(reply.request_id):
                parked.answered(outcome_of(reply, parked.needs.owner))
                parked.due_s = now_s

    def evidence_needed(self) -> list[tuple[str, LogQuestion]]:
        """Hosts whose agents have to be asked before Sessions' commands can be tried, and what."""
        questions: list[tuple[str, LogQuestion]] = []
        for parked in self._sessions.values():
            if isinstance(parked.needs, EvidenceNeeded) and parked.request_id is None and parked.due_s == math.inf:
                parked.cover(self._batch_size)
                commands = [parked.claims[place].command for place in range(parked.covered)]
                questions.append((parked.needs.host, question_of(parked.needs.host, commands)))
        return questions

    def evidence_requested(self, session_id: str, asked: Asked, now_s: float) -> None:
        """The agent was asked, or is not there, which is known at once."""
        parked = self._sessions[session_id]
        parked.request_id, parked.asked = asked.request_id, asked
        parked.due_s = now_s if asked.absent else asked.until_s

    def evidence_answered(self, told: Told, now_s: float) -> None:
        """An agent answered for one Session; the commands that waited for it can be tried now."""
        parked = self._sessions.get(told.session_id)
        if parked is not None and parked.is_asked(told.request_id):
            parked.answered(told.testimony)
            parked.due_s = now_s

    def _settle(
        self, session_id: str, undone: list[tuple[Claim, FeedbackError]], now_s: float
    ) -> list[tuple[Claim, Ending]]:
        parked = self._sessions.get(session_id) or _Parked()
        first = parked.claims[0] if parked.claims else None
        before, later = parked.claims, list(parked.claims)[parked.covered :]
        parked.claims = deque([*(claim for claim, _ in undone), *later])
        self._count(len(parked.claims) - len(before), _size(parked.claims) - _size(before))
        parked.answer, parked.needs, parked.due_s = None, None, now_s
        if parked.claims and parked.claims[0] is not first:
            parked.attempts = 0  # its first command got through, another one waits now
            parked.failure = None
        given_up = self._defer(parked, undone[0][1], now_s) if undone else []
        if parked.claims or parked.aside:
            self._sessions[session_id] = parked
        else:
            self._sessions.pop(session_id, None)
        return given_up

    def _defer(self, parked: _Parked, error: FeedbackError, now_s: float) -> list[tuple[Claim, Ending]]:
        if isinstance(error, OutOfTurn):
            return []
        if isinstance(error, FlushNeeded | EvidenceNeeded):
            parked.needs, parked.due_s = error, math.inf
            return []
        parked.attempts += 1
        parked.failure = error
        if parked.attempts < self._max_attempts:
            parked.due_s = now_s + retry.delay(parked.attempts, self._jitter())
            return []
        parked.attempts = 0
        given_up = parked.claims.popleft()
        self._count(-1, -given_up.size)
        return [(given_up, Failed.of(error))]

    def _count(self, commands: int, size: int) -> None:
        self._commands += commands
        self._bytes += size


def _size(claims: Iterable[Claim]) -> int:
    return sum(claim.size for claim in claims)
