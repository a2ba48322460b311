"""What `feedback doctor` looks at. Each check stands alone: one that fails hides no other."""

from collections.abc import Callable, Iterator
from contextlib import closing
from uuid import uuid4

from msgspec import Struct

from app.catalog import check_root, open_existing_store
from app.inspection import open_server, read_ownership, read_server
from feedback.client import FeedbackClient
from feedback.errors import FeedbackError
from feedback.settings import Settings
from persistence.session_log import SessionLogs
from projections.topology import check_topology, read_topology

_PROJECTOR_PATIENCE_S = 2.0


class Finding(Struct, frozen=True, omit_defaults=True):
    """What one check saw, and what to do about it when it is not well."""

    check: str
    detail: str
    action: str | None = None

    @property
    def ok(self) -> bool:
        """Whether nothing has to be done."""
        return self.action is None


def diagnose(settings: Settings) -> list[Finding]:
    """Look at server, store, log root, topology, workers and projector. Raises nothing that it looks for."""
    findings: list[Finding] = []
    for name, check, cure in _CHECKS:
        try:
            findings.extend(check(settings))
        except FeedbackError as error:
            findings.append(Finding(name, f"{error.code}: {error}", cure))
    return findings


def _server(settings: Settings) -> Iterator[Finding]:
    with open_server(settings.redis_url) as redis:
        facts = read_server(redis)
    wanted = None if facts.is_supported else "upgrade it: Redis 7.0 or newer, or Valkey 8 or newer"
    yield Finding("server", f"{facts.name} {facts.version}", wanted)
    state = "on" if facts.append_only else "off"
    cure = "turn it on, or a restart forgets what waits: appendonly yes, appendfsync everysec"
    yield Finding("append-only file", state, None if facts.append_only else cure)
    policy = facts.maxmemory_policy
    cure = "set maxmemory-policy noeviction: an evicting server drops commands in silence"
    yield Finding("eviction", f"maxmemory-policy {policy}", None if policy == "noeviction" else cure)


def _store(settings: Settings) -> Iterator[Finding]:
    store = open_existing_store(settings.sidecar_url)
    if store is None:
        cure = "start a worker, which makes it, or correct the URL"
        yield Finding("store", f"nothing at {settings.sidecar_url}", cure)
        return
    with closing(store):
        health = store.health()
    counts = f"{health.sessions} Sessions, {health.items} items, {health.commands} command records"
    yield Finding("store", f"{health.engine}, schema {health.schema_version}, {counts}: {health.location}")
    for finding in health.findings:
        yield Finding("store", finding, "repair or restore the store before going on; see docs/operations.md")


def _log_root(settings: Settings) -> Iterator[Finding]:
    logs = SessionLogs(check_root(settings.sessions))
    some = "holds Sessions" if logs.sessions(limit=1) else "holds no Session yet"
    yield Finding("Session logs", f"{settings.sessions} {some}")


def _topology(settings: Settings) -> Iterator[Finding]:
    with open_server(settings.redis_url) as redis:
        topology = read_topology(redis)
    if topology is None:
        yield Finding("topology", "the server has none", "start a worker, which sets it up")
        return
    store = open_existing_store(settings.sidecar_url)
    if store is not None:
        with closing(store):
            check_topology(topology, store.topology())
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


def _projector(settings: Settings) -> Iterator[Finding]:
    with FeedbackClient.from_url(settings.redis_url) as client:
        # Any answer will do; that there is no such Session is the usual one.
        client.list(uuid4().hex, timeout=_PROJECTOR_PATIENCE_S)
    yield Finding("projector", "answers")


_Check = Callable[[Settings], Iterator[Finding]]
_CHECKS: tuple[tuple[str, _Check, str], ...] = (
    ("server", _server, "check --redis-url or FEEDBACK_REDIS_URL, and that the server runs and lets us in"),
    ("store", _store, "check --sidecar-url; a newer store needs a newer program, another one's is not ours to touch"),
    ("Session logs", _log_root, "check --sessions and the rights of this user"),
    ("topology", _topology, "give every process the same server, store and settings"),
    ("workers", _workers, "make the server reachable first"),
    ("projector", _projector, "start one: feedback projector; if one runs, look into its log"),
)
