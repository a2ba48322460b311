"""`python -m tests.chaos --seconds N --seed S`: run a campaign and say what was injected and checked."""

import argparse
import random
import sys
import tempfile
from pathlib import Path

from tests.chaos.campaign import run
from tests.chaos.mutants import Mutant


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long faults are injected")
    parser.add_argument("--seed", type=int, default=None, help="draws the faults; default: a new one")
    parser.add_argument("--mutant", type=Mutant, choices=list(Mutant), help="a deliberately broken worker")
    parser.add_argument("--keep", type=Path, help="a new directory for files and logs; default: a temporary one")
    given = parser.parse_args()
    seed = random.SystemRandom().getrandbits(32) if given.seed is None else given.seed
    print(f"seed {seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="feedback-chaos-") as temporary:
        home = given.keep or Path(temporary)
        home.mkdir(parents=True, exist_ok=True)
        report = run(
            home, seconds=given.seconds, seed=seed, say=lambda line: print(line, flush=True), mutant=given.mutant
        )
    checked = report.checked
    print("injected: " + ", ".join(f"{count} x {kind}" for kind, count in report.injected.most_common()))
    print(
        f"checked: {checked.calls} calls ({checked.answers} answered), {checked.readings} lists, "
        f"{checked.outcomes} recorded outcomes"
    )
    for violation in checked.violations[:20]:
        print(f"VIOLATION: {violation}")
    print(f"{len(checked.violations)} violations; seed {seed}")
    return 1 if checked.violations else 0


if __name__ == "__main__":
    sys.exit(main())
