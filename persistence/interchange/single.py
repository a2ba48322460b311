"""The single layout of storage-json: one document holds all Sessions (FORMATS section 12).

Reading takes two passes over the file, so that nothing is given out of a document that turns out to be malformed at
its end, and of members that appear twice the last one counts, as it does in JavaScript. Memory: the largest record,
and 16 MiB.
"""

import json
import os
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from feedback.errors import MediumInvalid
from persistence.atomic_file import make_directories, staged_file
from persistence.interchange.rows import (
    TABLE,
    UNIT,
    VERSION,
    Found,
    Row,
    found_at,
    quoted,
    record_of,
)
from persistence.interchange.text import JsonReader, TextInvalid, encoded, pretty
from persistence.session_log.jsontext import Json

NAME = f"{UNIT}.json"

_MALFORMED = "malformed-medium"
_MISMATCH = "version-mismatch"
_MOST_BITS = 2**27


def read_single(file: BinaryIO, path: Path, accepted: Collection[int] = (VERSION,)) -> Iterator[Found]:
    """The rows of a document and the records that are none, in the document's order. The whole file is checked first.

    `accepted`: versions of the unit that are read. `file` is seekable; `path` is for messages.

    Raises:
        MediumInvalid: the original refuses to open such a file; nothing was given out.
        OSError: the file cannot be read.
    """
    repeated = _Repeats(min(file.seek(0, os.SEEK_END), _MOST_BITS))
    document = _Document(file)
    try:
        for place, (_, key, _) in enumerate(document.records()):
            repeated.add(key, place)
    except TextInvalid as error:
        raise MediumInvalid(str(path), _MALFORMED, f"not valid JSON: {error}") from None
    _check(document, path, accepted)
    return _rows(file, document.table, repeated)


def document_of(rows: Iterable[Row]) -> Iterator[bytes]:
    """The document of these rows, piece by piece, as the original publishes it. The rows come in `key_order`."""
    yield (
        f'{{\n  "unit": {{\n    "name": "{UNIT}",\n    "version": {VERSION}\n  }},\n'
        f'  "global": null,\n  "tables": {{\n    "{TABLE}": {{'
    ).encode()
    separator = ""
    for row in rows:
        key = json.dumps(row.session_id, ensure_ascii=False)
        yield encoded(f"{separator}\n      {key}: {pretty(record_of(row), '      ')}")
        separator = ","
    yield b"\n    }\n  }\n}\n" if separator else b"}\n  }\n}\n"


def write_single(path: Path, rows: Iterable[Row], *, replace: bool) -> None:
    """Put the document of these rows, which come in `key_order`, at `path`: whole, or not at all.

    Raises:
        FileExistsError: something is there, and not to `replace`.
        OSError: it cannot be written.
    """
    make_directories(path.parent)
    with staged_file(path, replace=replace) as staged, staged.open("wb") as file:
        file.writelines(document_of(rows))


class _Document:
    """One pass over the file. What it says of unit and tables is known when `records` has ended."""

    def __init__(self, file: BinaryIO) -> None:
        file.seek(0)
        self._reader = JsonReader(file)
        self._tables_seen = 0
        self.unit: Json = None
        self.tables: str = "no member `tables`"
        """What is wrong with them; empty: nothing."""
        self.table = 0
        """Which of the tables of our name counts, from 1 on; 0: there is none."""

    def records(self) -> Iterator[tuple[int, str, Json]]:
        """(number of the table, key, record) of all tables of our name, of which only the last one counts."""
        for name in self._reader.members():
            if name == "unit":
                self.unit = self._reader.value()
            elif name == "tables":
                yield from self._all_tables()
            else:
                self._reader.value()
        self._reader.end()

    def _all_tables(self) -> Iterator[tuple[int, str, Json]]:
        self.table, self.tables = 0, ""
        if self._reader.next() != "{":
            # To JavaScript's `typeof` an array is an object, one without our table.
            if not isinstance(self._reader.value(), list):
                self.tables = "`tables` is not an object"
            return
        for name in self._reader.members():
            if name != TABLE:
                self._reader.value()
            elif self._reader.next() == "{":
                self._tables_seen += 1
                self.table, self.tables = self._tables_seen, ""
                for key in self._reader.members():
                    yield self.table, key, self._reader.value()
            else:
                self._reader.value()
                self.table, self.tables = 0, f"table `{TABLE}` is not an object"


class _Repeats:
    """Which keys may have been there before, in so many bits however many there are: some that were not, none too few.

    A bit for each byte of the document, of which a record takes forty and more, makes those few.
    """

    def __init__(self, bits: int) -> None:
        self._bits = bits
        self._seen = bytearray(bits // 8 + 1)
        self._last: dict[str, int] = {}

    def add(self, key: str, place: int) -> None:
        """Note that a key is at this place."""
        byte, bit = divmod(hash(key) % self._bits, 8)
        if self._seen[byte] >> bit & 1:
            self._last[key] = place
        self._seen[byte] |= 1 << bit

    def counts(self, key: str, place: int) -> bool:
        """Whether no later place has the same key."""
        return self._last.get(key, place) == place


def _check(document: _Document, path: Path, accepted: Collection[int]) -> None:
    unit = document.unit
    if not isinstance(unit, dict) or unit.get("name") != UNIT or not isinstance(unit.get("version"), float):
        raise MediumInvalid(str(path), _MALFORMED, f"no header of the unit {UNIT}")
    if unit["version"] not in accepted:
        raise MediumInvalid(str(path), _MISMATCH, f"version {unit['version']:g} of the unit {UNIT}")
    if document.tables:
        raise MediumInvalid(str(path), _MALFORMED, document.tables)


def _rows(file: BinaryIO, table: int, repeated: _Repeats) -> Iterator[Found]:
    for place, (of_table, key, record) in enumerate(_Document(file).records()):
        if of_table == table and repeated.counts(key, place):
            yield found_at(f"$.tables.{TABLE}[{quoted(key)}]", key, record)
