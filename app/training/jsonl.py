"""Records as JSON Lines: one object a line, UTF-8, members in the order of the schema, nothing left out."""

import os
from pathlib import Path

import msgspec

from app.training.output import Checkpoint, Record, Unfinished
from persistence.atomic_file import fsync_directory, write_all

_BUFFER_BYTES = 1 << 20
_CHECKPOINT_BYTES = 16 << 20
_CHECKPOINT_SESSIONS = 500


class JsonlOutput:
    """One file. A checkpoint says how many of its bytes count; what is behind them is cut off and written again."""

    def __init__(
        self, path: Path, plan: str, *, restart: bool = False, checkpoint_sessions: int = _CHECKPOINT_SESSIONS
    ) -> None:
        """Raises SettingsInvalid as `Unfinished.load`, OSError."""
        self._path = path
        self._unfinished = Unfinished(path)
        self._partial = self._unfinished.partial
        self._checkpoint_sessions = checkpoint_sessions
        self._encode = msgspec.json.Encoder().encode
        self.checkpoint = self._unfinished.load(plan, restart=restart, counts=self._holds)
        self._descriptor = os.open(self._partial, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.ftruncate(self._descriptor, self.checkpoint.written)
        os.lseek(self._descriptor, self.checkpoint.written, os.SEEK_SET)
        self._buffer = bytearray()
        self._written = self.checkpoint.written
        self._sessions_since = 0

    def write(self, record: Record) -> None:
        """One more line."""
        self._buffer += self._encode(record)
        self._buffer += b"\n"
        if len(self._buffer) >= _BUFFER_BYTES:
            self._flush()

    def end_session(self, session_id: str) -> None:
        """A checkpoint now and then: each costs two syncs."""
        self._sessions_since += 1
        ahead = self._written + len(self._buffer) - self.checkpoint.written
        if self._sessions_since < self._checkpoint_sessions and ahead < _CHECKPOINT_BYTES:
            return
        self._flush()
        os.fsync(self._descriptor)
        self.checkpoint.last_session, self.checkpoint.written = session_id, self._written
        self._unfinished.save(self.checkpoint)
        self._sessions_since = 0

    def finish(self) -> None:
        """The file takes its name, whole."""
        self._flush()
        os.fsync(self._descriptor)
        self._partial.replace(self._path)
        fsync_directory(self._path.parent)
        self._unfinished.forget()

    def close(self) -> None:
        """Closes the file."""
        os.close(self._descriptor)

    def _holds(self, checkpoint: Checkpoint) -> bool:
        try:
            return self._partial.stat().st_size >= checkpoint.written
        except FileNotFoundError:
            return False  # it has become the output

    def _flush(self) -> None:
        write_all(self._descriptor, bytes(self._buffer))
        self._written += len(self._buffer)
        self._buffer = bytearray()
