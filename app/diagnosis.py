"""What `feedback doctor` looks at. One check that fails hides no other, except what only a server could tell."""

from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from shutil import disk_usage
from typing import NamedTuple
from uuid import uuid4

from msgspec import Struct

from app.catalog import check_root, open_existing_store
from app.endpoint import how_to_start
from app.inspection import ServerFacts, open_server, read_ownership, read_server
from feedback.client import FeedbackClient
from feedback.errors import FeedbackError, HostUnknown, QueueUnavailable, StoreMoved
from feedback.settings import Settings
from feedback.troubles import read_troubles
from persistence.session_log import SessionLogs
from persistence.sidecar import public_url
from projections.topology import check_topology, read_deployment, read_topology
from worker.unpublished import left_out

_PROJECTOR_PATIENCE_S = 2.0
_RESTORE = "repair or restore the store before going on; see docs/operations.md"
_MEND = "mend what it names; see docs/operations.md"
LITTLE_ROOM_BYTES = 32 * 2**20
"""So much is used up soon by a store that is in use."""


class Finding(Struct, frozen=True, omit_defaults=True):
    """What one check saw, and what to do about it when it is not well."""

    check: str
    detail: str
    action: str | None = None

    @property
    def ok(self) -> bool:
        """Whether nothing has to be done."""
        return self.action is None


def diagnose(settings: Settings, data: Path) -> list[Finding]:
    """Look at server, store, log root, topology, workers and projector. Raises nothing that it looks for.

    Without a server that answers, what only it could tell is left out.
    """
    findings, answers = _server(settings, data)
    for check in _CHECKS:
        if answers or not check.needs_server:
            findings += _attempt(check, settings)
    return findings


def _attempt(check: "_Check", settings: Settings) -> list[Finding]:
    try:
        return list(check.look(settings))
    except FeedbackError as error:
        detail, action = f"{error.code}: {error}", check.cure
        if isinstance(error, StoreMoved):  # it says itself what is to be done
            detail, action = _parted(detail, action)
        return [Finding(check.name, detail, action)]


def _parted(told: str, otherwise: str) -> tuple[str, str]:
    """What is amiss, and what to do: behind a semicolon, where the store says it itself."""
    detail, semicolon, action = told.partition("; ")
    return (detail, action) if semicolon else (told, otherwise)


def _server(settings: Settings, data: Path) -> tuple[list[Finding], bool]:
    """What is to be said about the server, and whether there is one that answers."""
    if not settings.redis_url:
        return [Finding("server", f"none is named, and no system runs in {data.absolute()}", how_to_start(data))], False
    try:
        with open_server(settings.redis_url) as redis:
            return list(server_findings(read_server(redis))), True
    except QueueUnavailable as error:
        cure = "check --redis-url or FEEDBACK_REDIS_URL, and that the server runs and lets us in"
        return [Finding("server", f"{error.code}: {error}", cure)], False


def server_findings(facts: ServerFacts) -> Iterator[Finding]:
    """What is to be said about a server that answers."""
    wanted = None if facts.is_supported else "upgrade it: Redis 7.0 or newer, or Valkey 8 or newer"
    yield Finding("server", f"{facts.name} {facts.version}", wanted)
    if not facts.append_only:
        cure = "turn it on, or a restart forgets what waits: appendonly yes, appendfsync everysec"
        yield Finding("append-only file", "off", cure)
    elif facts.append_only_fails:
        cure = "make room on the server's disk: until it can write, it takes no command and no worker serves"
        yield Finding("append-only file", "on, but the server cannot write it", cure)
    else:
        yield Finding("append-only file", "on")
    policy = facts.maxmemory_policy
    cure = "set maxmemory-policy noeviction: an evicting server drops commands in silence"
    yield Finding("eviction", f"maxmemory-policy {policy}", None if policy == "noeviction" else cure)


