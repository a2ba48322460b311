"""The per-record layout of later storage-json: one document for each Session (FORMATS section 15).

Memory: the largest document, and the names in the directory.
"""

import os
import re
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from datetime import datetime
from errno import EEXIST
from os.path import lexists
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from feedback.errors import MediumInvalid
from persistence.atomic_file import fsync_directory, make_directories, publish_file, replace_file
from persistence.interchange.rows import (
    TABLE,
    UNIT,
    VERSION,
    Found,
    Ignored,
    Outcome,
    Refusal,
    Row,
    Wrote,
    found_at,
    key_order,
    quoted,
    record_of,
)
from persistence.interchange.single import NAME, read_single
from persistence.interchange.text import MAX_VALUE_CHARS, TextInvalid, decode, encoded, pretty
from persistence.session_log.jsontext import Json

_KEY = re.compile(r"[a-zA-Z0-9_-]+")
_SUFFIX = ".json"


class _Record(Struct, frozen=True):
    """What a document says that counts: any JSON value, null included."""

    value: Json


class PerRecordUnit:
    """The unit under a root of the original's storage. Versions in `compatible` are read like its own."""

    def __init__(self, root: Path, *, version: int = VERSION, compatible: Collection[int] = ()) -> None:
        self._legacy_path = root / NAME
        self._table = root / UNIT / TABLE
        self._version = version
        self._accepted = frozenset({version, *compatible})

    def read(self) -> Iterator[Found]:
        """What the original finds when it opens the unit, and what it passes over. Nothing is changed.

        Raises:
            OSError: the directory cannot be listed.
        """
        names = self._names()
        yield from map(self._read, names) if names else self._legacy()

    def write(
        self, rows: Iterable[Row], *, overwrite: bool, now: datetime, check: bool
    ) -> Iterator[tuple[Row | None, Outcome]]:
        """Put each row into its document: the rows with what became of them, after refusals, with None, of what was
        there.

        A document that differs is a refusal, or replaced if `overwrite` says so; one of another Session stays. One that
        is no record, for which the original would refuse the whole unit, is a refusal as well, or set aside, as the
        original does it: as `<key>.json.bak.<minute>` (`now`, in local time). With `check` nothing is written.

        Each document appears whole or not at all, so what was broken off is simply done again.

        Raises:
            FileExistsError: there are records of the single layout, which documents make void, and no `overwrite`.
            OSError: a document cannot be written.
        """
        names = self._names()
        if not names and not overwrite and any(isinstance(found, Row) for found in self._legacy()):
            reason = "documents would make its records void; import them first, then say --overwrite"
            raise FileExistsError(EEXIST, reason, str(self._legacy_path))
        if not check:
            make_directories(self._table)
        for name in names:
            if (invalid := self._invalid(name)) is None:
                continue
            if not overwrite:
                yield None, Refusal(invalid.path, f"{invalid.reason}: for this the original refuses the whole unit")
            elif not check:
                document = self._table / name
                document.replace(f"{document}.bak.{now:%Y%m%d%H%M}")
                fsync_directory(self._table)
        for row in rows:
            yield row, self._put(row, overwrite=overwrite, check=check)

    def _names(self) -> list[str]:
        """The documents' file names in the order of their keys. A single one makes the legacy file void, even if it
        cannot be read."""
        names: list[str] = []
        with suppress(FileNotFoundError), os.scandir(self._table) as entries:
            names = [entry.name for entry in entries if entry.name.endswith(_SUFFIX)]
        return [key + _SUFFIX for key in key_order(sorted(name.removesuffix(_SUFFIX) for name in names))]

    def _read(self, name: str) -> Found:
        loaded = self._load(name)
        return _found(name, loaded) if isinstance(loaded, _Record) else loaded

    def _invalid(self, name: str) -> Refusal | None:
        """Why a document is present, but no record."""
        loaded = self._load(name)
        found = _found(name, loaded) if isinstance(loaded, _Record) else loaded
        return found if isinstance(loaded, _Record) and isinstance(found, Refusal) else None

    def _load(self, name: str) -> _Record | Refusal | Ignored:
        if not _KEY.fullmatch(name.removesuffix(_SUFFIX)):
            return Ignored(_place(quoted(name)), "the name is no key")
        path = self._table / name
        try:
            if not path.is_file():
                return Ignored(_place(name), "no file")
            if (size := path.stat().st_size) > MAX_VALUE_CHARS:
                return Refusal(_place(name), f"{size} bytes; at most {MAX_VALUE_CHARS} are read")
            return self._record(_place(name), decode(path.read_bytes()))
        except OSError as error:
            return Refusal(_place(name), f"cannot be read: {error.strerror}")
        except TextInvalid as error:
            return Ignored(_place(name), f"not valid JSON: {error}")

    def _record(self, place: str, document: Json) -> _Record | Ignored:
        version = document.get("version") if isinstance(document, dict) else None
        if not isinstance(document, dict) or not isinstance(version, float):
            return Ignored(place, "no document with a version")
        if version not in self._accepted:
            return Ignored(place, f"version {version:g}")
        return _Record(document["record"]) if "record" in document else Ignored(place, "no record in it")

    def _legacy(self) -> Iterator[Found]:
        """The single layout's records, which count as long as there are no documents. A bad file counts as none."""
        if not self._legacy_path.is_file():
            return
        with self._legacy_path.open("rb") as file:
            try:
                found = read_single(file, self._legacy_path, self._accepted)
            except MediumInvalid as error:
                yield Ignored(NAME, f"{error.kind}: {error.reason}")
                return
            for one in found:
                yield one if isinstance(one, Row) else replace(one, path=f"{NAME} {one.path}")

    def _put(self, row: Row, *, overwrite: bool, check: bool) -> Outcome:
        if not _KEY.fullmatch(row.session_id):
            return Refusal(_place(quoted(row.session_id)), "no key of this layout: letters, digits, _ and -")
        path = self._table / (row.session_id + _SUFFIX)
        data = encoded(pretty({"version": self._version, "record": record_of(row)}) + "\n")
        taken = Refusal(_place(path.name), "something else is there; --overwrite replaces a file")
        if not lexists(path):
            try:
                if not check:
                    publish_file(path, data)
            except FileExistsError:
                return taken
            return Wrote.NOW
        if path.is_file() and path.stat().st_size == len(data) and path.read_bytes() == data:
            return Wrote.ALREADY
        if path.is_dir() or not overwrite:
            return taken
        if not check:
            replace_file(path, data)
        return Wrote.NOW


def _place(name: str) -> str:
    return f"{UNIT}/{TABLE}/{name}"


def _found(name: str, record: _Record) -> Row | Refusal:
    return found_at(f"{_place(name)} $.record", name.removesuffix(_SUFFIX), record.value)
