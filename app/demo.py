"""The small Session root that `feedback up` makes on its first start, so that there is something to rate."""

import shutil
from pathlib import Path

from persistence.session_log import LogWriter
from persistence.session_log.events import exchange

_CWD = "/home/demo/project"
_CREATED_AT = 1_790_000_000_000

_CONVERSATIONS = {
    "demo-flaky-test": [
        (
            "The test test_login fails once in ten runs. Why?",
            "It compares two timestamps that are taken a moment apart. Freeze the clock in the test.",
        ),
        (
            "Freeze the clock, please.",
            "Done: the fixture `frozen_clock` sets it, and test_login passed two hundred runs in a row.",
        ),
    ],
    "demo-release-notes": [
        (
            "Write the release notes for 2.1 from the commit log.",
            "Version 2.1 brings faster start-up, a new `--json` flag, and fixes for three crashes.",
        ),
        (
            "Which crashes?",
            "On an empty configuration file, on a path with a line break, and on Ctrl-C while saving.",
        ),
        ("Thank you.", "You are welcome. The notes are in CHANGES.md."),
    ],
    "demo-übersetzung": [
        ("Wie heißt „merge conflict“ auf Deutsch?", "Man sagt meist „Merge-Konflikt“; gemeint ist ein Widerspruch."),
    ],
}


def write_demo_root(root: Path) -> None:
    """Write the demo's Sessions as logs of format 0 into an empty root: all of them, or none.

    Raises as `LogWriter` does.
    """
    try:
        for at, (session_id, turns) in enumerate(_CONVERSATIONS.items()):
            _write(root, session_id, _CREATED_AT + at * 3_600_000, turns)
    except BaseException:
        # Half a demo would be taken for the user's own root at the next start.
        for directory in root.iterdir():
            shutil.rmtree(directory)
        raise


def _write(root: Path, session_id: str, created_at: int, turns: list[tuple[str, str]]) -> None:
    with LogWriter(root, session_id, created_at=created_at, cwd=_CWD) as log:
        for number, (question, answer) in enumerate(turns, start=1):
            ids = {"user_id": f"question-{number}", "assistant_id": f"answer-{number}"}
            log.append(exchange(number, question, answer, **ids))