def _store(settings: Settings) -> Iterator[Finding]:
    store = open_existing_store(settings.sidecar_url)
    if store is None:
        cure = "start a worker, which makes it, or correct the URL"
        yield Finding("store", f"nothing at {public_url(settings.sidecar_url)}", cure)
        return
    with closing(store):
        health = store.health()
    counts = f"{health.sessions} Sessions, {health.items} items, {health.commands} command records"
    yield Finding("store", f"{health.engine}, schema {health.schema_version}, {counts}: {health.location}")
    for finding in health.findings:
        is_damaged = finding.startswith("partition ")
        yield Finding("store", *_parted(finding, _RESTORE if is_damaged else _MEND))
    if settings.sidecar_url.startswith("sqlite:"):
        free = disk_usage(Path(health.location).parent).free
        if free < LITTLE_ROOM_BYTES:
            cure = "make room: without it nothing can be stored, and commands wait"
            yield Finding("store", f"{free / 2**20:.1f} MiB left on its disk", cure)


def _log_root(settings: Settings) -> Iterator[Finding]:
    if settings.logs == "agents":
        yield Finding("Session logs", "elsewhere: workers ask the agents of hosts")
        return
    logs = SessionLogs(check_root(settings.sessions))
    some = "holds Sessions" if logs.sessions(limit=1) else "holds no Session yet"
    yield Finding("Session logs", f"{settings.sessions} {some}")


def _topology(settings: Settings) -> Iterator[Finding]:
    with open_server(settings.redis_url) as redis:
        topology, deployment = read_topology(redis), read_deployment(redis)
    if topology is None:
        yield Finding("topology", "the server has none", "start a worker, which sets it up")
        return
    store = open_existing_store(settings.sidecar_url)
    if store is not None:
        with closing(store):
            check_topology(topology, deployment, store.topology())
    partitions = f"generation {topology.generation} of {topology.partitions} partitions"
    yield Finding("topology", f"{partitions}, notes up to {topology.max_note_bytes} bytes")


def _workers(settings: Settings) -> Iterator[Finding]:
    with open_server(settings.redis_url) as redis:
        ownership = read_ownership(redis)
    idle = sum(owner is None for owner in ownership.owners.values())
    if not ownership.workers:
        yield Finding("workers", "none is alive", "start one: feedback worker")
    elif idle:
        cure = "wait a few seconds; if it stays, look into the workers' logs"
        yield Finding("workers", f"{len(ownership.workers)} alive, {idle} partitions without an owner", cure)
    else:
        yield Finding("workers", f"{len(ownership.workers)} alive, every partition has an owner")


def _troubles(settings: Settings) -> Iterator[Finding]:
    """What workers and projectors met, which may see other disks than this process."""
    with open_server(settings.redis_url) as redis:
        for reporter, trouble in read_troubles(redis).items():
            cure = "mend what it names; the process goes on by itself"
            yield Finding("troubles", f"{reporter}: {trouble.code}: {trouble.message}", cure)


def _events(settings: Settings) -> Iterator[Finding]:
    with open_server(settings.redis_url) as redis:
        topology = read_topology(redis)
        if topology is None:
            return
        for event_id, reason in left_out(redis, topology.generation).items():
            cure = "consumers have it from the store; look into the worker's log, and report the defect"
            yield Finding("events", f"{event_id} is not in its stream: {reason}", cure)


def _projector(settings: Settings) -> Iterator[Finding]:
    # Any answer will do. The usual ones: there is no such Session; or, it sees no logs and was told no host.
    with FeedbackClient.from_url(settings.redis_url) as client, suppress(HostUnknown):
        client.list(uuid4().hex, timeout=_PROJECTOR_PATIENCE_S)
    yield Finding("projector", "answers")


class _Check(NamedTuple):
    """One look, and what to do when it fails altogether."""

    name: str
    look: Callable[[Settings], Iterator[Finding]]
    cure: str
    needs_server: bool = False


_CHECKS = (
    _Check(
        "store", _store, "check --sidecar-url; a newer store needs a newer program, another one's is not ours to touch"
    ),
    _Check("Session logs", _log_root, "check --sessions and the rights of this user"),
    _Check("topology", _topology, "give every process the same server, store and settings", needs_server=True),
    _Check("workers", _workers, "make the server reachable first", needs_server=True),
    _Check("troubles", _troubles, "make the server reachable first", needs_server=True),
    _Check("events", _events, "make the server reachable first", needs_server=True),
    _Check("projector", _projector, "start one: feedback projector; if one runs, look into its log", needs_server=True),
)
