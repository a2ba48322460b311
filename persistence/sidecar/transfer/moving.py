"""Moving a store: seal the source, copy, compare, hand over.

Each step is one transaction that says so in the store that it changes, so whoever runs it again after a kill at any
moment goes on from there:

    target           source           what it means
    ───────────────  ───────────────  ─────────────────────────────────────────────────────────
    empty            in use           nothing has happened
    unfinished copy  in use           the target is reserved
    unfinished copy  sealed           nobody writes: the copy grows, or is compared
    in use           sealed           handed over; only the source does not say so yet
    in use           moved            done

Between sealing and handing over neither store serves anybody. At no moment both do.
"""

import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import TypeAlias

import msgspec
from msgspec import Struct

from feedback.errors import MigrationFailed, SettingsInvalid
from persistence.sidecar.transfer.ends import StoreEnd
from persistence.sidecar.transfer.opening import open_end
from persistence.sidecar.transfer.tables import Census, Censuses, Mark, Progress, Reached, Row, Table, size_of
from persistence.sidecar.urls import public_url

_PAGE_ROWS = 2000
_FIRST_PAGE_ROWS = 64
_PAGE_BYTES = 4 * 2**20


class Step(Struct, frozen=True):
    """How far it is: "copied", or "compared" (each row twice), so many rows of so many."""

    what: str
    done: int
    total: int


class Moved(Struct, frozen=True):
    """What stands in the target now. `resumed`: an earlier run had begun; `already`: it had ended as well."""

    source: str
    target: str
    resumed: bool
    already: bool
    censuses: Censuses


OnStep: TypeAlias = Callable[[Step], None]


def move(source_url: str, target_url: str, on_step: OnStep) -> Moved:
    """Move everything, or go on where an earlier run was interrupted. Done before, it only says so.

    Raises:
        SettingsInvalid: nothing to move, or a target that is in use, holds anything, or belongs to another transfer.
        MigrationFailed: the copy is not what the source is; neither store serves.
        StoreForeign, StoreUnavailable: one of the stores cannot be opened, read or written. Run it again.
    """
    with _both(source_url, target_url) as (source, target):
        return _Transfer(source, target, on_step).run()


def abandon(source_url: str, target_url: str) -> None:
    """Give an unfinished transfer up: the target is empty again, the source serves again. Repeatable.

    Raises:
        SettingsInvalid: it is finished, or the two stores do not belong to one transfer.
        StoreForeign, StoreUnavailable: as `move`.
    """
    with _both(source_url, target_url) as (source, target):
        sealed, copy = source.mark("source"), target.mark("target")
        if (sealed and sealed.finished) or (copy and copy.finished):
            raise SettingsInvalid("--abandon: the transfer is finished, and the target may be in use")
        if sealed and sealed.peer != target.location:
            raise SettingsInvalid(f"--to: {source.location} is being moved to {sealed.peer}, not there")
        if copy and copy.peer != source.location:
            raise SettingsInvalid(f"--from: {target.location} is an unfinished copy of {copy.peer}, not of that")
        # First the copy: nobody may finish it when the source serves again.
        if copy:
            target.undo("target")
        if sealed:
            source.undo("source")


@contextmanager
def _blamed_on(flag: str) -> Iterator[None]:
    """What is wrong with a URL is said of the flag that gave it, and not of the setting that it usually is."""
    try:
        yield
    except SettingsInvalid as error:
        raise SettingsInvalid(str(error).replace("sidecar_url:", f"{flag}:", 1)) from error.__cause__


@contextmanager
def _both(source_url: str, target_url: str) -> Iterator[tuple[StoreEnd, StoreEnd]]:
    with _blamed_on("--from"):
        source = open_end(source_url, create=False)
    if source is None:
        raise SettingsInvalid(f"--from: there is no store at {public_url(source_url)}")
    with closing(source):
        with _blamed_on("--to"):
            target = open_end(target_url, create=True)
        assert target is not None, "it is made where there is none"
        with closing(target):
            yield source, target


