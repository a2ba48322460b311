"""Faults of disks, of the store and of Session logs, and of the hosts that hold Sessions open."""

import errno
import threading
from contextlib import suppress
from typing import get_args

from feedback import LiveSessions
from feedback.errors import FeedbackError
from feedback.live import LiveSession
from feedback.model import SessionIdentity
from tests.chaos.known_logs import Damage
from tests.chaos.nemesis import Field, Kinds
from tests.faulty_disk import HALF

LOCKED = "the store is locked"
_STORE, _LOGS = "sidecar.sqlite3", "/sessions/"
_DISK_FAULTS = (
    ("write", errno.ENOSPC, _STORE),
    ("write", errno.EIO, _STORE),
    ("sync", errno.EIO, _STORE),
    ("read", errno.EIO, _STORE),
    ("read", errno.EINTR, _STORE),
    ("read", HALF, _STORE),
    ("write", HALF, _STORE),
    ("read", errno.EIO, _LOGS),
    ("sync", errno.EIO, _LOGS),
    ("read", HALF, _LOGS),
)
"""Calls that fail, as what, and on which paths."""


class StorageFaults:
    """The store and its disk, the logs and theirs, and one Session's owner."""

    def __init__(self, field: Field, owner: "ShakyOwner") -> None:
        self._field = field
        self._system, self._rng = field.system, field.rng
        self._owner = owner

    def kinds(self) -> Kinds:
        return {
            LOCKED: (1, self._lock_store),
            "a disk fails": (3, self._fail_disk),
            "a Session's next life": (1, self._rebirth),
            "a Session's owner does not flush": (1, self._fail_flushes),
        } | {f"a log is {how}": (1, lambda how=how: self._damage_log(how)) for how in get_args(Damage)}

    def _lock_store(self) -> str:
        """Another process holds the write lock."""
        held = self._system.store.transaction({})
        held.__enter__()

        def release() -> None:
            held.__exit__(None, None, None)

        self._field.after(self._rng.uniform(0.1, 2), release)
        return "for a while"

    def _fail_disk(self) -> str:
        """Under every second process; whoever reads a log there may be told that it cannot be read."""
        disk = self._system.disk
        if disk is None:
            return ""
        call, error, part = self._rng.choice(_DISK_FAULTS)
        seconds = self._rng.uniform(0.2, 2)
        disk.fails(call, error, part)
        end = self._system.known_logs.hinder(self._field.sessions if part == _LOGS else (), "LogUnreadable")

        def works() -> None:
            disk.works()
            # A reading that began before may be told of later.
            self._field.after(5, end)

        self._field.after(seconds, works)
        return f"{call} of {part}: {errno.errorcode.get(error, 'half of it')} for {seconds:.1f} s"

    def _damage_log(self, how: Damage) -> str:
        logs = self._system.known_logs
        session_id = self._rng.choice(self._field.sessions)
        if not logs.is_sound(session_id) or session_id == self._owner.session_id:
            return ""  # what a live owner says of a damaged log is another story: tests/integration/test_flush.py
        logs.damage(session_id, how)
        self._field.after(self._rng.uniform(0.2, 4), lambda: logs.mend(session_id))
        return session_id

    def _rebirth(self) -> str:
        session_id = self._rng.choice(self._field.sessions)
        if not self._system.known_logs.is_sound(session_id) or session_id == self._owner.session_id:
            return ""
        self._system.known_logs.begin_life(session_id)
        return session_id

    def _fail_flushes(self) -> str:
        how = self._rng.choice(("raises", "hangs", "lies", "goes away"))
        self._owner.begin(how)
        self._field.after(self._rng.uniform(0.5, 4), self._owner.end)
        return f"{self._owner.session_id}: it {how}"


class ShakyOwner:
    """A host that holds one Session open. It flushes when it is asked, or does what a fault says."""

    def __init__(self, url: str, session_id: str, identity: SessionIdentity) -> None:
        self.session_id = session_id
        self._identity = identity
        self._live = LiveSessions.from_url(url)
        self._held: LiveSession | None = None
        self._trouble = ""
        self._over = threading.Event()
        self.end()

    def begin(self, trouble: str) -> None:
        """From now on it "raises", "hangs", "lies" about what is durable, or "goes away"."""
        self._over.clear()
        self._trouble = trouble
        if trouble == "goes away" and self._held is not None:
            self._held.close()
            self._held = None

    def end(self) -> None:
        """All is well again."""
        self._trouble = ""
        self._over.set()
        if self._held is None:
            with suppress(FeedbackError):  # without a server the Session stays as if nobody held it open
                self._held = self._live.register(self.session_id, self._identity, self._flush)

    def close(self) -> None:
        self._over.set()
        self._live.close()

    def _flush(self) -> int | None:
        """There is nothing to write: all of its log stands on disk."""
        match self._trouble:
            case "raises":
                raise OSError("not now")
            case "hangs":
                self._over.wait()
            case "lies":
                return 1_000_000
        return None
