"""The directory that `feedback up --data DIR` lives in: who holds it, and what to say when it cannot be used.

`DIR/up.lock` is held while `up` or one of its children runs.
"""

import contextlib
import errno
import fcntl
import os
import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from feedback.errors import SettingsInvalid, StoreUnavailable

_NAME = "up.lock"
_PATIENCE_S = 2.0
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def hold(data: Path) -> Iterator[int]:
    """Make `data` where it is not there, and hold its lock; children that inherit the descriptor hold it as well.

    Raises:
        SettingsInvalid: it cannot be used, or another `up` uses it.
        StoreUnavailable: its disk is full.
    """
    with typed_failures(data):
        data.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(data / _NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        # The children of an `up` that was killed need a moment to be gone.
        give_up = time.monotonic() + _PATIENCE_S
        while not _try_lock(descriptor, fcntl.LOCK_EX):
            if time.monotonic() > give_up:
                raise SettingsInvalid(f"--data {data}: another `feedback up` runs there; stop it, or name another DIR")
            time.sleep(0.02)
        yield descriptor
    finally:
        os.close(descriptor)


def is_held(data: Path) -> bool:
    """Whether an `up` or one of its children runs in `data`. True as well when that cannot be told from here."""
    try:
        descriptor = os.open(data / _NAME, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return True
    try:
        return not _try_lock(descriptor, fcntl.LOCK_SH)
    finally:
        os.close(descriptor)


@contextmanager
def typed_failures(data: Path, name: str = "--data") -> Iterator[None]:
    """What the operating system refuses below `data`, as an error that names the setting `name`, file and reason.

    Raises:
        SettingsInvalid: something there is of another kind, or may not be read or written.
        StoreUnavailable: its disk is full.
    """
    try:
        yield
    except OSError as error:
        # `mkdir` says "exists" of whatever is no directory.
        reason = os.strerror(errno.ENOTDIR) if isinstance(error, FileExistsError) else error.strerror
        path = f"{data}" if error.filename in (None, data, str(data)) else f"{data}: {os.fsdecode(error.filename)}"
        failure = StoreUnavailable if error.errno in _NO_ROOM else SettingsInvalid
        raise failure(f"{name}: {path}: {reason}") from None


def data_flag(data: Path) -> str:
    """The `--data` that a person types into a shell."""
    word = str(data)
    return f"--data={shlex.quote(word)}" if word.startswith("-") else f"--data {shlex.quote(word)}"


def check_spelling(name: str, text: str) -> None:
    """Refuse a path that no JSON document can name.

    Raises:
        SettingsInvalid: it is not UTF-8.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        raise SettingsInvalid(f"{name}: {text}: the path is not UTF-8") from None


def _try_lock(descriptor: int, kind: int) -> bool:
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        return True
    return False
