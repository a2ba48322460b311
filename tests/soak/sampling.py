"""What is measured while the load goes on: of each process, of the Redis server, of the store's file."""

from collections.abc import Mapping
from pathlib import Path

from redis import Redis

from tests.soak.judging import Bound, Sample

MIB = 2**20

BOUNDS: Mapping[str, Bound] = {
    # A command passes some 2 KiB through a worker's memory: a hundredth of that, if it stayed, would be seen.
    "resident memory": Bound(slack=2 * MIB, per_command=16),
    "file descriptors": Bound(slack=2, per_command=0),
    "threads": Bound(slack=2, per_command=0),
    "used_memory": Bound(slack=1 * MIB, per_command=8),
    "keys": Bound(slack=100, per_command=0.001),
    "bytes of the store": Bound(slack=4 * MIB, per_command=16),
}
"""How much each may grow after warming up."""


class Recorder:
    """Series of samples, by what was measured: (who, quantity)."""

    def __init__(self) -> None:
        self.series: dict[tuple[str, str], list[Sample]] = {}

    def note(self, who: str, commands: int, measured: Mapping[str, float]) -> None:
        for quantity, value in measured.items():
            self.series.setdefault((who, quantity), []).append(Sample(commands, value))


def of_process(pid: int) -> dict[str, float]:
    """Resident memory in bytes, open file descriptors, threads.

    Raises:
        OSError: there is no such process (any more).
    """
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return {
        "resident memory": 1024.0 * int(status["VmRSS"].split()[0]),
        "file descriptors": float(len(list(Path(f"/proc/{pid}/fd").iterdir()))),
        "threads": float(status["Threads"]),
    }


def of_server(redis: Redis) -> dict[str, float]:
    """Bytes that the server's data take, and how many keys there are."""
    return {"used_memory": float(redis.info("memory")["used_memory"]), "keys": float(redis.execute_command("DBSIZE"))}


def of_store(path: Path) -> dict[str, float]:
    """Bytes of an SQLite store, its log included."""
    files = (path, path.with_name(path.name + "-wal"))
    return {"bytes of the store": float(sum(file.stat().st_size for file in files if file.exists()))}
