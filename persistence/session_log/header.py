"""The header record: the first line of a log, and which life of a Session it names (FORMATS section 3)."""

from typing import NamedTuple

from feedback.model import SessionIdentity
from persistence.session_log import jsontext
from persistence.session_log.damage import Damage, Unlisted, UnsupportedVersion
from persistence.session_log.jsontext import Json

NEWEST_VERSION = 4
_FIRST_SEED_FLAG_VERSION = 2  # isSeeded came, seedLength went

_RETIRED = ("sandboxMode", "approvalPolicy")
_CLOSED_MEMBERS = frozenset(
    ("type", "version", "id", "createdAt", "cwd", "parentSession", "origin", "delegationDepth", "agentPreset")
)


class Header(NamedTuple):
    """What of a header bears on feedback, and where the Session comes from.

    `seed_length` counts the leading events that were inherited from `parent_session`; None when only a marker
    in the log says it (a seeded Session of format 2 or later).
    """

    version: int
    session_id: str
    identity: SessionIdentity
    parent_session: str | None = None
    seed_length: int | None = 0
    subagent: bool = False


def parse_header(line: bytes, generation: int) -> Header:
    """The header of a log whose file name says `generation`.

    Raises Unlisted when no catalog would list it, UnsupportedVersion for a version that is not
    the file's, Damage for one that names another place or uses retired members.
    """
    try:
        record = jsontext.decode(line)
    except ValueError as error:
        raise Unlisted("the header line is not JSON") from error
    if not isinstance(record, dict) or record.get("type") != "session":
        raise Unlisted("the first line is not a session header")
    _check_version(record.get("version"), generation)
    session_id, created_at = record.get("id"), jsontext.count(record.get("createdAt"))
    if (
        not isinstance(session_id, str)
        or created_at is None
        or jsontext.count(record.get("delegationDepth")) is None
        or record.get("origin", "subagent") != "subagent"
        or not isinstance(record.get("agentPreset", ""), str)
    ):
        raise Unlisted("the first line is not a session header")
    if generation == 0 and any(member in record for member in _RETIRED):
        raise Damage("the header uses retired members")
    if generation > 0:
        _check_closed(record, generation)
    cwd = record.get("cwd")
    if "cwd" in record and (not isinstance(cwd, str) or not cwd):
        raise Damage("the header's cwd can name no project directory")
    identity = SessionIdentity(created_at=created_at, cwd=cwd if isinstance(cwd, str) else None)
    parent = record.get("parentSession")
    return Header(
        generation,
        session_id,
        identity,
        parent_session=parent if isinstance(parent, str) else None,
        seed_length=_seed_length(record, generation),
        subagent="origin" in record,
    )


def _check_version(version: Json, generation: int) -> None:
    if isinstance(version, bool) or not isinstance(version, int | float):
        raise Unlisted("the header's version is not a number")
    if version == generation <= NEWEST_VERSION:
        return
    if generation > 0 and version in range(NEWEST_VERSION + 1):
        raise Damage(f"the header says version {version}, the file name {generation}")
    raise UnsupportedVersion(version)


def _seed_length(record: dict[str, Json], version: int) -> int | None:
    if version >= _FIRST_SEED_FLAG_VERSION:
        return None if record.get("isSeeded") is True else 0
    return jsontext.count(record.get("seedLength", 0)) or 0


def _check_closed(record: dict[str, Json], version: int) -> None:
    """From version 1 on, the released codecs refuse headers with members they do not know."""
    seeded = "isSeeded" if version >= _FIRST_SEED_FLAG_VERSION else "seedLength"
    unknown = record.keys() - _CLOSED_MEMBERS - {seeded}
    if unknown:
        raise Damage(f"the header has unexpected members {sorted(unknown)!r}")
    if version >= _FIRST_SEED_FLAG_VERSION and not isinstance(record.get("isSeeded"), bool):
        raise Damage("the header's isSeeded is not a boolean")
    if jsontext.count(record.get("seedLength", 0)) is None or not isinstance(record.get("parentSession", ""), str):
        raise Damage("the header's seedLength or parentSession has the wrong type")
