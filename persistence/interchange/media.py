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
from persistence.interchange.sqlite_unit import check_alone, read_sqlite, write_sqlite


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
        InvalidRequest: something is there, and not to `overwrite`, or no file.
        MediumUnavailable: it cannot be written.
    """
    target = _file(form, path)
    with _typed("--output", target):
        if target.exists() and not (overwrite and target.is_file()):
            cure = "; --overwrite replaces it" if target.is_file() else ", and it is no file"
            raise FileExistsError(errno.EEXIST, f"something is there{cure}", str(target))
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
