"""The campaign's Redis server: restarted with the data that a fault leaves it."""

import os
import random
import shutil
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from app.embedded import DURABLE, EmbeddedServer


class ChaosServer(EmbeddedServer):
    """An embedded server with an append-only file; it keeps its port. Started by the thread that made it."""

    def __init__(self, home: Path, variables: Mapping[str, str]) -> None:
        """`variables` are added to its environment."""
        super().__init__(home, DURABLE)
        self._variables = variables
        self._aof = home / "appendonlydir"
        self._copy = home / "copy"

    def restart(self, meanwhile: Callable[[], str]) -> str:
        """SIGKILL it, do something to its files, and start it again on the same port."""
        assert self.child is not None
        url = self.url
        self.child.kill()
        self.stop()
        said = meanwhile()
        with self._surroundings():
            super().start()
        assert self.url == url, "another program took the server's port"
        return said

    def begin(self) -> None:
        """Start it for the first time."""
        with self._surroundings():
            self.start()

    def signal(self, number: signal.Signals) -> None:
        assert self.child is not None
        assert self.child.pid is not None
        os.kill(self.child.pid, number)

    def lose_everything(self) -> str:
        shutil.rmtree(self._aof)
        return "with nothing left"

    def lose_tail(self, rng: random.Random) -> str:
        """What a power cut does with `appendfsync everysec`, cut at any byte."""
        log = max(self._aof.glob("*.incr.aof"))
        size = log.stat().st_size
        lost = min(size, int(10 ** rng.uniform(1, 5)))
        os.truncate(log, size - lost)
        return f"without the last {lost} bytes"

    def copy_data(self) -> None:
        """Remember its data as a replica may have had them."""
        shutil.rmtree(self._copy, ignore_errors=True)
        shutil.copytree(self._aof, self._copy)

    def promote_copy(self) -> str:
        """A replica that had fallen behind takes over: its data are of the last `copy_data`."""
        if not self._copy.exists():
            return "as it was"
        shutil.rmtree(self._aof)
        shutil.copytree(self._copy, self._aof)
        return "as a stale replica"

    @contextmanager
    def _surroundings(self) -> Iterator[None]:
        """A server takes this process's environment."""
        before = {name: os.environ.get(name) for name in self._variables}
        os.environ.update(self._variables)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value
