"""`python -m tests.chaos --seconds N --seed S`: run a campaign and say what was injected and checked."""

import argparse
import logging
import random
import sys
import tempfile
from pathlib import Path
from typing import get_args

from tests.chaos.campaign import Report, Store, run
from tests.chaos.mutants import Mutant


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long faults are injected")
    parser.add_argument("--seed", type=int, default=None, help="draws the faults; default: a new one")
    parser.add_argument("--mutant", type=Mutant, choices=list(Mutant), help="a deliberately broken worker")
    parser.add_argument("--only", action="append", default=[], metavar="FAULT", help="draw from this kind; repeatable")
    parser.add_argument("--store", choices=get_args(Store), default="sqlite", help="the engine of the sidecar store")
    parser.add_argument("--keep", type=Path, help="a new directory for files and logs; default: a temporary one")
    given = parser.parse_args()
    seed = random.SystemRandom().getrandbits(32) if given.seed is None else given.seed
    logging.basicConfig(level=logging.CRITICAL)  # what the host complains of is what was done to it
    print(f"seed {seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="feedback-chaos-") as temporary:
        home = given.keep or Path(temporary)
        home.mkdir(parents=True, exist_ok=True)
        report = run(
            home,
            seconds=given.seconds,
            seed=seed,
            say=lambda line: print(line, flush=True),
            kinds=given.only,
            mutant=given.mutant,
            store=given.store,
        )
    print_report(report)
    return 1 if report.checked.violations else 0


def print_report(report: Report) -> None:
    """What was injected, how often; which invariants were held against what was seen, how often; what did not hold."""
    checked = report.checked
    print(f"\ninjected, {report.injected.total()} faults of {len(report.injected)} kinds:")
    for kind, count in report.injected.most_common():
        print(f"{count:7} {kind}")
    print(
        f"\nchecked, in {checked.calls} calls ({checked.answers} answered), {checked.readings} lists and "
        f"{checked.outcomes} recorded outcomes:"
    )
    for invariant, count in sorted(checked.checks.items(), key=lambda pair: -pair[1]):
        broken = sum(one.startswith(f"{invariant}: ") for one in checked.violations)
        print(f"{count:7} {invariant}" + (f": BROKEN {broken} times" if broken else ""))
    for violation in checked.violations[:20]:
        print(f"VIOLATION: {violation}")
    print(f"\n{len(checked.violations)} violations; seed {report.seed}")


if __name__ == "__main__":
    sys.exit(main())
