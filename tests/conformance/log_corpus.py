"""The recorded corpus: Session roots, and what the original answered about them (shared/fixtures)."""

import json
import shutil
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from feedback.errors import LogFailure
from persistence.session_log import SessionLogs

FIXTURES = Path(__file__).parents[2].parent / "shared/fixtures"
NOT_FOUND = "not found"

needs_fixtures = pytest.mark.skipif(not FIXTURES.is_dir(), reason="the recorded corpus is not here")

# What a checkout does not keep: links came out as files that hold the target, empty directories not at all.
_PROJECT = "--home-dev-project--"
_LINKS = {
    "damaged/layout-symlink-log": f"{_PROJECT}/target/session.jsonl.zstd",
    "damaged/layout-symlink-dangling": f"{_PROJECT}/target/session.jsonl.zstd",
    "damaged/layout-symlink-session-dir": f"{_PROJECT}/target",
    "damaged/layout-symlink-project": _PROJECT,
}
_DIRECTORIES = {
    "damaged/layout-opposite-dir": f"{_PROJECT}/target/session.jsonl",
    "damaged/layout-log-is-dir": f"{_PROJECT}/target/session.jsonl.zstd",
    "damaged/layout-empty-session-dir": f"{_PROJECT}/target",
    "damaged/layout-flat-dir": f"{_PROJECT}/old.jsonl.zstd",
}


class Answer(NamedTuple):
    """What a reader says about one Session: the eligible ids, or the failure's class, or "not found"."""

    outcome: list[str] | str
    events: int | None = None


class Question(NamedTuple):
    """One entry of the manifest, with the answer that the reference gave ("failed": any failure)."""

    root: str
    session_id: str
    expected: Answer
    bystander: str | None

    def __str__(self) -> str:
        return f"{self.root}|{self.session_id[:20]}".encode("unicode_escape").decode()


class Kind(msgspec.Struct, forbid_unknown_fields=True):
    """One line of log_deviations.toml."""

    logs: list[str]
    ours: list[str] | str
    why: str

    def covers(self, question: Question) -> bool:
        return any(fnmatchcase(question.root, pattern) for pattern in self.logs)


class Deviations(msgspec.Struct, forbid_unknown_fields=True):
    kinds: list[Kind]


def questions() -> list[Question]:
    """Every entry of the manifest; none when the corpus is not here."""
    if not FIXTURES.is_dir():
        return []
    entries = json.loads((FIXTURES / "manifest.json").read_text())["entries"]
    return [Question(entry["root"], entry["sessionId"], _expected(entry), _bystander(entry)) for entry in entries]


def deviations() -> list[Kind]:
    path = Path(__file__).with_name("log_deviations.toml")
    return msgspec.toml.decode(path.read_bytes(), type=Deviations).kinds


def answer(root: Path, session_id: str) -> Answer:
    """What our reader says."""
    try:
        view = SessionLogs(root).inspect(session_id)
    except LogFailure as failure:
        return Answer(failure.code)
    return Answer(NOT_FOUND) if view is None else Answer(sorted(view.message_ids), view.events)


def place(root: str, scratch: Path) -> Path:
    """The Session root of an entry, restored in `scratch` where the corpus could not keep its shape."""
    if root not in _LINKS | _DIRECTORIES:
        return FIXTURES / root
    copy = scratch / "root"
    shutil.copytree(FIXTURES / root, copy, symlinks=True, copy_function=shutil.copyfile)
    for path in [copy, *copy.rglob("*")]:
        if path.is_dir():
            path.chmod(0o700)
    if root in _DIRECTORIES:
        (copy / _DIRECTORIES[root]).mkdir(parents=True, exist_ok=True)
    else:
        link = copy / _LINKS[root]
        if not link.is_symlink():
            target = link.read_text()
            link.unlink()
            link.symlink_to(target)
    return copy


def _expected(entry: dict) -> Answer:  # type: ignore[type-arg]  # JSON of the corpus
    oracle = entry["oracle"]
    if oracle is None:
        restored, codec = entry["expected"]["restore"], entry["expected"].get("codec") or {}
        if "error" in restored:
            return Answer("failed")
        events = codec if codec.get("ok") else restored
        return Answer(sorted(restored["eligible"]), events.get("events"))
    if oracle.get("putErrors"):
        message = oracle["inspect"].get("error", {}).get("message", "")
        return Answer("LogFormatUnsupported" if "uses log format" in message else "failed")
    if any(refusal["code"] == "session-not-found" for refusal in oracle["ineligible"].values()):
        return Answer(NOT_FOUND)
    return Answer(sorted(oracle["eligible"]), oracle["readFrom"].get("events"))


def _bystander(entry: dict) -> str | None:  # type: ignore[type-arg]  # JSON of the corpus
    bystander = entry.get("bystander")
    return None if bystander is None else bystander.get("sessionId", "bystander")
