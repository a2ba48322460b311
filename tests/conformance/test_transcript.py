"""The recorded transcript of the original, replayed through client, queue, worker, store and projection.

`../shared/README.md` says how it is laid out; `deviations.json` beside it says where ours differs on purpose.
"""

import functools
import itertools
import json
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from redis import Redis

from feedback import Delete, FeedbackClient, FeedbackError, Put
from feedback.requests import parse_request
from feedback.results import Result
from feedback.settings import Settings
from persistence.sidecar import open_store
from tests.harness import Placed, elsewhere, here, serving, settings_for

FIXTURES = Path(__file__).parents[2].parent / "shared" / "fixtures"
TRANSCRIPT = FIXTURES / "transcript"

pytestmark = pytest.mark.skipif(not TRANSCRIPT.is_dir(), reason="the recorded transcript is not here")

_SYMBOL = re.compile(r"[vw]\d+")


class PinnedClock:
    """The transcript's clock, in milliseconds."""

    def __init__(self) -> None:
        self.now_ms = 0

    def __call__(self) -> int:
        return self.now_ms


class Versions:
    """The transcript's symbols (`v1`, `v2`, …) and the versions that stand for them here."""

    def __init__(self) -> None:
        self.known: dict[str, str] = {}

    def concrete(self, if_version: str | None) -> str | None:
        return if_version if if_version is None else self.known.get(if_version, if_version)

    def same(self, expected: Any, actual: Any) -> bool:
        """Equal to the letter, key order included; a symbol seen for the first time is learnt."""
        if isinstance(expected, dict) and isinstance(actual, dict):
            return list(expected) == list(actual) and all(
                self._same_version(expected[key], actual[key])
                if key == "version"
                else self.same(expected[key], actual[key])
                for key in expected
            )
        if isinstance(expected, list) and isinstance(actual, list):
            return len(expected) == len(actual) and all(map(self.same, expected, actual))
        return type(expected) is type(actual) and bool(expected == actual)

    def _same_version(self, symbol: str, actual: str) -> bool:
        assert _SYMBOL.fullmatch(symbol)
        if symbol not in self.known and actual not in self.known.values():
            self.known[symbol] = actual
        return self.known.get(symbol) == actual


def phases() -> Iterator[list[dict[str, Any]]]:
    steps: list[dict[str, Any]] = []
    with (TRANSCRIPT / "transcript.jsonl").open(encoding="ascii") as lines:
        for line in lines:
            step = json.loads(line)
            steps.append(step)
            if step["op"] == "close-phase":
                yield steps
                steps = []


def groups(steps: Iterable[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Steps that were issued together, without waiting for each other; all others alone."""
    for _, group in itertools.groupby(steps, key=lambda step: step.get("concurrent", step["n"])):
        yield list(group)


def answers(client: FeedbackClient, steps: list[dict[str, Any]], versions: Versions) -> list[dict[str, Any]]:
    """Our answers in the transcript's terms: `{"result": …}` or `{"failure": class name}`; all are sent first."""
    return [outcome() for outcome in [send(client, step, versions) for step in steps]]


def send(client: FeedbackClient, step: dict[str, Any], versions: Versions) -> Callable[[], dict[str, Any]]:
    members = dict(step["request"])
    if "ifVersion" in members:
        members["ifVersion"] = versions.concrete(members["ifVersion"])
    try:
        request = parse_request(step["op"], members)
        if isinstance(request, Put | Delete):
            return functools.partial(outcome_of, client.submit(request).result)
    except FeedbackError as error:
        failure = {"failure": error.code}
        return lambda: failure
    return functools.partial(outcome_of, functools.partial(client.list, request.session_id))


def outcome_of(ask: Callable[[], Result]) -> dict[str, Any]:
    try:
        return {"result": json.loads(msgspec.json.encode(ask()))}
    except FeedbackError as error:
        return {"failure": error.code}


def agrees(step: dict[str, Any], deviations: dict[str, Any], ours: dict[str, Any], versions: Versions) -> bool:
    expected = deviations.get(str(step["n"]), {}).get("expect") or {"result": step["result"]}
    if "failure" in expected:
        return bool(ours == expected)
    if "reject" in expected["result"]:
        return "failure" in ours
    return "result" in ours and versions.same(expected["result"], ours["result"])


def check_stored(sidecar: dict[str, Any], sidecar_url: str, touched: set[str], versions: Versions) -> None:
    """The store holds what the original left in its file, for Sessions where no answer differed on purpose."""
    store = open_store(sidecar_url)
    try:
        for session_id, row in sidecar["tables"]["sessions"].items():
            if session_id in touched:
                continue
            stored = store.feedback(session_id)
            assert stored is not None, session_id
            document = json.loads(msgspec.json.encode({"session": stored.identity, "items": stored.items}))
            assert versions.same(row, document), session_id
    finally:
        store.close()


@pytest.mark.server
@pytest.mark.parametrize("place", [here, elsewhere], ids=["logs here", "by an agent"])
def test_every_step_of_the_transcript_is_answered_as_recorded(
    redis_client: Redis, valkey_url: str, tmp_path: Path, place: Callable[[Settings], Placed]
) -> None:
    deviations = json.loads((TRANSCRIPT / "deviations.json").read_text(encoding="ascii"))
    versions = Versions()
    differing: list[tuple[int, Any]] = []
    touched: set[str] = set()
    answered = 0
    for number, steps in enumerate(phases()):
        opened = steps[0]["request"]
        root = tmp_path / f"root-{number}"
        shutil.copytree(FIXTURES / opened["root"], root, symlinks=True)
        clock = PinnedClock()
        settings = settings_for(valkey_url, tmp_path, sessions=str(root), max_note_bytes=opened["maxNoteBytes"])
        placed = place(settings)
        with (
            serving(placed.settings, clock_ms=clock, agents=placed.agents),
            FeedbackClient(redis_client, clock_ms=clock, host=placed.host) as client,
        ):
            for group in groups(steps[1:-1]):
                clock.now_ms = group[0]["now"]
                touched |= {step["request"]["sessionId"] for step in group if str(step["n"]) in deviations}
                for step, ours in zip(group, answers(client, group, versions), strict=True):
                    answered += 1
                    if not agrees(step, deviations, ours, versions):
                        differing.append((step["n"], ours))
        check_stored(steps[-1]["sidecar"], settings.sidecar_url, touched, versions)
    assert differing == []
    assert answered == 798
