"""`docs/testing.md` walks through every fault of the plan, and what it names as proof exists."""

import re
from pathlib import Path
from typing import get_args

from feedback.crashpoints import CrashPoint
from tests.chaos.known_logs import Damage

ROOT = Path(__file__).parents[1]
PAGE = (ROOT.parent / "docs/testing.md").read_text(encoding="utf-8").partition("\n## Faults\n")[2].partition("\n## ")[0]
PLAN = "P0-13 Z1-3 R1-10 D1-4 C1-2 S1-5 L1-6 Q1-3 H1-8 E1-5 M1-1"
"""Its rows, by letter and numbers."""
ROWS = dict(re.findall(r"^\| ([A-Z]\d[^|]*) \| (.*) \|$", PAGE, re.MULTILINE))
MODULES = {path.stem: path.read_text(encoding="utf-8") for path in ROOT.rglob("test_*.py")}


def named(pattern: str) -> list[str]:
    return [found for row in ROWS.values() for found in re.findall(pattern, row)]


def test_every_fault_has_its_row() -> None:
    ids = [one.strip() for row in ROWS for one in row.split(",")]
    plan = re.findall(r"([A-Z])(\d+)-(\d+)", PLAN)
    assert ids == [f"{kind}{n}" for kind, first, last in plan for n in range(int(first), int(last) + 1)]


def test_every_test_that_is_named_exists() -> None:
    names = {*named(r"`(test_[a-z0-9_]+(?:::test_[a-z0-9_]+)?)`")}
    parts = [(name, *name.partition("::")[::2]) for name in names]
    missing = [name for name, module, function in parts if f"def {function or 'test_'}" not in MODULES.get(module, "")]
    assert missing == []
    assert len(names) > 100, "the search finds none"


def test_faults_of_the_campaign_and_crash_points_that_are_named_exist() -> None:
    campaign = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "chaos").glob("on_*.py"))
    known = {*re.findall(r'^ +"([^"]+)": \(', campaign, re.MULTILINE), *(f"a log is {how}" for how in get_args(Damage))}
    assert {*named(r"`chaos: ([^`]+)`")} - known == set()
    points = {*named(r"`([a-z]+(?:-[a-z]+)+)`")} - {"inside-acknowledgement"}
    assert points <= set(CrashPoint)
    assert len(points) > 10, "the search finds none"