class _Transfer:
    def __init__(self, source: StoreEnd, target: StoreEnd, on_step: OnStep) -> None:
        self._source = source
        self._target = target
        self._on_step = on_step

    def run(self) -> Moved:
        sealed, copy = self._source.mark("source"), self._target.mark("target")
        self._refuse_others(sealed, copy)
        resumed = sealed is not None or copy is not None
        already = copy is not None and copy.finished
        known = copy or sealed
        transfer = secrets.token_bytes(16) if known is None else known.transfer
        if copy is None:
            if not self._target.is_empty():
                raise SettingsInvalid(f"--to: {self._target.location} holds something already; name an empty one")
            copy = Mark(transfer, self._source.location, finished=False, progress=Progress())
            self._target.begin(copy)
        if sealed is None:
            sealed = Mark(transfer, self._target.location, finished=False, progress=Progress())
            self._source.seal(sealed)
        progress = copy.progress
        if not copy.finished:
            progress = self._copy(progress)
            progress = msgspec.structs.replace(progress, censuses=self._compare())
            self._target.finish("target", progress)
        if not sealed.finished:
            self._source.finish("source", progress)
        return Moved(self._source.location, self._target.location, resumed, already, progress.censuses)

    def _refuse_others(self, sealed: Mark | None, copy: Mark | None) -> None:
        """Whatever knows of a transfer must know of this one."""
        source, target = self._source.location, self._target.location
        if self._target.mark("source") is not None:
            raise SettingsInvalid(f"--to: {target} was itself moved, or is being moved; name an empty one")
        itself = self._source.mark("target")
        if itself is not None and not itself.finished:
            raise SettingsInvalid(f"--from: {source} is itself an unfinished copy, of {itself.peer}")
        if sealed is not None and copy is None and (sealed.peer != target or sealed.finished):
            verb = "was moved" if sealed.finished else "is being moved"
            raise SettingsInvalid(f"--from: {source} {verb} to {sealed.peer}")
        if copy is not None and not _is_of(copy, sealed, source):
            raise SettingsInvalid(f"--to: {target} is a copy of {copy.peer}; name an empty one")

    def _copy(self, progress: Progress) -> Progress:
        """Copy what is missing, page by page; what was copied before counts."""
        total = sum(map(self._source.count, Table))
        done = sum(reached.rows for reached in progress.reached.values())
        for table in Table:
            reached = progress.reached.get(table, Reached(b"", 0))
            pages = _Pages(self._source, table, reached.cursor)
            while rows := pages.read():
                reached = Reached(pages.cursor, reached.rows + len(rows))
                after = Progress(reached=progress.reached | {table: reached})
                self._target.write(table, rows, progress, after)
                progress = after
                done += len(rows)
                self._on_step(Step("copied", done, total))
        return progress

    def _compare(self) -> Censuses:
        """Read both stores from the beginning; what they hold must be the same.

        Raises:
            MigrationFailed: naming the table and both censuses.
        """
        total = sum(self._source.count(table) + self._target.count(table) for table in Table)
        done = 0

        def census(end: StoreEnd, table: Table) -> Census:
            nonlocal done
            counted, pages = Census(), _Pages(end, table, b"")
            while rows := pages.read():
                counted = counted.over(rows)
                done += len(rows)
                self._on_step(Step("compared", done, total))
            return counted

        censuses: Censuses = {}
        for table in Table:
            ours, theirs = census(self._source, table), census(self._target, table)
            if ours != theirs:
                raise MigrationFailed(
                    f"table {table}: {ours.rows} rows with digest {ours.digest} in {self._source.location}, but "
                    f"{theirs.rows} with {theirs.digest} in {self._target.location}; give it up with --abandon"
                )
            censuses[table] = ours
        return censuses


def _is_of(copy: Mark, sealed: Mark | None, source: str) -> bool:
    """Whether this is the copy of that source: of the same transfer, or reserved for it and nothing more."""
    if sealed is not None:
        return copy.transfer == sealed.transfer
    return copy.peer == source and not (copy.finished or copy.progress.reached)


class _Pages:
    """A table's pages, in a size that memory has room for: rows may be long."""

    def __init__(self, end: StoreEnd, table: Table, cursor: bytes) -> None:
        self._end = end
        self._table = table
        self._limit = _FIRST_PAGE_ROWS
        self.cursor = cursor

    def read(self) -> Sequence[Row]:
        """The next page's rows; none at the end."""
        page = self._end.page(self._table, self.cursor, self._limit)
        self.cursor = page.cursor
        size = size_of(page.rows)
        if size > _PAGE_BYTES:
            self._limit = max(1, self._limit // 2)
        elif size < _PAGE_BYTES // 4:
            self._limit = min(_PAGE_ROWS, 2 * self._limit)
        return page.rows
