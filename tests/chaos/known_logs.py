"""The Session logs of the campaign: written, damaged and mended by it, so that it knows what each says at any time.

Each change is one system call, hence whole at any moment; when it happened is known to the interval that it took.
"""

import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from math import inf
from pathlib import Path
from time import monotonic
from typing import Literal

from msgspec import Struct

from feedback.model import SessionIdentity
from persistence.session_log import LogWriter
from persistence.session_log.events import exchange
from tests.harness import CREATED_AT

MESSAGES = ("m1", "m2", "m3")
_CWD = "/w"


class LogState(Struct, frozen=True):
    """What a log says: whose it is and what can be rated in it, or which failure reading it is; neither: no Session."""

    identity: SessionIdentity | None = None
    eligible: tuple[str, ...] = ()
    failure: str | None = None


ABSENT = LogState()


class Period(Struct):
    """A state, and when it may have been in force (monotonic seconds)."""

    state: LogState
    begins: float
    ends: float = inf


class LogPeriods:
    """What is known of every Session's log, over time. Sessions that it was never told of have sound logs."""

    def __init__(self) -> None:
        self._periods: dict[str, list[Period]] = {}
        self._hindrances: dict[str, list[Period]] = {}

    def change(self, session_id: str, state: LogState, act: Callable[[], object]) -> None:
        """Do what brings the log into a state; what was before it ends when that is done."""
        begins = monotonic()
        act()
        periods = self._periods.setdefault(session_id, [])
        if periods:
            periods[-1].ends = monotonic()
        periods.append(Period(state, begins))

    def hinder(self, session_ids: Iterable[str], failure: str) -> Callable[[], None]:
        """From now on reading these logs may meet a failure as well, until what is returned is called."""
        period = Period(LogState(failure=failure), monotonic())
        for session_id in session_ids:
            self._hindrances.setdefault(session_id, []).append(period)

        def end() -> None:
            period.ends = monotonic()

        return end

    def current(self, session_id: str) -> LogState:
        return self._periods[session_id][-1].state

    def during(self, session_id: str, began: float, ended: float) -> list[LogState] | None:
        """The states that may have been seen between two times; None for a Session whose log is not known."""
        periods = self._periods.get(session_id)
        return None if periods is None else [one.state for one in periods if one.begins <= ended and began <= one.ends]

    def failures(self, session_id: str, began: float, ended: float) -> set[str]:
        """The failures that reading the log may have met between two times."""
        periods = [*self._periods.get(session_id, ()), *self._hindrances.get(session_id, ())]
        return {one.state.failure for one in periods if one.state.failure and one.begins <= ended and began <= one.ends}


class Life(Struct, frozen=True):
    """One life of a Session: its log to the byte, and how many bytes there are up to each message."""

    identity: SessionIdentity
    name: str
    content: bytes
    ends: Sequence[int]


Damage = Literal["torn", "cut", "bit flipped", "replaced", "later format", "emptied", "taken away"]


class KnownLogs(LogPeriods):
    """The logs under a root, each with the messages that clients rate. For one thread."""

    def __init__(self, root: Path, workshop: Path, session_ids: Sequence[str]) -> None:
        """`workshop` is a directory of the same file system, where logs are made before they are put in place."""
        super().__init__()
        self._root, self._workshop = root, workshop
        self._born: dict[str, int] = {}
        self._lives: dict[str, Life] = {}
        for session_id in session_ids:
            self.begin_life(session_id)

    def begin_life(self, session_id: str) -> None:
        """Another Session under the same id: the old log goes, feedback on it counts as absent."""
        number = self._born[session_id] = self._born.get(session_id, -1) + 1
        life = self._lives[session_id] = self._write(session_id, number)
        self._place(session_id).parent.mkdir(parents=True, exist_ok=True)
        self._put(session_id, life.content, LogState(life.identity, MESSAGES))

    def is_sound(self, session_id: str) -> bool:
        return self.current(session_id) == LogState(self._lives[session_id].identity, MESSAGES)

    def damage(self, session_id: str, how: Damage) -> None:
        """Damage a sound log. What comes of it follows from the format (FORMATS, sections 2, 8 and 9)."""
        life, place = self._lives[session_id], self._place(session_id)
        first, second, _ = life.ends
        match how:
            case "torn":
                state = LogState(life.identity, MESSAGES[:2])
                self.change(session_id, state, lambda: os.truncate(place, second + 7))
            case "cut":
                self.change(session_id, LogState(life.identity, MESSAGES[:1]), lambda: os.truncate(place, first))
            case "emptied":
                self.change(session_id, ABSENT, lambda: os.truncate(place, 0))
            case "bit flipped":
                # In the second frame's checksum; or the brace that begins the second batch.
                at = second - 3 if place.suffix == ".zstd" else first
                self.change(session_id, LogState(failure="LogCorrupt"), lambda: _flip(place, at))
            case "replaced":
                stranger = self._write("a stranger", 0, like=session_id)
                self._put(session_id, stranger.content, LogState(failure="LogCorrupt"))
            case "later format":
                later = place.with_name(place.name.replace("session.", "session.v99.", 1))
                staged = self._staged(life.content)
                self.change(session_id, LogState(failure="LogFormatUnsupported"), lambda: staged.rename(later))
            case "taken away":
                self.change(session_id, ABSENT, lambda: place.parent.rename(self._workshop / f"away-{session_id}"))

    def mend(self, session_id: str) -> None:
        """The log is as it was in its present life."""
        life, place = self._lives[session_id], self._place(session_id)
        sound = LogState(life.identity, MESSAGES)
        away = self._workshop / f"away-{session_id}"
        later = list(place.parent.glob("session.v99.*"))
        if away.exists():
            self.change(session_id, sound, lambda: away.rename(place.parent))
        elif later:
            self.change(session_id, sound, later[0].unlink)
        elif not self.is_sound(session_id):
            self._put(session_id, life.content, sound)

    def _place(self, session_id: str) -> Path:
        return self._root / "--w--" / session_id / self._lives[session_id].name

    def _put(self, session_id: str, content: bytes, state: LogState) -> None:
        staged = self._staged(content)
        self.change(session_id, state, lambda: staged.replace(self._place(session_id)))

    def _staged(self, content: bytes) -> Path:
        path = self._workshop / "staged"
        path.unlink(missing_ok=True)
        path.write_bytes(content)
        return path

    def _write(self, session_id: str, number: int, *, like: str = "") -> Life:
        """A life's log, made in the workshop; compressed or not, by its Session's name or that of one it is `like`."""
        root = self._workshop / "made"
        ends = []
        compression: Literal["zstd", "none"] = "zstd" if sum((like or session_id).encode()) % 2 else "none"
        with LogWriter(root, session_id, created_at=CREATED_AT + number, cwd=_CWD, compression=compression) as log:
            for turn, message_id in enumerate(MESSAGES, start=1):
                log.append(exchange(turn, "Please?", "Here.", user_id=f"u{turn}", assistant_id=message_id))
                ends.append(log.path.stat().st_size)
            life = Life(log.identity, log.path.name, log.path.read_bytes(), ends)
        shutil.rmtree(root)
        return life


def _flip(path: Path, at: int) -> None:
    descriptor = os.open(path, os.O_RDWR)
    try:
        byte = os.pread(descriptor, 1, at)[0]
        os.pwrite(descriptor, bytes((byte ^ 1,)), at)
    finally:
        os.close(descriptor)
