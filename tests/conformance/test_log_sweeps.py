"""One log, cut at every byte and flipped at every byte: what the original made of it, and where we are stricter."""

import json
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.conformance.log_corpus import FIXTURES, NOT_FOUND, Answer, answer, needs_fixtures

pytestmark = needs_fixtures

SWEEPS = ["raw-truncate", "zstd-truncate", "zstd-flip-01"]
LOOKS_TORN = {
    "zstd-flip-01": {4, 6, 8, 111, 113, 115, 393, 395, 397},
}
"""Flips that make a frame look longer than the file while whole frames stand behind it. The original drops those
frames in silence (FORMATS section 8.3, "Trap"); we say that the log is corrupt."""


class Outcome(msgspec.Struct):
    put: dict[str, str]
    eligible: list[str]
    readFrom: int | dict[str, str]

    def answer(self) -> Answer:
        if "*" in self.put:
            return Answer("LogCorrupt")
        if "session-not-found" in self.put.values():
            return Answer(NOT_FOUND)
        assert isinstance(self.readFrom, int)
        return Answer(sorted(self.eligible), self.readFrom)


class Sweep(msgspec.Struct):
    base: str
    place: str
    op: str
    outcomes: list[Outcome]
    ranges: list[tuple[int, int, int]]
    xor: int = 0

    def damaged(self) -> Iterator[tuple[int, bytes, Answer]]:
        base = (FIXTURES / self.base).read_bytes()
        for first, last, outcome in self.ranges:
            for at in range(first, last + 1):
                flipped = b"" if self.op == "truncate" else bytes([base[at] ^ self.xor]) + base[at + 1 :]
                yield at, base[:at] + flipped, self.outcomes[outcome].answer()


@pytest.mark.parametrize("name", SWEEPS)
def test_every_cut_and_flip_is_answered_as_recorded(name: str, tmp_path: Path) -> None:
    """At every byte offset: the eligible ids and the count, "not found", or a log called corrupt."""
    sweep = msgspec.json.decode((FIXTURES / f"sweeps/{name}.json").read_bytes(), type=Sweep)
    path = Path(sweep.place.replace("<root>", str(tmp_path)))
    path.parent.mkdir(parents=True)
    for at, data, expected in sweep.damaged():
        path.write_bytes(data)
        ours = answer(tmp_path, "target")
        assert ours == (Answer("LogCorrupt") if at in LOOKS_TORN.get(name, ()) else expected), at


def test_the_sweeps_are_all_run() -> None:
    """No recorded sweep is left out."""
    assert {json.loads(path.read_text())["name"] for path in (FIXTURES / "sweeps").glob("*.json")} == set(SWEEPS)
