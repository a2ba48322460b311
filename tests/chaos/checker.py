"""What must hold of a history, given what the store recorded (FAULTS, section 4). Pure, and linear in the history.

The store's records are the claimed linearization: each Session's outcomes in commit order. The checker
replays them through a model of the contract, then holds them against what clients heard and when.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import msgspec
from msgspec import Struct

from feedback.events import Event, FeedbackDeleted, FeedbackPut, FeedbackRejected, FeedbackUnchanged, result_of
from feedback.model import Item, SessionIdentity
from feedback.requests import Put
from feedback.results import ItemList, Ok, Result, VersionConflict
from tests.chaos.history import Call, History, Mutation, Reading

Log: TypeAlias = Mapping[int, Sequence[tuple[int, Event]]]
"""The store's records: partition number -> (sequence, event), ascending."""

HARMLESS = frozenset({"ResultTimeout", "QueueUnavailable", "QueueFull", "StoreUnavailable", "CommandUnknown"})
"""Failures that leave an outcome open; any command may meet them while faults last."""
FINAL = frozenset({"CommandExpired", "CommandIdReused", "InvalidRequest"})
"""Failures that promise that this call had no effect."""


class State(Struct, frozen=True):
    """A Session's feedback at one revision, and when the command that brought it there was first sent."""

    identity: SessionIdentity | None
    items: Mapping[str, Item]
    sent: float


_NOTHING = State(None, {}, float("-inf"))


class Checked(Struct):
    """The violations found, in words, and how much was looked at."""

    violations: list[str]
    calls: int
    answers: int
    readings: int
    outcomes: int


def check(history: History, log: Log, *, troubled: frozenset[str] = frozenset()) -> Checked:
    """Hold a history against the store's records. `troubled` Sessions had logs that could not be read for a while."""
    checker = _Checker(history, troubled)
    for number, records in log.items():
        checker.partition(number, records)
    for call in history.calls:
        checker.call(call)
    for reading in history.readings:
        checker.shown(reading)
    for reading in history.readings:
        checker.reading(reading)
    answers = sum(call.heard.result is not None for call in history.calls)
    outcomes = sum(map(len, log.values()))
    return Checked(checker.violations, len(history.calls), answers, len(history.readings), outcomes)


