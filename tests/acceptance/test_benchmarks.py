"""The benchmarks run: nothing here is about how fast anything is."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.__main__ import BENCHMARKS

pytestmark = [pytest.mark.server, pytest.mark.process]


def test_every_benchmark_gives_figures_whatever_they_say(tmp_path: Path) -> None:
    command = (sys.executable, "-P", "-m", "benchmarks", "--quick", "--json", "--directory", tmp_path)
    done = subprocess.run(command, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    figures = json.loads(done.stdout)["figures"]
    assert list(figures) == list(BENCHMARKS)
    for name, rows in figures.items():
        assert rows, name
        for row in rows:
            assert row["samples"] > 0, (name, row)
            assert math.isfinite(row["value"]["median"]), (name, row)
            assert row["ratio"] is None or row["ratio"]["median"] > 0, (name, row)
    assert list(tmp_path.iterdir()) == [], "nothing is left behind"
