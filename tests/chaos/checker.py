"""What must hold of a history, given what the store recorded (FAULTS, section 4). Pure, and linear in the history.

The store's records are the claimed linearization: each Session's outcomes in commit order. The checker
replays them through a model of the contract (`tests.chaos.register`), then holds them against what clients
heard and when, and against what is known of the logs and of who committed.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from math import inf
from typing import TypeAlias

import msgspec
from msgspec import Struct

from feedback.events import Event, FeedbackRejected, result_of
from feedback.partitions import PartitionId
from feedback.requests import Delete
from feedback.results import ItemList, Ok, Result, SessionNotFound, TargetNotFound
from tests.chaos.history import Call, History, Mutation, Reading
from tests.chaos.known_logs import LogPeriods, LogState
from tests.chaos.register import Registers

Log: TypeAlias = Mapping[PartitionId, Sequence[tuple[int, Event]]]
"""The store's records: partition -> (sequence, event), ascending."""

Commits: TypeAlias = Iterable[tuple[PartitionId, int, str]]
"""Which worker committed in which epoch of a partition, as each noted for itself."""

HARMLESS = frozenset({"ResultTimeout", "QueueUnavailable", "QueueFull", "StoreUnavailable", "CommandUnknown"})
"""Failures that leave an outcome open; any command may meet them while faults last."""
FINAL = frozenset({"CommandExpired", "CommandIdReused", "InvalidRequest"})
"""Failures that promise that this call had no effect."""


class Checked(Struct):
    """The violations found, in words, how often each invariant was looked at, and how much there was to look at."""

    violations: list[str]
    checks: Counter[str]
    calls: int
    answers: int
    readings: int
    outcomes: int


def check(
    history: History,
    log: Log,
    *,
    logs: LogPeriods | None = None,
    commits: Commits = (),
    broken: Collection[str] = (),
) -> Checked:
    """Hold a history against the store's records; `broken` are the commands over which a worker met a defect."""
    checker = _Checker(history, logs or LogPeriods(), broken)
    for partition in sorted(log):
        checker.partition(partition, log[partition])
    checker.committers(commits)
    for call in history.calls:
        checker.call(call)
    for reading in history.readings:
        checker.shown(reading)
    for reading in history.readings:
        checker.reading(reading)
    return Checked(
        checker.violations,
        checker.checks,
        calls=len(history.calls),
        answers=sum(call.heard.result is not None for call in history.calls),
        readings=len(history.readings),
        outcomes=sum(map(len, log.values())),
    )


