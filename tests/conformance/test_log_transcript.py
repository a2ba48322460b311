"""What the recorded operations presuppose of the logs: which Sessions are there, which messages may be rated."""

import json
from typing import Any

import pytest

from feedback.errors import LogFailure
from persistence.session_log import SessionLogs
from tests.conformance.log_corpus import FIXTURES, NOT_FOUND, needs_fixtures

pytestmark = needs_fixtures

JUDGED = {"session-not-found": NOT_FOUND, "target-not-found": "not eligible", "version-conflict": "eligible"}


def _verdict(logs: SessionLogs, session_id: str, message_id: str) -> str:
    try:
        view = logs.inspect(session_id)
    except LogFailure as failure:
        return failure.code
    if view is None:
        return NOT_FOUND
    return "eligible" if view.eligible(message_id) else "not eligible"


def _expected(line: dict[str, Any], deviations: dict[str, Any]) -> str | None:  # JSON of the corpus
    """What a put's answer says about the log; None when it says nothing (a note was refused first, a bad request)."""
    ours = deviations.get(str(line["n"]), {}).get("expect", {"result": line["result"]})
    if "failure" in ours:
        return None if ours["failure"] == "InvalidRequest" else str(ours["failure"])
    if ours["result"]["ok"]:
        return "eligible"
    return JUDGED.get(ours["result"]["error"]["code"])


@pytest.mark.parametrize("phase", [f"p{number}" for number in range(1, 8)])
def test_every_recorded_put_finds_its_log_as_the_original_did(phase: str) -> None:
    """Over one phase: eligible, not eligible, not there, or refused, as recorded or as deviations.json says."""
    deviations = json.loads((FIXTURES / "transcript/deviations.json").read_text())
    lines = [json.loads(line) for line in (FIXTURES / "transcript/transcript.jsonl").read_text().splitlines()]
    root = next(x["request"]["root"] for x in lines if (x["phase"], x["op"]) == (phase, "open-phase"))
    logs, judged = SessionLogs(FIXTURES / root), 0
    for line in lines:
        if (line["phase"], line["op"]) == (phase, "put") and (expected := _expected(line, deviations)) is not None:
            request = line["request"]
            assert _verdict(logs, request["sessionId"], request["messageId"]) == expected, line["n"]
            judged += 1
    assert judged > 0
