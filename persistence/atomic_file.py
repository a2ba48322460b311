"""Files that appear whole or not at all, and are on stable storage before the caller goes on.

The only place that creates or replaces a file: temporary file in the same directory, fsync,
rename or link, fsync of the directory. Raises OSError; then the old file is as it was, except
after a failed fsync of the directory, when either file may be there after a power cut.
"""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def replace_file(path: Path, data: bytes, *, mode: int = 0o600) -> None:
    """Puts `data` at `path`, in place of what was there."""
    temporary = _write_temporary(path, data, mode)
    try:
        temporary.replace(path)
    except BaseException:
        _discard(temporary)
        raise
    fsync_directory(path.parent)


def publish_file(path: Path, data: bytes, *, mode: int = 0o600) -> None:
    """Puts `data` at `path`, where nothing may be yet. Raises FileExistsError when something is."""
    temporary = _write_temporary(path, data, mode)
    try:
        path.hardlink_to(temporary)
        fsync_directory(path.parent)
    finally:
        _discard(temporary)


@contextmanager
def staged_file(path: Path, *, replace: bool, mode: int = 0o600) -> Iterator[Path]:
    """Gives a new, empty file beside `path` to fill, and puts it there when the block ends; when it raises, nothing.

    `replace`: in place of what was there; else nothing may be there, or FileExistsError is raised in the end.
    """
    temporary = _write_temporary(path, b"", mode)
    try:
        yield temporary
        _fsync_file(temporary)
        if replace:
            temporary.replace(path)
        else:
            path.hardlink_to(temporary)
        fsync_directory(path.parent)
    finally:
        _discard(temporary)


def make_directories(path: Path, *, mode: int = 0o700) -> None:
    """Makes `path` and the parents it lacks, each one's name on stable storage before the next is made."""
    if path.is_dir():
        return
    make_directories(path.parent, mode=mode)
    path.mkdir(mode=mode, exist_ok=True)
    fsync_directory(path.parent)


def fsync_directory(path: Path) -> None:
    """Puts the names in a directory on stable storage."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_all(descriptor: int, data: bytes) -> None:
    """Writes all of `data`, however little of it the system takes at a time."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _fsync_file(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_temporary(path: Path, data: bytes, mode: int) -> Path:
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(6)}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        try:
            write_all(descriptor, data)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except BaseException:
        _discard(temporary)
        raise
    return temporary


def _discard(temporary: Path) -> None:
    """What cannot be removed stays, and does no harm; the caller's error, or success, counts."""
    with suppress(OSError):
        temporary.unlink(missing_ok=True)
