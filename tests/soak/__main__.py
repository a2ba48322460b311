"""`python -m tests.soak --seconds N`: load a whole system, and see that nothing grows without bound."""

import argparse
import logging
import sys
import tempfile
from pathlib import Path

from tests.soak.running import Soaked, soak
from tests.soak.sampling import BOUNDS


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=900.0, help="how long; the first half is for warming up")
    parser.add_argument("--rate", type=float, default=200.0, help="commands a second")
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args()
    logging.basicConfig(level=logging.CRITICAL)
    with tempfile.TemporaryDirectory(prefix="feedback-soak-") as home:
        soaked = soak(
            Path(home),
            seconds=given.seconds,
            rate=given.rate,
            workers=given.workers,
            say=lambda line: print(line, flush=True),
        )
    print_soaked(soaked)
    return 1 if soaked.growing else 0


def print_soaked(soaked: Soaked) -> None:
    """The second half: where each quantity began and ended, how it grew, and how much it might."""
    print(f"\n{soaked.commands} commands in {soaked.seconds:.0f} s, {soaked.samples} samples, the second half judged:")
    for (who, quantity), verdict in soaked.verdicts.items():
        is_bytes = BOUNDS[quantity].slack > 2**19
        first, last = (
            f"{value / 2**20:.2f} MiB" if is_bytes else f"{value:g}" for value in (verdict.first, verdict.last)
        )
        print(
            f"{who:10} {quantity:18} {first:>12} -> {last:>12}, {1000 * verdict.slope:+.1f} per 1000 commands "
            f"(allowed {1000 * BOUNDS[quantity].per_command:g}): {'GROWS' if verdict.grows else 'steady'}"
        )


if __name__ == "__main__":
    sys.exit(main())
