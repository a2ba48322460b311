"""A deployment as `feedback up` makes it, of real processes: server with AOF, SQLite, workers, projector."""

import os
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from redis import Redis

from app.embedded import DURABLE, EmbeddedServer
from app.inspection import read_ownership
from app.processes import Child
from app.system import child_environ
from app.testing import settings_in_home
from benchmarks.measure import wait_until
from feedback import FeedbackClient, keys
from feedback.connection import connect
from feedback.settings import Settings
from persistence.sidecar import open_store
from persistence.sidecar.store import SidecarStore
from projections.lag import lag
from projections.topology import read_topology
from projections.waiting import read_backlog
from worker import topology as topologies

_STOP_S = 20.0
_LENGTHS = """local sum = 0
for i = 1, #KEYS, 3 do
    sum = sum + redis.call('LLEN', KEYS[i]) + redis.call('LLEN', KEYS[i + 1]) + redis.call('ZCARD', KEYS[i + 2])
end
return sum"""


class Deployment:
    """One system; `redis`, `client` and `store` are this process's own connections to it."""

    def __init__(
        self, settings: Settings, redis: Redis, client: FeedbackClient, store: SidecarStore, timed: Path | None = None
    ) -> None:
        """Workers note their steps in `timed`, if it is given (`benchmarks.timed_worker`)."""
        self._timed = timed
        self.settings = settings
        self.redis = redis
        self.client = client
        self.store = store
        topologies.establish(redis, store, settings)
        topology = read_topology(redis)
        assert topology is not None, "it was set up a moment ago"
        self.topology = topology
        self.workers: list[Child] = []
        self._projectors: list[Child] = []

    def start_workers(self, number: int) -> None:
        """So many more workers, with a fair share of the partitions each."""
        self.workers += [self._child("worker") for _ in range(number)]
        wait_until(self._is_shared, "the workers share the partitions")

    def start_projector(self) -> None:
        self._projectors.append(self._child("projector"))

    def worker_pid(self) -> int:
        """The process of the only worker."""
        (worker,) = self.workers
        assert worker.pid is not None, "it runs"
        return worker.pid

    def projector_pid(self) -> int:
        """The process of the only projector."""
        (projector,) = self._projectors
        assert projector.pid is not None, "it runs"
        return projector.pid

    def stop_workers(self) -> None:
        """Have all workers drain and end."""
        while self.workers:
            self.workers.pop().stop(_STOP_S)

    def signal_projector(self, number: signal.Signals) -> None:
        """Hold the projector (SIGSTOP), or let it go on (SIGCONT)."""
        for projector in self._projectors:
            assert projector.pid is not None, "it runs"
            os.kill(projector.pid, number)

    def end(self) -> None:
        """End every process but the server, whatever it is doing."""
        for child in (*self.workers, *self._projectors):
            child.stop(0)

    def backlog(self) -> int:
        """Commands that are not answered yet. Asked a hundred times a second: this must cost the server little."""
        partitions = self.topology.all_partitions()
        lists = ((keys.queue(one), keys.claimed(one), keys.aside(one)) for one in partitions)
        names = [name for of_one in lists for name in of_one]
        remaining: int = self.redis.execute_command("EVAL", _LENGTHS, len(names), *names)
        return remaining

    def failures(self) -> int:
        """Commands that failed; a benchmark that has any measures something else than it says."""
        return sum(queue.failed for queue in read_backlog(self.redis, self.topology.all_partitions()).values())

    def behind(self) -> int:
        """Outcomes that are committed and not projected."""
        return sum(lag(self.redis, self.store, self.topology).values())

    def committed(self) -> int:
        """Outcomes that the store has."""
        return sum(self.store.heads(self.topology.all_partitions()).values())

    def settle(self) -> None:
        """Until everything is answered and projected, and dirty pages are on the disk."""
        wait_until(lambda: self.backlog() == 0, "everything is answered")
        if self._projectors:
            wait_until(lambda: self.behind() == 0, "everything is projected")
        os.sync()

    def _child(self, name: str) -> Child:
        program: tuple[str, ...] = ("app.cli",)
        if name == "worker" and self._timed is not None:
            program = ("benchmarks.timed_worker", str(self._timed))
        command = (sys.executable, "-P", "-m", *program, name)
        log = Path(self.settings.sessions).with_name(f"{name}.log")
        child = Child(name, command, log=log, environ=child_environ(self.settings))
        child.start()
        return child

    def _is_shared(self) -> bool:
        for worker in self.workers:
            if worker.poll() is not None:
                raise RuntimeError(f"a worker ended: {worker.log_tail()}")
        ownership = read_ownership(self.redis)
        shares = Counter(ownership.owners.values())
        fair = -(-self.topology.partitions // len(self.workers))
        return ownership.is_complete and len(shares) == len(self.workers) and max(shares.values()) <= fair


@contextmanager
def deployed(
    home: Path, *, workers: int = 1, projector: bool = True, timed: Path | None = None
) -> Iterator[Deployment]:
    """A deployment whose files all lie in `home`, which is empty. It serves from here on, until the block ends.

    Its workers note their steps in `timed`, if it is given (`benchmarks.timed_worker`).

    Raises:
        RuntimeError: at the end, when a command of the benchmark failed.
    """
    home.mkdir(parents=True, exist_ok=True)
    server = EmbeddedServer(home / "valkey", DURABLE)
    with ExitStack() as stack:
        stack.callback(server.stop)
        server.start()
        settings = settings_in_home(home, redis_url=server.url)
        deployment = Deployment(
            settings,
            stack.enter_context(connect(server.url)),
            stack.enter_context(FeedbackClient.from_url(server.url)),
            stack.enter_context(closing(open_store(settings.sidecar_url))),
            timed,
        )
        stack.callback(deployment.end)
        if projector:
            deployment.start_projector()
        if workers:
            deployment.start_workers(workers)
        yield deployment
        if failures := deployment.failures():
            raise RuntimeError(f"{failures} commands failed; see the failed registry")
