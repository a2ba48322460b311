"""The recorded transcript of the original, replayed through HTTP in the original's own envelope."""

import json
import shutil
from itertools import islice
from pathlib import Path
from typing import Any

import httpx
import pytest
from redis import Redis

from tests.conformance.test_transcript import FIXTURES, TRANSCRIPT, PinnedClock, Versions, agrees, check_stored, phases
from tests.harness import serving, settings_for
from tests.integration.gateway_serving import caller, gateway_serving, remote

pytestmark = [
    pytest.mark.server,
    pytest.mark.skipif(not TRANSCRIPT.is_dir(), reason="the recorded transcript is not here"),
]


def answer(client: httpx.Client, step: dict[str, Any], versions: Versions) -> dict[str, Any]:
    """Our answer in the transcript's terms: `{"result": …}`, or `{"failure": class name}`."""
    request = dict(step["request"])
    if "ifVersion" in request:
        request["ifVersion"] = versions.concrete(request["ifVersion"])
    result = remote(client, step["op"], request, rpc_id=step["n"])
    if result["ok"]:
        return {"result": result["value"]}
    assert result["error"].keys() == {"code", "message", "details"}
    return {"failure": result["error"]["message"].partition(":")[0]}


@pytest.mark.parametrize("most", [200, pytest.param(None, marks=pytest.mark.chaos)], ids=["the beginning", "all"])
def test_every_step_is_answered_over_http_as_recorded(
    redis_client: Redis, valkey_url: str, tmp_path: Path, most: int | None
) -> None:
    """In order, one by one: steps that were recorded together are of one Session or of several that do not meet."""
    deviations = json.loads((TRANSCRIPT / "deviations.json").read_text(encoding="ascii"))
    versions, differing, touched, answered = Versions(), list[Any](), set[str](), 0
    for number, steps in enumerate(islice(phases(), most and 1)):
        opened, clock = steps[0]["request"], PinnedClock()
        root = tmp_path / f"root-{number}"
        shutil.copytree(FIXTURES / opened["root"], root, symlinks=True)
        settings = settings_for(
            valkey_url, tmp_path, sessions=str(root), max_note_bytes=opened["maxNoteBytes"], gateway_port=0
        )
        with (
            serving(settings, clock_ms=clock),
            gateway_serving(settings, clock_ms=clock) as url,
            caller(url) as client,
        ):
            for step in islice(steps[1:-1], most):
                clock.now_ms, answered = step["now"], answered + 1
                if str(step["n"]) in deviations:
                    touched.add(step["request"]["sessionId"])
                ours = answer(client, step, versions)
                if not agrees(step, deviations, ours, versions):
                    differing.append((step["n"], ours))
        if most is None:
            check_stored(steps[-1]["sidecar"], settings.sidecar_url, touched, versions)
    assert differing == []
    assert answered == (most or 798)
