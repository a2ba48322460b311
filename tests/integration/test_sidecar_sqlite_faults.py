"""The SQLite engine when disks fill up or fail and processes are killed."""

import shutil
import signal
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from persistence.sidecar import SqliteStore
from tests.conformance.sidecar_engines import P0, message_ids
from tests.faulty_disk import KILLED, ONCE, FaultyDisk
from tests.integration.sidecar_children import child, line_of, rate, run


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "sidecar.sqlite3"


@pytest.mark.process
class TestFullDisk:
    def test_a_full_disk_loses_the_batch_and_nothing_else(self, path: Path) -> None:
        """By a limit on file sizes, which ends a write in the middle; the same store goes on when it is lifted."""
        script = """
import resource, sys
from pathlib import Path
from feedback.errors import StoreUnavailable
from persistence.sidecar import SqliteStore
from tests.integration.sidecar_children import rate
store = SqliteStore(Path(sys.argv[1]))
rate(store, "kept")
_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (65_000, hard))
for _ in range(2):
    try:
        rate(store, *(f"lost {number}" for number in range(2000)), after=1)
    except StoreUnavailable as error:
        print(str(error).rpartition("sqlite3: ")[2], flush=True)
print(store.feedback("s").revision, flush=True)
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
rate(store, "after", after=1)
print("committed", flush=True)
sys.stdin.readline()
"""
        with child(script, path) as process:
            for _ in range(2):
                assert line_of(process).startswith(("I/O error", "no space left"))
            assert line_of(process) == "1"
            assert line_of(process) == "committed"
            process.kill()
        with closing(SqliteStore(path)) as opened:
            assert message_ids(opened, "s") == ["kept", "after"]

    def test_a_checkpoint_that_fails_fails_no_commit_and_is_told(self, path: Path) -> None:
        """By a limit on file sizes that the log keeps to and the main file is past already."""
        with closing(SqliteStore(path)) as opened:
            rate(opened, *(f"m{number:05}" for number in range(20_000)))
        script = """
import resource, sys
from pathlib import Path
from persistence.sidecar import SqliteStore, sqlite_wal
from tests.integration.sidecar_children import rate
sqlite_wal._CHECKPOINT_PAGES = 0
store = SqliteStore(Path(sys.argv[1]))
_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, hard))
rate(store, "m19999", after=20_000)
print(*store.health().findings, flush=True)
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
rate(store, "m19999", after=20_001)
print(*store.health().findings, flush=True)
sys.stdin.readline()
"""
        with child(script, path) as process:
            assert line_of(process).startswith("the last checkpoint failed: ")
            assert line_of(process) == ""
            with closing(SqliteStore(path)) as opened:
                assert opened.stored_sessions(["s"])["s"].revision == 20_002


@pytest.mark.process
class TestKilled:
    SCRIPT = """
import sys
from pathlib import Path
from persistence.sidecar import SqliteStore
from persistence.sidecar.store import PutItem
from tests.conformance.sidecar_engines import P0, item, record
from tests.integration.sidecar_children import rate
store = SqliteStore(Path(sys.argv[1]))
rate(store, "committed")
epoch = store.acquire_fences([P0], "child")[P0].epoch
with store.transaction({P0: epoch}) as transaction:
    # More than the page cache holds: part of it is in the log already.
    puts = [PutItem("s", item(f"m{number}", note="n" * 1000), number) for number in range(2, 30_000)]
    transaction.apply(puts, [record(1)], {})
    if sys.argv[2] == "inside":
        print("inside", flush=True)
        sys.stdin.readline()
print("after", flush=True)
sys.stdin.readline()
"""

    def test_inside_a_transaction_nothing_of_it_is_visible(self, path: Path) -> None:
        with child(self.SCRIPT, path, "inside") as process:
            assert line_of(process) == "inside"
            with closing(SqliteStore(path)) as other:
                assert message_ids(other, "s") == ["committed"]
                process.kill()
                process.wait()
                assert message_ids(other, "s") == ["committed"]
                assert other.heads([P0]) == {P0: 0}
                rate(other, "next", after=1)
        with closing(SqliteStore(path)) as again:
            assert message_ids(again, "s") == ["committed", "next"]

    def test_after_the_commit_all_of_it_is_there(self, path: Path) -> None:
        with child(self.SCRIPT, path, "commit") as process:
            assert line_of(process) == "after"
            process.kill()
            process.wait()
        with closing(SqliteStore(path)) as opened:
            assert len(message_ids(opened, "s")) == 29_999
            assert opened.acquire_fences([P0], "next")[P0].sequence == 1