class _Checker:
    def __init__(self, history: History, troubled: frozenset[str]) -> None:
        self._troubled = troubled
        self._calls: dict[str, list[Call]] = defaultdict(list)
        self._requests: dict[str, Mutation] = {}
        for call in history.calls:
            self._calls[call.command_id].append(call)
            # Another payload under a used id is refused: the first one is the command.
            if call.heard.failure != "CommandIdReused":
                self._requests.setdefault(call.command_id, call.request)
        self._outcomes: dict[str, Event] = {}
        self._states: dict[str, list[State]] = defaultdict(lambda: [_NOTHING])
        self._versions: set[str] = set()
        self._reborn: set[str] = set()
        self._answered: dict[str, list[tuple[float, int]]] = defaultdict(list)
        self.violations: list[str] = []

    def partition(self, number: int, records: Sequence[tuple[int, Event]]) -> None:
        """One partition's records: dense, of epochs that never go back, each the contract's next step."""
        epoch = 0
        latest: dict[str, float] = defaultdict(lambda: float("-inf"))
        for expected, (sequence, event) in enumerate(records, start=1):
            if sequence != expected:
                self._blame(f"partition {number}: record {sequence} where {expected} should be")
            if event.epoch < epoch:
                self._blame(f"partition {number}: epoch {event.epoch} committed after {epoch}", event)
            epoch = max(epoch, event.epoch)
            if event.command_id in self._outcomes:
                self._blame("a second outcome of one command", event)
            self._outcomes[event.command_id] = event
            request = self._requests.get(event.command_id)
            if request is None:
                self._blame("an outcome of a command that nobody sent", event)
                continue
            sent = min(call.heard.began for call in self._calls[event.command_id])
            self._step(event, request, sent)
            self._in_time(event, latest)
            latest[event.session_id] = max(latest[event.session_id], sent)

    def _in_time(self, event: Event, latest: Mapping[str, float]) -> None:
        """Commit order respects real time: what was answered before another was sent comes before it."""
        answered = [call.heard.ended for call in self._calls[event.command_id] if call.heard.result is not None]
        if answered and min(answered) < latest[event.session_id]:
            self._blame("committed after a command that was sent after this one's answer", event)

    def _step(self, event: Event, request: Mutation, sent: float) -> None:
        states = self._states[event.session_id]
        before = states[-1]
        items = dict(before.items) if before.identity == event.session else {}
        if before.identity not in (None, event.session):
            self._reborn.add(event.session_id)
        wrong = self._wrong(event, request, items.get(request.message_id))
        if wrong:
            self._blame(f"not the contract's step: {wrong}", event)
        if isinstance(event, FeedbackPut):
            items[request.message_id] = event.item
        elif isinstance(event, FeedbackDeleted):
            items.pop(request.message_id, None)
        material = isinstance(event, FeedbackPut | FeedbackDeleted)
        if event.revision != len(states) - 1 + material:
            self._blame(f"revision {event.revision} after {len(states) - 1}", event)
        if material:
            states.append(State(event.session, items, sent))

    def _wrong(self, event: Event, request: Mutation, current: Item | None) -> str | None:
        """Why this event cannot be what comes of the request, given the item that stood there."""
        if (event.session_id, event.message_id) != (request.session_id, request.message_id):
            return "about another message"
        if isinstance(event, FeedbackRejected) and not isinstance(event.error, VersionConflict):
            return None  # about logs, which the campaign takes away and brings back
        version = None if current is None else current.version
        conflicts = request.if_version != version and (isinstance(request, Put) or current is not None)
        right = self._is_right(event, request, current, conflicts=conflicts)
        return None if right else f"{type(event).__name__} where {current} stood"

    def _is_right(self, event: Event, request: Mutation, current: Item | None, *, conflicts: bool) -> bool:
        match event:
            case FeedbackRejected(error=VersionConflict(current=claimed)):
                return conflicts and claimed == current
            case FeedbackUnchanged(item=None):
                return current is None and not isinstance(request, Put)
            case FeedbackUnchanged(item=Item() as item):
                return not conflicts and item == current and _says(request, item)
            case FeedbackPut(item=item):
                return not conflicts and self._is_fresh(item, request, current)
            case FeedbackDeleted():
                return not conflicts and current is not None
        return False

    def _is_fresh(self, item: Item, request: Mutation, current: Item | None) -> bool:
        fresh = item.version not in self._versions
        self._versions.add(item.version)
        kept = current is None or (item.created_at == current.created_at and item.updated_at >= current.updated_at)
        return fresh and kept and _says(request, item) and not (current is not None and _says(request, current))

    def call(self, call: Call) -> None:
        """What one call heard: the recorded outcome to the letter, or a failure that it may have met."""
        heard, outcome = call.heard, self._outcomes.get(call.command_id)
        if heard.result is not None:
            if heard.result.revision is None and outcome is None:
                return  # a note refused at the boundary
            if outcome is None:
                self._blame("acknowledged, but not in the store", call)
            elif _spelled(heard.result) != _spelled(result_of(outcome)):
                self._blame(f"answered {heard.result}, recorded {result_of(outcome)}", call)
            else:
                self._answered[outcome.session_id].append((heard.ended, outcome.revision))
        elif heard.failure in FINAL:
            if outcome is not None and heard.failure == "CommandExpired":
                self._blame("said to have expired, but it took effect", call)
            if heard.failure == "CommandIdReused" and call.request is self._requests.get(call.command_id):
                self._blame("told that its own command id is another's", call)
        elif heard.failure not in HARMLESS and call.request.session_id not in self._troubled:
            self._blame(f"failed without a cause: {heard.failure}", call)

    def shown(self, reading: Reading) -> None:
        """What one list showed, no later one may be older than, by whichever way it came."""
        if reading.heard.result is not None and reading.heard.result.revision is not None:
            self._answered[reading.session_id].append((reading.heard.ended, reading.heard.result.revision))

    def reading(self, reading: Reading) -> None:
        """A list shows one state of the Session: none older than what was answered before, none from the future."""
        heard = reading.heard
        if heard.result is None:
            if heard.failure not in HARMLESS and reading.session_id not in self._troubled:
                self._blame(f"list failed without a cause: {heard.failure}", reading)
            return
        if not (isinstance(heard.result, Ok) and isinstance(heard.result.value, ItemList)):
            if reading.session_id not in self._troubled:
                self._blame(f"no list: {heard.result}", reading)
            return
        revision = heard.result.revision or 0
        states = self._states[reading.session_id]
        known = [seen for ended, seen in self._answered[reading.session_id] if ended < heard.began]
        if revision < max([reading.at_least or 0, *known]):
            self._blame(f"revision {revision}, older than {max([reading.at_least or 0, *known])}", reading)
        elif revision >= len(states) or states[revision].sent > heard.ended:
            self._blame(f"revision {revision} was never reached by then", reading)
        elif heard.result.value.items != tuple(states[revision].items.values()) and not (
            reading.session_id in self._reborn | self._troubled and not heard.result.value.items
        ):
            self._blame(f"not the items of revision {revision}", reading)

    def _blame(self, what: str, about: Event | Call | Reading | None = None) -> None:
        self.violations.append(what if about is None else f"{what}: {about}")


def _says(request: Mutation, item: Item) -> bool:
    return isinstance(request, Put) and (item.rating, item.note) == (request.rating, request.note)


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
