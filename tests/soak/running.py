"""One soak: a whole system under load, looked at once in a while."""

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from pathlib import Path

from msgspec import Struct

from app.embedded import DURABLE, EmbeddedServer
from app.processes import Child
from app.system import child_environ
from feedback.connection import connect
from feedback.settings import Settings
from tests.harness import settings_for
from tests.soak.judging import Verdict, judge
from tests.soak.load import Load, write_logs
from tests.soak.sampling import BOUNDS, Recorder, of_process, of_server, of_store

REAL = ("-P", "-m", "app.cli")
_KEPT_S = 15
"""Seconds that anything is kept: what is bounded by time shows its bound soon."""


class Soaked(Struct):
    """What was measured, and what it came to, by (who, quantity)."""

    commands: int
    seconds: float
    samples: int
    verdicts: dict[tuple[str, str], Verdict]

    @property
    def growing(self) -> list[tuple[str, str]]:
        return [name for name, verdict in self.verdicts.items() if verdict.grows]


def soak(
    home: Path,
    *,
    seconds: float,
    rate: float,
    say: Callable[[str], None],
    samples: int = 200,
    workers: int = 2,
    worker: Sequence[str] = REAL,
) -> Soaked:
    """Load a system in `home` for so long, and judge every quantity that was sampled; `worker` is how to start one."""
    recorder = Recorder()
    with ExitStack() as stack:
        server = EmbeddedServer(home / "valkey", DURABLE)
        server.start()
        stack.callback(server.stop)
        settings = _settings(server.url, home)
        write_logs(settings)
        names = [*(f"worker-{number}" for number in range(1, workers + 1)), "projector"]
        children = {name: _started(name, settings, home, worker) for name in names}
        for child in children.values():
            stack.callback(child.stop, settings.shutdown_grace)
        redis = stack.enter_context(closing(connect(server.url)))
        load = stack.enter_context(closing(Load(settings, rate)))
        began = time.monotonic()
        for number in range(1, samples + 1):
            time.sleep(max(0.0, began + seconds * number / samples - time.monotonic()))
            commands = load.commands
            for name, child in children.items():
                assert child.poll() is None, f"{name} ended: {child.log_tail()}"
                recorder.note(name, commands, of_process(child.pid or 0))
            recorder.note("server", commands, of_server(redis))
            recorder.note("store", commands, of_store(home / "sidecar.sqlite3"))
            if number % (samples // 20 or 1) == 0:
                say(_line(recorder, time.monotonic() - began))
        commands, lasted = load.commands, time.monotonic() - began
    verdicts = {name: judge(series, BOUNDS[name[1]]) for name, series in recorder.series.items()}
    return Soaked(commands, lasted, samples, verdicts)


def _settings(url: str, home: Path) -> Settings:
    return settings_for(
        url,
        home,
        partitions=8,
        result_ttl=_KEPT_S,
        failure_ttl=_KEPT_S,
        command_retention=_KEPT_S,
        event_retention=500,
        index_bytes=2**18,
        max_attempts=3,
    )


def _started(name: str, settings: Settings, home: Path, worker: Sequence[str]) -> Child:
    kind = name.partition("-")[0]
    program = worker if kind == "worker" else REAL
    command = (sys.executable, *program, kind)
    child = Child(name, command, log=home / f"{name}.log", environ=child_environ(settings))
    child.start()
    return child


def _line(recorder: Recorder, seconds: float) -> str:
    latest = {name: series[-1] for name, series in recorder.series.items()}
    memory = ", ".join(
        f"{who} {sample.value / 2**20:.1f}"
        for (who, quantity), sample in latest.items()
        if quantity in ("resident memory", "used_memory", "bytes of the store")
    )
    commands = max(sample.commands for sample in latest.values())
    return f"{seconds:7.0f} s, {commands} commands; MiB: {memory}"