class _Checker:
    def __init__(self, history: History, logs: LogPeriods, broken: Collection[str]) -> None:
        self._logs = logs
        self._broken = broken
        self._calls: dict[str, list[Call]] = defaultdict(list)
        self._requests: dict[str, Mutation] = {}
        for call in history.calls:
            self._calls[call.command_id].append(call)
            # Another payload under a used id is refused: the first one is the command.
            if call.heard.failure != "CommandIdReused":
                self._requests.setdefault(call.command_id, call.request)
        self._outcomes: dict[str, Event] = {}
        self._registers = Registers()
        self._latest: dict[str, float] = defaultdict(lambda: -inf)
        self._known: dict[str, list[tuple[float, int]]] = defaultdict(list)
        self.violations: list[str] = []
        self.checks: Counter[str] = Counter()

    def partition(self, partition: PartitionId, records: Sequence[tuple[int, Event]]) -> None:
        """One partition's records: dense, of epochs that never go back, each the contract's next step."""
        epoch = 0
        for expected, (sequence, event) in enumerate(records, start=1):
            self._hold(sequence == expected, "sequences are dense", f"{partition}: {sequence} where {expected} belongs")
            self._hold(event.epoch >= epoch, "no older epoch commits", f"{event.epoch} after {epoch}", event)
            epoch = max(epoch, event.epoch)
            unheard = event.command_id not in self._outcomes
            self._hold(unheard, "one outcome per command id", "a second outcome of one command", event)
            self._outcomes[event.command_id] = event
            request = self._requests.get(event.command_id)
            self._hold(request is not None, "nothing from nowhere", "an outcome of a command that nobody sent", event)
            if request is not None:
                self._outcome(event, request)

    def _outcome(self, event: Event, request: Mutation) -> None:
        sent, answered = self._interval(event.command_id)
        wrong = self._registers.wrong(event, request)
        self._hold(
            wrong is None, "linearizable compare-and-set per message", f"not the contract's step: {wrong}", event
        )
        expected = self._registers.step(event, sent)
        self._hold(event.revision == expected, "revisions are dense", f"not {expected}", event)
        self._hold(
            answered >= self._latest[event.session_id],
            "commit order respects real time",
            "committed after a command that was sent after this one's answer",
            event,
        )
        self._latest[event.session_id] = max(self._latest[event.session_id], sent)
        states = self._logs.during(event.session_id, sent, answered)
        if states is not None:
            fits = any(_fits(event, request, state) for state in states)
            self._hold(fits, "no feedback without its message", f"the log said {states}", event)

    def _interval(self, command_id: str) -> tuple[float, float]:
        """Within which a command took effect: from when it was first sent to its first answer."""
        calls = self._calls[command_id]
        answers = [call.heard.ended for call in calls if call.heard.result is not None]
        return min(call.heard.began for call in calls), min(answers, default=inf)

    def committers(self, commits: Commits) -> None:
        """Each epoch of a partition is one worker's."""
        owners: dict[tuple[PartitionId, int], str] = {}
        for partition, epoch, worker in commits:
            owner = owners.setdefault((partition, epoch), worker)
            what = f"{owner} and {worker} in epoch {epoch} of {partition}"
            self._hold(owner == worker, "one worker commits in an epoch", what)

    def call(self, call: Call) -> None:
        """What one call heard: the recorded outcome to the letter, or a failure that it may have met."""
        heard, outcome = call.heard, self._outcomes.get(call.command_id)
        if heard.result is not None:
            if heard.result.revision is None and outcome is None:
                return  # a note refused at the boundary
            self._hold(outcome is not None, "what is acknowledged is stored", "not in the store", call)
            if outcome is not None:
                same = _spelled(heard.result) == _spelled(result_of(outcome))
                self._hold(same, "each answer is the recorded one", f"recorded {result_of(outcome)}", call)
                self._known[outcome.session_id].append((heard.ended, outcome.revision))
        elif heard.failure is not None and heard.failure in FINAL:
            self._refused(call, heard.failure, applied=outcome is not None)
        elif heard.failure not in HARMLESS:
            began, _ = self._interval(call.command_id)
            met = self._logs.failures(call.request.session_id, began, heard.ended)
            if call.command_id in self._broken:
                met.add("CommandFailed")
            self._hold(heard.failure in met, "no failure without a cause", f"{heard.failure}, not of {met}", call)

    def _refused(self, call: Call, failure: str, *, applied: bool) -> None:
        if failure == "CommandExpired":
            self._hold(not applied, "what expired has no effect", "said to have expired, but it took effect", call)
        elif failure == "CommandIdReused":
            own = call.request is self._requests.get(call.command_id)
            self._hold(not own, "an id is refused to others only", "told that its own command id is another's", call)

    def shown(self, reading: Reading) -> None:
        """What one list showed, no later one may be older than, by whichever way it came."""
        if reading.heard.result is not None and reading.heard.result.revision is not None:
            self._known[reading.session_id].append((reading.heard.ended, reading.heard.result.revision))

    def reading(self, reading: Reading) -> None:
        """A list shows one state of the Session: none older than what was known before, none from the future."""
        heard, session_id = reading.heard, reading.session_id
        states = self._logs.during(session_id, heard.began, heard.ended)
        match heard.result:
            case None:
                met = HARMLESS | self._logs.failures(session_id, heard.began, heard.ended)
                self._hold(heard.failure in met, "no failure without a cause", f"not of {met}", reading)
            case Ok(value=ItemList(items=items)):
                revision = heard.result.revision or 0
                before = [seen for ended, seen in self._known[session_id] if ended < heard.began]
                newest = max([reading.at_least or 0, *before])
                self._hold(revision >= newest, "lists never go back", f"revision {revision} after {newest}", reading)
                shown = self._registers.state(session_id, revision, sent_before=heard.ended)
                self._hold(shown is not None, "lists show what was committed", f"revision {revision}", reading)
                if shown is not None:
                    lives = [shown.identity] if states is None else [state.identity for state in states]
                    # Feedback of another life of the Session counts as absent.
                    right = any(items == (shown.items if life == shown.identity else ()) for life in lives)
                    self._hold(right, "lists show what was committed", f"not the items of revision {revision}", reading)
            case _:
                absent = states is not None and any(state.identity is None and not state.failure for state in states)
                self._hold(absent, "lists show what was committed", f"no list: {heard.result}", reading)

    def _hold(self, holds: bool, invariant: str, what: str, about: Event | Call | Reading | None = None) -> None:
        self.checks[invariant] += 1
        if not holds:
            self.violations.append(f"{invariant}: {what}" + ("" if about is None else f": {about}"))


def _fits(event: Event, request: Mutation, log: LogState) -> bool:
    """Whether an outcome can be of a Session whose log said this, whatever was stored (CONTRACT, rules 3 to 5)."""
    if log.failure is not None:
        return False
    match event:
        case FeedbackRejected(error=SessionNotFound()):
            return log.identity is None
        case FeedbackRejected(error=TargetNotFound()):
            return log.identity == event.session and event.message_id not in log.eligible
    found = isinstance(request, Delete) or event.message_id in log.eligible
    return log.identity is not None and log.identity == event.session and found


def _spelled(result: Result) -> tuple[bytes, int | None]:
    return msgspec.json.encode(result), result.revision


def unanswered(history: History) -> list[Mutation]:
    """Commands of which nobody has heard the outcome yet, one request each."""
    open_: dict[str, Mutation] = {}
    settled: set[str] = set()
    for call in history.calls:
        if call.heard.failure == "CommandIdReused":
            continue
        open_.setdefault(call.command_id, call.request)
        if call.heard.result is not None or call.heard.failure not in HARMLESS:
            settled.add(call.command_id)
    return [request for command_id, request in open_.items() if command_id not in settled]
