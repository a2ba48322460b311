"""The original's three media behind one door: read one, or write one."""

import errno
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from enum import StrEnum
from pathlib import Path

from feedback.errors import InvalidRequest, MediumUnavailable
from persistence.interchange.per_record import PerRecordUnit
from persistence.interchange.rows import Found, Outcome, Row
from persistence.interchange.single import NAME, read_single, write_single
from persistence.interchange.sqlite_unit import MAGIC, check_alone, read_sqlite, write_sqlite
from persistence.sidecar.schema import APPLICATION_ID

_HEADER_BYTES = 100
_APPLICATION_ID = slice(68, 72)
"""Where a database's header has it."""


class Form(StrEnum):
    """Which medium: one JSON document, one JSON document for each Session, or a SQLite database."""

    JSON = "json"
    PER_RECORD = "per-record"
    SQLITE = "sqlite"


def read_medium(form: Form, path: Path) -> Iterator[Found]:
    """What a medium holds, entry by entry; it is never changed.

    `path` is the file, or, except for SQLite, the root of the original's storage.

    Raises:
        InvalidRequest: there is no such medium at `path`.
        MediumInvalid: it is not what `form` says; raised before the first entry.
        MediumUnavailable: it cannot be read.
    """
    with _typed("SOURCE", path):
        if form is Form.PER_RECORD:
            if not path.is_dir():
                raise NotADirectoryError(errno.ENOTDIR, "no directory", str(path))
            yield from PerRecordUnit(path).read()
            return
        source = _file(form, path)
        if source.exists() and not source.is_file():
            raise InvalidRequest("SOURCE", f"{source}: no file")
        if form is Form.SQLITE:
            yield from read_sqlite(source)
        else:
            with source.open("rb") as file:
                yield from read_single(file, source)


def write_whole(form: Form, path: Path, rows: Iterable[Row], *, overwrite: bool, check: bool) -> None:
    """Put one document of all rows (`Form.JSON`, in `key_order`), or a database of them, in place of what is there.

    With `check` nothing is written, but everything else is done.

    Raises:
        InvalidRequest: something is there, and not to `overwrite`; or something that is no such medium at all.
        MediumUnavailable: it cannot be written.
    """
    target = _file(form, path)
    with _typed("--output", target):
        if target.exists():
            _check_replaceable(form, target, overwrite=overwrite)
        if form is Form.SQLITE:
            check_alone(target)
        if check:
            deque(rows, maxlen=0)
        elif form is Form.SQLITE:
            write_sqlite(target, rows, replace=overwrite)
        else:
            write_single(target, rows, replace=overwrite)


def write_documents(
    root: Path, rows: Iterable[Row], *, overwrite: bool, now: datetime, check: bool
) -> Iterator[tuple[Row | None, Outcome]]:
    """Write rows to the per-record layout under `root`: see `PerRecordUnit.write`.

    Raises:
        InvalidRequest: `root` is no directory, or has records of the single layout and these are not to `overwrite`.
        MediumUnavailable: a document cannot be written; those before it are.
    """
    with _typed("--output", root):
        yield from PerRecordUnit(root).write(rows, overwrite=overwrite, now=now, check=check)


def _check_replaceable(form: Form, target: Path, *, overwrite: bool) -> None:
    """Raises `FileExistsError` for what is not to be replaced, whatever was said: it is of another kind, or a store."""
    if not target.is_file():
        raise FileExistsError(errno.EEXIST, "something is there, and it is no file", str(target))
    if not overwrite:
        raise FileExistsError(errno.EEXIST, "something is there; --overwrite replaces it", str(target))
    with target.open("rb") as file:
        header = file.read(_HEADER_BYTES)
    if header and header.startswith(MAGIC) is not (form is Form.SQLITE):
        raise FileExistsError(errno.EEXIST, f"what is there is not {form}; it is not replaced", str(target))
    if header[_APPLICATION_ID] == APPLICATION_ID.to_bytes(4):
        raise FileExistsError(errno.EEXIST, "a sidecar store is there; it is not replaced", str(target))


def _file(form: Form, path: Path) -> Path:
    return path / NAME if form is Form.JSON and path.is_dir() else path


@contextmanager
def _typed(name: str, path: Path) -> Iterator[None]:
    """The system's errors: what the user named is not there, or is in the way; or it cannot be had right now."""
    try:
        yield
    except (FileExistsError, FileNotFoundError, NotADirectoryError) as error:
        raise InvalidRequest(name, f"{error.filename2 or error.filename or path}: {error.strerror}") from None
    except OSError as error:
        raise MediumUnavailable(f"{error.filename or path}: {error.strerror}") from None
