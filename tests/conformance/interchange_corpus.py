"""The recorded media (shared/fixtures/sidecars): what the original made of each, and where we differ on purpose."""

import json
import shutil
import sqlite3
from contextlib import closing
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from tests.conformance.log_corpus import FIXTURES

SIDECARS = FIXTURES / "sidecars"

Subject = Literal["open", "rewrite", "round trip"]


class Kind(msgspec.Struct, forbid_unknown_fields=True):
    """One line of interchange_deviations.toml."""

    on: Subject
    media: list[str]
    ours: str
    why: str

    def covers(self, on: Subject, medium: str) -> bool:
        return self.on == on and any(fnmatchcase(medium, pattern) for pattern in self.media)


class Deviations(msgspec.Struct, forbid_unknown_fields=True):
    kinds: list[Kind]


class Variant(NamedTuple):
    """A document in the single layout, and what the original's `open()` said."""

    name: str
    path: Path
    real: dict[str, Any]

    def __str__(self) -> str:
        return self.name

    @property
    def outcome(self) -> str:
        return "ok" if self.real["open"] == "ok" else self.real["error"]["code"]

    @property
    def rows(self) -> dict[str, Any]:
        """The recorded rows by key; the recorder could not write one key as it is."""
        return {key.replace("(key __proto__)", "__proto__"): row for key, row in self.real["rows"].items()}


class Case(NamedTuple):
    """A tree in the per-record layout, and what is expected of it."""

    name: str
    descriptor: dict[str, Any]
    expected: dict[str, Any]
    after: bool

    def __str__(self) -> str:
        return self.name

    def copy(self, scratch: Path) -> Path:
        """The tree as it was before, to be written to."""
        return copied(SIDECARS / "per-record" / self.name / "before", scratch / "root")


def deviations() -> list[Kind]:
    path = Path(__file__).with_name("interchange_deviations.toml")
    return msgspec.toml.decode(path.read_bytes(), type=Deviations).kinds


def variants() -> list[Variant]:
    return [Variant(one["name"], SIDECARS / one["file"], one["real"]) for one in _json("variants.json")]


def cases() -> list[Case]:
    recorded = _json("per-record/cases.json")
    return [
        Case(one["name"], one["descriptor"], one["expected"], one["afterTree"])
        for one in (recorded["cases"] if recorded else ())
    ]


def negatives() -> list[dict[str, Any]]:
    """Statements that spoil the recorded database, and what the original said then."""
    negative: list[dict[str, Any]] = _json("sqlite/negative.json")
    return negative


def published() -> list[Path]:
    """Documents that the original itself wrote."""
    return sorted(
        [*SIDECARS.glob("sequences/*/message_feedback.json"), *FIXTURES.glob("transcript/sidecar-after-*.json")]
    )


def copied(source: Path, target: Path) -> Path:
    """A copy that may be written to, of what may be missing: a checkout keeps no empty directories."""
    if source.is_file():
        return Path(shutil.copyfile(source, target))
    target.mkdir()
    if source.is_dir():
        shutil.copytree(source, target, dirs_exist_ok=True, copy_function=shutil.copyfile)
        for path in [target, *target.rglob("*")]:
            if path.is_dir():
                path.chmod(0o700)
    return target


def tree(root: Path) -> dict[str, bytes]:
    """Every file under a root; `.keep` stands for an empty directory."""
    files = (path for path in root.rglob("*") if path.is_file() and path.name != ".keep")
    return {str(path.relative_to(root)): path.read_bytes() for path in files}


def dump(path: Path) -> list[object]:
    """All that a database says."""
    pragmas = ("user_version", "application_id", "journal_mode", "page_size", "encoding", "auto_vacuum")
    with closing(sqlite3.connect(path)) as connection:
        return [*connection.iterdump(), *(connection.execute(f"PRAGMA {pragma}").fetchone() for pragma in pragmas)]


def _json(name: str) -> Any:
    """A recorded document; nothing when the corpus is not here."""
    return json.loads((SIDECARS / name).read_text(encoding="utf-8")) if SIDECARS.is_dir() else []
