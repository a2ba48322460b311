"""A connection that is cut at any round trip: before the request took effect, or after it, with the answer lost.

Which round trips there are is learned from a run of the system itself, so that a new one is covered by itself.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from math import ceil
from pathlib import Path
from typing import TypeAlias

import pytest

from app.embedded import EmbeddedServer
from tests.acceptance.disturbed import Told
from tests.integration.lossy import ROLES, Lossy
from tests.proxy import Trap
from tests.watching import RoundTrip, is_kind

pytestmark = pytest.mark.server

_SIDES = ("request", "answer")
_INTRODUCTION = "CLIENT"
"""What redis-py sends on each new connection, beside HELLO: the same for everybody, so it is left to the long test."""
_BY_CHANCE = "feedback:parked"
"""Round trips that are made only when a heartbeat finds a Session parked."""


@pytest.fixture(autouse=True)
def _asking_again_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits for a projector's answer that was lost waits for a fraction of the usual time."""
    monkeypatch.setattr("feedback.asking._ASK_AGAIN_S", 0.3)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server that has an append-only file, so that enqueueing can wait for it."""
    server = EmbeddedServer(tmp_path_factory.mktemp("valkey"), {"appendonly": "yes", "appendfsync": "always"})
    server.start()
    try:
        yield server.url
    finally:
        server.stop()


Run: TypeAlias = tuple[str, bool]
"""The role that loses messages, and whether the number of partitions is changed meanwhile."""
Lost: TypeAlias = tuple[str, RoundTrip, int]
"""Which side of the nth round trip of a kind is lost."""
_AT_ONCE = 8
"""Messages lost in one run, each of another kind. `pytest -m chaos` loses each alone."""


def undisturbed(url: str, home: Path, run: Run) -> tuple[list[Told], Counter[RoundTrip]]:
    """What the callers are told, and how often the role makes each kind of round trip."""
    role, resized = run
    home.mkdir()
    with closing(Lossy(url, home, role, resized=resized)) as system:
        return system.run(), Counter(system.kinds(role))


def disturbed(url: str, home: Path, run: Run, lost: Sequence[Lost], expected: list[Told]) -> list[Trap]:
    """The same run with messages lost."""
    role, resized = run
    home.mkdir()
    with closing(Lossy(url, home, role, resized=resized)) as system:
        proxy = system.proxies[role]
        traps = [
            (proxy.hold_request if side == "request" else proxy.hold_reply)(is_kind(kind), nth=nth)
            for side, kind, nth in lost
        ]
        for trap in traps:
            trap.cut()
        assert system.run() == expected, lost
        return traps


def lose_each(messages: Sequence[Lost], url: str, home: Path, run: Run, expected: list[Told]) -> None:
    """Few in a run, in none two that follow one another; alone what another loss made superfluous."""
    runs = ceil(len(messages) / _AT_ONCE)
    superfluous: list[Lost] = []
    for number in range(runs):
        lost = messages[number::runs]
        traps = disturbed(url, home / f"together-{number}", run, lost, expected)
        superfluous += [one for one, trap in zip(lost, traps, strict=True) if not trap.is_sprung]
    for number, one in enumerate(superfluous):
        (trap,) = disturbed(url, home / f"alone-{number}", run, [one], expected)
        assert trap.is_sprung or _BY_CHANCE in one[1], one


@pytest.mark.parametrize("side", _SIDES)
@pytest.mark.parametrize("role", ROLES)
def test_the_first_message_of_each_kind_is_lost(url: str, tmp_path: Path, role: str, side: str) -> None:
    """Callers are told what they would have been told, nothing is lost or done twice, nobody gives up."""
    run = (role, False)
    expected, kinds = undisturbed(url, tmp_path / "undisturbed", run)
    lost = [(side, kind, 1) for kind in kinds if not kind.startswith(_INTRODUCTION)]
    lose_each(lost, url, tmp_path, run, expected)


@pytest.mark.parametrize("side", _SIDES)
def test_a_message_about_the_next_partitions_is_lost(url: str, tmp_path: Path, side: str) -> None:
    """As above, for what a worker sends only because the number of partitions is changed."""
    run = ("worker", True)
    _, usual = undisturbed(url, tmp_path / "usual", ("worker", False))
    expected, kinds = undisturbed(url, tmp_path / "undisturbed", run)
    lost = [(side, kind, 1) for kind in kinds if kind not in usual]
    assert lost
    lose_each(lost, url, tmp_path, run, expected)


@pytest.mark.chaos
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("side", _SIDES)
@pytest.mark.parametrize("role", ROLES)
def test_any_one_message_is_lost(url: str, tmp_path: Path, role: str, side: str) -> None:
    """As above, for each message of the whole run."""
    run = (role, True)
    expected, kinds = undisturbed(url, tmp_path / "undisturbed", run)
    for kind, count in kinds.items():
        for nth in range(1, count + 1):
            home = tmp_path / str(len(list(tmp_path.iterdir())))
            disturbed(url, home, run, [(side, kind, nth)], expected)
