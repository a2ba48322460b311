"""The system under fire: an AOF server that can be set back, a proxy in front of it, workers, a projector."""

import os
import random
import re
import signal
import sys
from collections import Counter
from contextlib import ExitStack, closing
from pathlib import Path
from types import TracebackType
from typing import Self
from zlib import crc32

import msgspec
from redis import Redis

from app.processes import Child
from app.system import child_environ
from feedback import keys
from feedback.connection import connect
from feedback.crashpoints import VARIABLE
from feedback.partitions import PartitionId
from persistence.sidecar import open_store
from persistence.sidecar.store import SidecarStore, StoredTopology
from tests.chaos.known_logs import KnownLogs
from tests.chaos.mutants import Mutant
from tests.chaos.server import ChaosServer
from tests.faulty_disk import FaultyDisk
from tests.harness import settings_for, wait_until
from tests.preloaded import SteppedClock, build, compiler, together
from tests.proxy import Proxy
from worker import topology as topologies

LEASE_TTL_S = 1.0
_BATCH_SIZES = (1, 8, 256, 256)
"""Of workers: one that takes a command at a time soon holds as much as it may."""


class ChaosSystem:
    """Real processes on real files under `home`. Everything is started and stopped by the thread that made it."""

    def __init__(
        self,
        home: Path,
        sessions: tuple[str, ...],
        *,
        workers: int,
        rng: random.Random,
        mutant: Mutant | None = None,
        sidecar_url: str | None = None,
    ) -> None:
        """`mutant` names a deliberately broken worker (`tests.chaos.mutants`); None is the real one.

        Without a `sidecar_url` the store is a SQLite file in `home`.
        """
        self._home, self._rng, self._mutant = home, rng, mutant
        for name in ("logs", "commits", "workshop"):
            (home / name).mkdir(parents=True)
        self._stack = ExitStack()
        self._born: Counter[str] = Counter()
        self._doomed: set[str] = set()
        self._clocks: dict[str, SteppedClock] = {}
        self._clock_library = build("stepped_clock") if compiler() else None
        self.disk = FaultyDisk(home) if compiler() else None
        self.server_clock = self._clock("server")
        self.server = ChaosServer(home / "valkey", self.server_clock.variables if self.server_clock else {})
        self.server.begin()
        self._stack.callback(self.server.stop)
        self.proxy = self._stack.enter_context(Proxy(self.server.url))
        self.settings = settings_for(
            self.proxy.url,
            home,
            partitions=8,
            lease_ttl=LEASE_TTL_S,
            flush_timeout=0.5,
            max_attempts=100,
            event_retention=1_000_000,
            result_ttl=3600,
            **({"sidecar_url": sidecar_url} if sidecar_url else {}),
        )
        self.known_logs = KnownLogs(Path(self.settings.sessions), home / "workshop", sessions)
        self.admin: Redis = self._stack.enter_context(closing(connect(self.server.url)))
        self.store: SidecarStore = self._stack.enter_context(closing(open_store(self.settings.sidecar_url)))
        topologies.establish(self.admin, self.store, self.settings)
        self.generations = {1: self.settings.partitions}
        """Generation -> how many partitions it has, the current one last."""
        self.settings = msgspec.structs.replace(self.settings, partitions=0)
        self.workers: list[Child] = [self._start("worker") for _ in range(workers)]
        self.projector = self._start("projector")

    def partitions(self) -> list[PartitionId]:
        """Those of all generations, in order."""
        return [PartitionId(one, number) for one, count in self.generations.items() for number in range(count)]

    def partition_of(self, session_id: str, generations_ago: int = 0) -> PartitionId:
        """Where a Session is served now, or was served in an earlier generation, if there was one."""
        generation = max(1, max(self.generations) - generations_ago)
        return PartitionId(generation, crc32(session_id.encode()) % self.generations[generation])

    def change_partitions(self, number: int, *, half: bool = False) -> None:
        """Begin a new generation; `half`: as if who does so died before Redis heard of it.

        Raises:
            SettingsInvalid: the last change is still under way.
        """
        stored = self._stored()
        if half and stored.retired and stored.partitions != number:
            successor = msgspec.structs.replace(
                stored,
                generation=stored.generation + 1,
                partitions=number,
                former=stored.partitions,
                retired=False,
            )
            self.store.set_topology(successor, replacing=stored)
            self._note_generation()
            return
        try:
            topologies.change(self.admin, self.store, number)
        finally:
            self._note_generation()  # Redis may not have heard of it

    def finish_change(self) -> None:
        """What an operator does who was told that a change failed: ask for the same again."""
        self.change_partitions(self._stored().partitions)

    def is_changed(self) -> bool:
        """Whether the last change is through."""
        return self._stored().retired

    def add_worker(self, crash: str | None = None) -> Child:
        """One more worker; `crash` arms a crash point in it."""
        child = self._start("worker", crash)
        self.workers.append(child)
        return child

    def replace_projector(self, crash: str | None = None) -> None:
        kill(self.projector)
        self.projector.stop(0)
        self.projector = self._start("projector", crash)

    def step_clock(self, child: Child, ahead_ms: int) -> bool:
        """Set a process's wall clock so far ahead of the real one; False where that cannot be done."""
        clock = self._clocks.get(child.name)
        if clock is not None:
            clock.step_to(ahead_ms)
        return clock is not None

    def bury(self) -> int:
        """Start others in the place of processes that died where they were meant to, or could not begin to serve.

        How many of the second kind: a process that is started while the server or the store is out of reach says so
        and ends, and whoever runs it starts it again.
        """
        refused = 0
        for child in [child for child in self.workers if child.poll() is not None]:
            if child.name in self._doomed or not has_begun(child) or self._mutant is not None:
                self.workers.remove(child)
                child.stop(0)
                if child.name not in self._doomed:
                    refused += 1
                    self.add_worker()
        if not self.workers:
            self.add_worker()
        ended = self.projector.poll() is not None
        if ended and (self.projector.name in self._doomed or not has_begun(self.projector)):
            refused += self.projector.name not in self._doomed
            self.replace_projector()
        return refused

    def retire_doomed(self) -> None:
        """Kill the processes whose crash point was not reached: they would stop in the quiet after the faults."""
        for child in self.workers:
            if child.name in self._doomed:
                kill(child)
                child.stop(0)
        self.workers = [child for child in self.workers if child.name not in self._doomed]
        if self.projector.name in self._doomed:
            self.replace_projector()
        self.bury()

    def end(self, child: Child) -> None:
        """SIGTERM, and whatever it takes after the grace."""
        child.stop(self.settings.shutdown_grace)

    def deaths(self) -> list[str]:
        """Processes that ended although nobody killed them."""
        self.bury()
        return [child.name for child in (*self.workers, self.projector) if child.poll() is not None]

    def broken_commands(self) -> set[str]:
        """Commands over which a worker met the defect that was armed in it: they fail, and say so."""
        logs = "".join(path.read_text() for path in self._logs.glob("worker-*.log") if path.stem in self._doomed)
        return set(re.findall(r'event="command broke" command_id=(\S+)', logs))

    def wait_until_owned(self) -> None:
        count = self.generations[max(self.generations)]
        owners = keys.owners(max(self.generations))
        wait_until(lambda: self.admin.hlen(owners) == count, "every partition is owned")

    @property
    def _logs(self) -> Path:
        return self._home / "logs"

    @property
    def commits(self) -> Path:
        """The workers' journals (`tests.chaos.worker`)."""
        return self._home / "commits"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for child in (*self.workers, self.projector):
            kill(child, signal.SIGCONT)
            self.end(child)
        self._stack.close()

    def _note_generation(self) -> None:
        stored = self._stored()
        self.generations[stored.generation] = stored.partitions

    def _stored(self) -> StoredTopology:
        stored = self.store.topology()
        assert stored is not None
        return stored

    def _clock(self, name: str) -> SteppedClock | None:
        if self._clock_library is None:
            return None
        clock = self._clocks[name] = SteppedClock(self._clock_library, self._home / "workshop", name)
        self._stack.callback(clock.close)
        return clock

    def _start(self, name: str, crash: str | None = None) -> Child:
        self._born[name] += 1
        label = f"{name}-{self._born[name]}"
        settings = msgspec.structs.replace(self.settings, batch_size=self._rng.choice(_BATCH_SIZES))
        program: tuple[str, ...] = ("-P", "-m", "app.cli", name)
        if name == "worker":
            mutant = self._mutant.value if self._mutant else "none"
            program = ("-m", "tests.chaos.worker", str(self.commits / label), mutant, name)
        # Every second process has a disk that may fail: the others go on, and what the first ones did is seen.
        clock, disk = self._clock(label), self.disk if self._born[name] % 2 else None
        preloaded = [part.variables for part in (clock, disk) if part is not None]
        environ: dict[str, str] = child_environ(settings) | (together(*preloaded) if preloaded else {})
        if crash is not None:
            environ[VARIABLE] = crash
            self._doomed.add(label)
        log = self._logs / f"{label}.log"
        child = Child(label, (sys.executable, *program), log=log, environ=environ)
        child.start()
        return child


def has_begun(child: Child) -> bool:
    """Whether a process said that it serves."""
    return any(f"{name} started" in child.log.read_text() for name in ("worker", "projector"))


def kill(child: Child, number: signal.Signals = signal.SIGKILL) -> None:
    """Send a signal to a child, if it is still there."""
    if child.pid is not None and child.poll() is None:
        os.kill(child.pid, number)


def is_stopped(child: Child) -> bool:
    """Whether a signal has stopped it, or it is gone."""
    try:
        return Path(f"/proc/{child.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0] in "TZ"
    except OSError:
        return True
