"""The system under fire: an AOF server that can be set back, a proxy in front of it, workers, a projector."""

import os
import random
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self
from zlib import crc32

from redis import Redis

from app.embedded import DURABLE, EmbeddedServer
from app.processes import Child
from app.system import child_environ
from feedback import keys
from feedback.connection import connect
from feedback.crashpoints import VARIABLE
from feedback.partitions import PartitionId
from persistence.sidecar import open_store
from persistence.sidecar.store import SidecarStore
from tests.chaos.mutants import Mutant, command
from tests.harness import settings_for, wait_until
from tests.proxy import Proxy

LEASE_TTL_S = 1.0


class ChaosSystem:
    """Real processes on real files under `home`. Everything is started and stopped by the thread that made it.

    `mutant` names a deliberately broken worker (`tests.chaos.mutants`); None is the real one.
    """

    def __init__(self, home: Path, *, workers: int, mutant: Mutant | None = None) -> None:
        self.logs = home / "logs"
        self.logs.mkdir(parents=True)
        self._copies = home / "aof-copy"
        self._server_home = home / "valkey"
        self.server = EmbeddedServer(self._server_home, DURABLE)
        self.server.start()
        self.proxy = Proxy(self.server.url)
        self.settings = settings_for(
            self.proxy.url,
            home,
            partitions=8,
            lease_ttl=LEASE_TTL_S,
            flush_timeout=0.5,
            max_attempts=100,
            event_retention=1_000_000,
            result_ttl=3600,
        )
        self.admin: Redis = connect(self.server.url)
        self.store: SidecarStore = open_store(self.settings.sidecar_url)
        self._mutant = mutant
        self._born = 0
        self._doomed: set[str] = set()
        self.workers: list[Child] = [self._start("worker") for _ in range(workers)]
        self.projector = self._start("projector")

    def partitions(self) -> list[PartitionId]:
        return [PartitionId(1, number) for number in range(self.settings.partitions)]

    def partition_of(self, session_id: str) -> PartitionId:
        number = crc32(session_id.encode()) % self.settings.partitions
        return PartitionId(1, number)

    def add_worker(self, crash: str | None = None) -> Child:
        """One more worker; `crash` arms a crash point in it."""
        child = self._start("worker", crash)
        self.workers.append(child)
        if crash is not None:
            self._doomed.add(child.name)
        return child

    def bury(self) -> None:
        """Forget the workers that died where they were meant to."""
        for child in [child for child in self.workers if child.name in self._doomed and child.poll() is not None]:
            self.workers.remove(child)
            child.stop(0)
        if not self.workers:
            self.add_worker()

    def retire_doomed(self) -> None:
        """Kill the workers whose crash point was not reached: they would stop in the quiet after the faults."""
        for child in self.workers:
            if child.name in self._doomed:
                kill(child)
                child.stop(0)
        self.workers = [child for child in self.workers if child.name not in self._doomed]
        if not self.workers:
            self.add_worker()

    def end(self, child: Child) -> None:
        """SIGTERM, and whatever it takes after the grace."""
        child.stop(self.settings.shutdown_grace)

    def replace_projector(self) -> None:
        kill(self.projector)
        self.projector.stop(0)
        self.projector = self._start("projector")

    def deaths(self) -> list[str]:
        """Processes that ended although nobody killed them."""
        self.bury()
        return [child.name for child in (*self.workers, self.projector) if child.poll() is not None]

    def restart_server(self, meanwhile: Callable[[], str]) -> str:
        """SIGKILL the server, do something to its files, and start it again on the same port."""
        assert self.server.child is not None
        url = self.server.url
        kill(self.server.child)
        self.server.stop()
        said = meanwhile()
        self.server.start()
        assert self.server.url == url, "another program took the server's port"
        return said

    def lose_everything(self) -> str:
        shutil.rmtree(self._server_home / "appendonlydir")
        return "with nothing left"

    def lose_tail(self, rng: random.Random) -> str:
        """What a power cut does with `appendfsync everysec`, cut at any byte."""
        log = max((self._server_home / "appendonlydir").glob("*.incr.aof"))
        size = log.stat().st_size
        lost = min(size, int(10 ** rng.uniform(1, 5)))
        os.truncate(log, size - lost)
        return f"without the last {lost} bytes"

    def copy_log(self) -> None:
        """Remember the server's data as a replica may have had them."""
        shutil.rmtree(self._copies, ignore_errors=True)
        shutil.copytree(self._server_home / "appendonlydir", self._copies)

    def promote_copy(self) -> str:
        """A replica that had fallen behind takes over: its data are of the last `copy_log`."""
        if not self._copies.exists():
            return "as it was"
        shutil.rmtree(self._server_home / "appendonlydir")
        shutil.copytree(self._copies, self._server_home / "appendonlydir")
        return "as a stale replica"

    def wait_until_owned(self) -> None:
        wait_until(lambda: self.admin.hlen(keys.owners(1)) == self.settings.partitions, "every partition is owned")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for child in (*self.workers, self.projector):
            kill(child, signal.SIGCONT)
            self.end(child)
        self.store.close()
        self.admin.close()
        self.proxy.close()
        self.server.stop()

    def _start(self, name: str, crash: str | None = None) -> Child:
        self._born += 1
        log = self.logs / f"{name}-{self._born}.log"
        environ = child_environ(self.settings) | ({} if crash is None else {VARIABLE: crash})
        child = Child(log.stem, command(name, self._mutant), log=log, environ=environ)
        child.start()
        return child


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
