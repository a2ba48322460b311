"""The power is cut at every sync, one after the other: what was acknowledged is there afterwards (FAULTS, S5)."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from persistence.session_log import SessionLogs
from persistence.sidecar import SqliteStore
from tests.conformance.sidecar_engines import P0, commit, message_ids, record
from tests.faulty_disk import POWER_CUT, FaultyDisk, MortalDisk
from tests.integration.sidecar_children import rate, run

pytestmark = pytest.mark.process

STORE = """
import sys
from pathlib import Path
from persistence.sidecar import SqliteStore, sqlite_wal
from tests.integration.sidecar_children import rate
sqlite_wal._CHECKPOINT_PAGES = 10
store = SqliteStore(Path(sys.argv[1]))
for done in range(4):
    rate(store, f"m{done}", after=done)
    print(done, flush=True)
store.close()
print("closed", flush=True)
"""
FORGETTING = """
import sys
from pathlib import Path
from persistence.sidecar import SqliteStore, sqlite_wal
sqlite_wal._CHECKPOINT_PAGES = 5
store = SqliteStore(Path(sys.argv[1]))
for done in range(3):
    assert store.prune(expired_before=2000, limit=100) == 100
    print(done, flush=True)
store.close()
print("closed", flush=True)
"""
LOG = """
import sys
from pathlib import Path
from persistence.session_log import LogWriter
from persistence.session_log.events import exchange
with LogWriter(Path(sys.argv[1]), "s", created_at=1, cwd="/w") as log:
    for done in range(4):
        log.append(exchange(done + 1, "Please?", "Here.", user_id=f"u{done}", assistant_id=f"m{done}"))
        print(done, flush=True)
print("closed", flush=True)
"""


def every(last: int, everyday: int = 3) -> list[object]:
    """All syncs up to this one; in everyday runs one of so many."""
    return [pytest.param(nth, marks=[] if nth % everyday == 0 else [pytest.mark.chaos]) for nth in range(1, last + 1)]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[MortalDisk]:
    disk = MortalDisk(tmp_path)
    yield disk
    disk.unmount()


def run_until_cut(script: str, disk: MortalDisk, path: Path, nth: int) -> list[str]:
    """Run the script on a disk that dies at the nth sync; what it printed. The disk is back afterwards."""
    faults = FaultyDisk(disk.path.parent)
    faults.fails("sync", POWER_CUT + nth, f"{disk.path}")
    _, said = run(script, path, variables=faults.variables)
    disk.unmount()
    assert disk.mount()
    return said.split()


@pytest.mark.parametrize("nth", every(27))
def test_a_store_keeps_what_it_committed(disk: MortalDisk, nth: int) -> None:
    """Nothing, all, or the commit that was under way on top; and it goes on from there."""
    path = disk.path / "sidecar.sqlite3"
    said = run_until_cut(STORE, disk, path, nth)
    with closing(SqliteStore(path)) as store:
        acknowledged = len([word for word in said if word.isdigit()])
        kept = message_ids(store, "s") if store.feedback("s") is not None else []
        assert kept == [f"m{number}" for number in range(len(kept))]
        assert acknowledged <= len(kept) <= acknowledged + 1
        assert store.health().findings == ()
        rate(store, "next", after=len(kept))


@pytest.mark.parametrize("nth", every(18, everyday=6))
def test_a_store_forgets_a_batch_of_records_or_none_of_it(disk: MortalDisk, nth: int) -> None:
    """Cut in the midst of forgetting, or of copying the write-ahead log: what counts them agrees with what is there."""
    path = disk.path / "sidecar.sqlite3"
    with closing(SqliteStore(path)) as store:
        epoch = store.acquire_fences([P0], "w")[P0].epoch
        commit(store, records=[record(number) for number in range(1, 401)], epochs={P0: epoch})
        rate(store, "m")
    said = run_until_cut(FORGETTING, disk, path, nth)
    with closing(SqliteStore(path)) as store:
        acknowledged = len([word for word in said if word.isdigit()])
        left = sum(1 for _ in store.outcomes(P0, 0, 1000))
        assert left in (400 - 100 * acknowledged, 300 - 100 * acknowledged)
        assert (store.health().commands, store.health().findings) == (left, ())
        assert (message_ids(store, "s"), store.heads([P0])) == (["m"], {P0: 400})


@pytest.mark.parametrize("nth", every(8))
def test_a_session_log_keeps_what_was_appended(disk: MortalDisk, nth: int) -> None:
    """Nothing, all, or the batch that was under way; a tail that was torn is no message."""
    said = run_until_cut(LOG, disk, disk.path / "sessions", nth)
    view = SessionLogs(disk.path / "sessions").inspect("s")
    kept = [] if view is None else list(view.message_ids)
    acknowledged = len([word for word in said if word.isdigit()])
    assert kept == [f"m{number}" for number in range(len(kept))]
    assert acknowledged <= len(kept) <= acknowledged + 1
