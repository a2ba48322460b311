"""Named places in the code where a test may kill, stop or break a process. Off in production.

`FEEDBACK_CRASHPOINT=name:action[:count]` arms one of them when a worker or projector starts: `action` is `kill`, `stop`
or `raise`, `count` the time that it is reached at which that happens (1 when left out), or `*` for every time.
"""

import itertools
import logging
import re
import signal
from collections.abc import Mapping
from enum import StrEnum

from feedback.errors import SettingsInvalid

logger = logging.getLogger(__name__)

VARIABLE = "FEEDBACK_CRASHPOINT"

_FORM = re.compile(r"(?P<point>[a-z-]+):(?P<action>[a-z]+)(?::(?P<count>\*|[1-9][0-9]{0,8}))?", re.ASCII)


class CrashPoint(StrEnum):
    """Every place that can be armed, in the order of a command's way."""

    AFTER_LEASE = "after-lease"
    """Takeover: partitions point at this worker in Redis, their epochs in the store are still the last owner's."""
    AFTER_FENCE = "after-fence"
    """Takeover: the last owner is fenced off; what it had claimed still lies there."""
    AFTER_RECOVERY = "after-recovery"
    """Takeover: what the last owner had claimed of one partition is back at the head of its queue."""
    BEFORE_PUBLISHING = "before-publishing"
    """Takeover, or a stream that forgot: events that the store has are about to be published again."""
    AFTER_CLAIM = "after-claim"
    """A batch is claimed, or parked commands are due; nothing was done about it."""
    AFTER_BARRIER = "after-barrier"
    """The batch's logs were read and are on stable storage."""
    BEFORE_COMMIT = "before-commit"
    """New versions are drawn; the store was not touched."""
    INSIDE_COMMIT = "inside-commit"
    """The transaction holds the store's write lock and has written everything."""
    AFTER_COMMIT = "after-commit"
    """The batch is on stable storage; nobody was told."""
    AFTER_PARKING = "after-parking"
    """Commands of some Session have to wait; the others of their batch are not acknowledged."""
    AFTER_ASIDE = "after-aside"
    """More of a partition is parked than a worker may hold: all but the first of each Session was set aside."""
    BEFORE_ACKNOWLEDGEMENT = "before-acknowledgement"
    """Everything is settled; the script that publishes and finishes was not sent."""
    AFTER_ACKNOWLEDGEMENT = "after-acknowledgement"
    """The script's answer has come."""
    AFTER_FLUSH_REQUEST = "after-flush-request"
    """Live owners were asked to flush; their Sessions are parked."""
    AFTER_ASKING = "after-asking"
    """Agents were asked about logs; their Sessions are parked."""
    BEFORE_RELEASE = "before-release"
    """Giving partitions back: their commands are back on the queues, the leases are not released."""
    BEFORE_LEAVING = "before-leaving"
    """Stopping: all partitions are given back, the worker's session in Redis still stands."""
    AFTER_SUCCESSION = "after-succession"
    """Changing the number of partitions: the store has the next generation, nobody else knows of it."""
    BEFORE_RETIRING = "before-retiring"
    """The former generation is worked off; its last owners are not fenced off yet, the next one has none."""
    AFTER_RETIRING = "after-retiring"
    """The former generation is retired in the store; nobody has taken on the next one."""
    BEFORE_MOVE = "before-move"
    """Jobs were found on a queue of a retired generation; they lie there in order."""
    AFTER_MOVE = "after-move"
    """One of them is on the current generation's queue, those behind it are not."""
    BEFORE_CHECKPOINT = "before-checkpoint"
    """Projector: views are made anew from events; cache and checkpoint are as before."""
    AFTER_CHECKPOINT = "after-checkpoint"
    """Projector: cache and checkpoint moved in one step; it has not noted so itself."""

    AFTER_REGISTERING = "after-registering"
    """Agent: it is the one of its host, and has served nobody."""
    AFTER_QUESTION = "after-question"
    """Agent: requests are off the list; nothing was done about them."""
    AFTER_READING = "after-reading"
    """Agent: logs were read and are on stable storage, or wait for their owners' flushes; nobody was told."""
    BEFORE_TELLING = "before-telling"
    """Agent: the evidence is ready to go out."""


class Action(StrEnum):
    """What happens there."""

    KILL = "kill"
    """SIGKILL: the process is gone between two instructions."""
    STOP = "stop"
    """SIGSTOP: it stands still until somebody sends SIGCONT."""
    RAISE = "raise"
    """An exception that nobody foresaw."""


class CrashPointReached(Exception):
    """The exception of `Action.RAISE`: none of ours, so that it is met like any defect."""


class _Armed:
    def __init__(self, point: CrashPoint, action: Action, nth: int | None) -> None:
        self._point = point
        self._action = action
        self._nth = nth
        self._times = itertools.count(1)

    def reach(self, point: CrashPoint) -> None:
        if point is not self._point or (self._nth not in {None, next(self._times)}):
            return
        logger.warning("crash point reached point=%s action=%s", point, self._action)
        match self._action:
            case Action.KILL:
                signal.raise_signal(signal.SIGKILL)
            case Action.STOP:
                signal.raise_signal(signal.SIGSTOP)
            case Action.RAISE:
                raise CrashPointReached(point)


_armed: list[_Armed] = []


def arm(environ: Mapping[str, str]) -> None:
    """Arm the point that `FEEDBACK_CRASHPOINT` names, if it is set; whatever was armed before no longer is.

    Raises:
        SettingsInvalid: it is not of the form `name:action[:count]`, or names what does not exist.
    """
    _armed.clear()
    if text := environ.get(VARIABLE):
        _armed.append(_parsed(text))


def reach(point: CrashPoint) -> None:
    """Say that this place is reached: nothing happens, unless a test armed it."""
    for armed in _armed:
        armed.reach(point)


def _parsed(text: str) -> _Armed:
    form = _FORM.fullmatch(text)
    if form is None:
        raise SettingsInvalid(f"{VARIABLE}: {text!r} is not name:action[:count], where count is a number from 1 or *")
    if form["point"] not in list(CrashPoint):
        raise SettingsInvalid(f"{VARIABLE}: no crash point {form['point']!r}; there are {', '.join(CrashPoint)}")
    if form["action"] not in list(Action):
        raise SettingsInvalid(f"{VARIABLE}: no action {form['action']!r}; there are {', '.join(Action)}")
    count = form["count"] or "1"
    return _Armed(CrashPoint(form["point"]), Action(form["action"]), None if count == "*" else int(count))