SYNCS = [*(("fsync", nth) for nth in range(1, 5)), *(("fdatasync", nth) for nth in range(1, 20))]


def strace() -> str:
    """The tracer, where it may trace."""
    strace = shutil.which("strace")
    probe = [strace or "false", "-o", "/dev/null", "true"]
    if strace is None or subprocess.run(probe, check=False, capture_output=True).returncode != 0:
        pytest.skip("strace is missing, or may not trace")
    return strace


@pytest.mark.process
def test_opening_syncs_what_was_found_in_the_log_before_anything_is_answered(path: Path) -> None:
    """A process killed between a write and its sync leaves a commit that is visible, but not yet durable."""
    trace = path.parent / "trace"
    script = """
import sys
from pathlib import Path
from persistence.sidecar import SqliteStore
store = SqliteStore(Path(sys.argv[1]))
print(len(store.feedback("s").items), flush=True)
store.close()
"""
    with closing(SqliteStore(path)) as opened:
        rate(opened, "m")
        with child(script, path, under=(strace(), "-f", "-y", "-qq", "-o", str(trace), "-e", "trace=fsync")) as process:
            assert line_of(process) == "1"
            process.wait(30)
    synced = [line.partition("<")[2].partition(">")[0] for line in trace.read_text().splitlines()]
    assert synced == [f"{path}-wal", str(path.parent)]


@pytest.mark.process
@pytest.mark.parametrize(("call", "nth"), SYNCS)
class TestEverySync:
    """From making the file, over commits and a checkpoint, to closing: SQLite calls fdatasync, this package fsync."""

    SCRIPT = """
import sys
from pathlib import Path
from feedback.errors import StoreUnavailable
from persistence.sidecar import SqliteStore, sqlite_wal
from tests.integration.sidecar_children import rate
sqlite_wal._CHECKPOINT_PAGES = 10
store, done = None, 0
for attempt in range(12):
    try:
        store = store or SqliteStore(Path(sys.argv[1]))
        revision = store.stored_sessions(["s"])["s"].revision if done else 0
        assert revision == done, "a failed commit is not there"
        rate(store, f"m{done}", after=done)
        done += 1
        print("committed", done, flush=True)
    except StoreUnavailable as error:
        print("failed", error, flush=True)
    if done == 3:
        break
store.close()
print("closed", flush=True)
"""

    def meet(self, path: Path, call: str, fault: int) -> tuple[int, str]:
        """How the script ends when such calls meet the fault, and what it prints."""
        disk = FaultyDisk(path.parent)
        disk.fails(call, fault, f"{path.parent}")
        return run(self.SCRIPT, path, variables=disk.variables)

    def test_that_fails_fails_at_most_its_own_operation(self, path: Path, call: str, nth: int) -> None:
        code, output = self.meet(path, call, ONCE + nth)
        lines = output.splitlines()
        assert code == 0
        assert [line for line in lines if line.startswith("committed")] == [f"committed {n}" for n in range(1, 4)]
        assert sum(line.startswith("failed") for line in lines) <= 1
        assert lines[-1] == "closed"
        with closing(SqliteStore(path)) as opened:
            assert message_ids(opened, "s") == [f"m{number}" for number in range(3)]
            assert opened.health().findings == ()

    def test_at_which_the_process_dies_loses_nothing_that_was_acknowledged(
        self, path: Path, call: str, nth: int
    ) -> None:
        code, output = self.meet(path, call, KILLED + nth)
        assert code == -signal.SIGKILL
        acknowledged = output.count("committed")
        with closing(SqliteStore(path)) as opened:
            kept = message_ids(opened, "s")
            assert kept == [f"m{number}" for number in range(len(kept))]
            assert acknowledged <= len(kept) <= acknowledged + 1
            rate(opened, "next", after=len(kept))
