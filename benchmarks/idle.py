"""What a system costs that has nothing to do."""

import time
from pathlib import Path

from benchmarks.deployment import Deployment, deployed
from benchmarks.figures import Figure, Target, figure
from benchmarks.measure import Run, cpu_s

_SELF = 1
"""INFO itself is a command."""


def idle(run: Run) -> list[Figure]:
    """One worker with 32 empty partitions: share of a core, and Redis commands (those inside of scripts included)."""
    rounds, seconds = run.size(6, 1), run.size(10, 1)
    with run.home() as home, deployed(Path(home), projector=False) as system:
        if not run.quick:
            _observe(system, 2)  # what comes with starting
        alone = [_observe(system, seconds) for _ in range(rounds)]
        system.start_projector()
        system.client.list("no-such-session")
        cpu, start = cpu_s(system.projector_pid()), time.monotonic()
        together = [_observe(system, seconds) for _ in range(rounds)]
        projector = 100 * (cpu_s(system.projector_pid()) - cpu) / (time.monotonic() - start)
    return [
        figure("worker, of a core", "%", [[share] for share, _ in alone], target=Target("at most", 1, "value")),
        figure("worker, Redis commands", "1/s", [[rate] for _, rate in alone], target=Target("at most", 10, "value")),
        figure("projector, of a core", "%", [[projector]]),
        figure("worker and projector, Redis commands", "1/s", [[rate] for _, rate in together]),
    ]


def _observe(system: Deployment, seconds: int) -> tuple[float, float]:
    """The worker's share of a core in percent, and all commands a second."""
    cpu, commands, start = cpu_s(system.worker_pid()), _commands(system), time.monotonic()
    time.sleep(seconds)
    passed = time.monotonic() - start
    share = 100 * (cpu_s(system.worker_pid()) - cpu) / passed
    return share, (_commands(system) - commands - _SELF) / passed


def _commands(system: Deployment) -> int:
    return int(system.redis.info("stats")["total_commands_processed"])
