"""A connection that is cut at any round trip: before the request took effect, or after it, with the answer lost.

Which round trips there are is learned from a run of the system itself, so that a new one is covered by itself.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from app.embedded import EmbeddedServer
from tests.integration.lossy import ROLES, Lossy
from tests.proxy import Trap
from tests.watching import RoundTrip, is_kind

pytestmark = pytest.mark.server

_SIDES = ("request", "answer")
_INTRODUCTION = "CLIENT"
"""What redis-py sends on each new connection, beside HELLO: the same for everybody, so it is left to the long test."""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server that has an append-only file, so that enqueueing can wait for it."""
    server = EmbeddedServer(tmp_path_factory.mktemp("valkey"), {"appendonly": "yes", "appendfsync": "always"})
    server.start()
    try:
        yield server.url
    finally:
        server.stop()


def undisturbed(url: str, home: Path, role: str) -> tuple[list[object], Counter[RoundTrip]]:
    """What the callers are told, and how often the role makes each kind of round trip."""
    home.mkdir()
    with closing(Lossy(url, home)) as system:
        answers: list[object] = list(system.run())
        return answers, Counter(system.kinds(role))


def disturbed(url: str, home: Path, role: str, lost: tuple[str, RoundTrip, int], expected: list[object]) -> Trap:
    """The same run with one message lost: which side of the nth round trip of a kind."""
    side, kind, nth = lost
    home.mkdir()
    with closing(Lossy(url, home)) as system:
        proxy = system.proxies[role]
        trap = (proxy.hold_request if side == "request" else proxy.hold_reply)(is_kind(kind), nth=nth)
        trap.cut()
        assert system.run() == expected, lost
        return trap


@pytest.mark.parametrize("side", _SIDES)
@pytest.mark.parametrize("role", ROLES)
def test_the_first_message_of_each_kind_is_lost(url: str, tmp_path: Path, role: str, side: str) -> None:
    """Callers are told what they would have been told, nothing is lost or done twice, nobody gives up."""
    expected, kinds = undisturbed(url, tmp_path / "undisturbed", role)
    for number, kind in enumerate(kind for kind in kinds if not kind.startswith(_INTRODUCTION)):
        trap = disturbed(url, tmp_path / str(number), role, (side, kind, 1), expected)
        assert trap._sprung.is_set(), kind


@pytest.mark.chaos
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("side", _SIDES)
@pytest.mark.parametrize("role", ROLES)
def test_any_one_message_is_lost(url: str, tmp_path: Path, role: str, side: str) -> None:
    """As above, for each message of the whole run."""
    expected, kinds = undisturbed(url, tmp_path / "undisturbed", role)
    for kind, count in kinds.items():
        for nth in range(1, count + 1):
            home = tmp_path / str(len(list(tmp_path.iterdir())))
            disturbed(url, home, role, (side, kind, nth), expected)
