"""`python -m tests.fuzz --seconds 60 --seed 1`: fuzz the Session log reader, and say what it answered."""

import argparse
import random
import sys

from tests.fuzz.campaign import Violation, run


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.fuzz", description="Fuzz the Session log reader.")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}, {arguments.seconds:g} s", flush=True)
    try:
        answers = run(seed=arguments.seed, seconds=arguments.seconds)
    except Violation as violation:
        print(f"VIOLATION {violation}", file=sys.stderr)
        return 1
    for answer, count in answers.most_common():
        print(f"{count:8d}  {answer}")
    print(f"{answers.total()} damaged logs, each answered in its kind")
    return 0


if __name__ == "__main__":
    sys.exit(main())
