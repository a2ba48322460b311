"""One campaign: load, faults, quiet, and the check."""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from contextlib import closing, nullcontext, suppress
from pathlib import Path
from typing import Any, Literal, TypeAlias
from uuid import uuid4

from msgspec import Struct
from redis.exceptions import RedisError

from feedback import FeedbackClient, Put, keys
from feedback.errors import FeedbackError
from feedback.events import Event, decode_event
from feedback.partitions import PartitionId
from persistence.session_log import SessionLogs
from projections.cache import ListCache
from tests.chaos.checker import Checked, check, unanswered
from tests.chaos.clients import Client
from tests.chaos.history import Call, History, Mutation, Reading, listen
from tests.chaos.mutants import Mutant
from tests.chaos.nemesis import Field, Kinds, Nemesis
from tests.chaos.on_postgres import PostgresFaults, PostgresPair
from tests.chaos.on_processes import ProcessFaults
from tests.chaos.on_queues import QueueFaults
from tests.chaos.on_server import ServerFaults
from tests.chaos.on_storage import LOCKED, ShakyOwner, StorageFaults
from tests.chaos.system import ChaosSystem
from tests.chaos.worker import commits
from tests.harness import wait_until

Store: TypeAlias = Literal["sqlite", "postgres"]

LIVE = "session-live"
"""Held open by a host."""
SESSIONS = (*(f"session-{number}" for number in range(12)), LIVE)
_CLIENTS = 6
_WORKERS = 2
_SETTLE_S = 30.0
_LAST_CALL_S = 20.0


class Report(Struct):
    """What was injected, what was checked, and what did not hold."""

    seed: int
    injected: Counter[str]
    checked: Checked
    log: list[str]


def run(
    home: Path,
    *,
    seconds: float,
    seed: int,
    say: Callable[[str], None],
    kinds: Collection[str] = (),
    mutant: Mutant | None = None,
    store: Store = "sqlite",
    pause_s: float = 1.2,
) -> Report:
    """Run a campaign in `home`. The faults follow from `seed`; when they hit what depends on the machine.

    `kinds` names the faults to draw from; all when it is empty. Between two faults there is a pause, `pause_s` at most.
    """
    rng = random.Random(seed)
    history = History()
    log: list[str] = []
    began = time.monotonic()

    def note(line: str) -> None:
        log.append(f"{time.monotonic() - began:7.2f} {line}")
        say(log[-1])

    with (
        nullcontext() if store == "sqlite" else PostgresPair() as pair,
        ChaosSystem(
            home, SESSIONS, workers=_WORKERS, rng=rng, mutant=mutant, sidecar_url=pair.url if pair else None
        ) as system,
    ):
        system.wait_until_owned()
        identity = system.known_logs.current(LIVE).identity
        assert identity is not None
        with closing(ShakyOwner(system.proxy.url, LIVE, identity)) as owner:
            field = Field(system, history, SESSIONS, rng)
            nemesis = Nemesis(field, _all_faults(field, owner, pair), kinds)
            _under_load(system, history, rng, lambda: _fire(nemesis, field, seconds, pause_s, note))
            note("quiet")
            violations = _settle(system, history)
        if mutant is None:
            violations += [f"no process ends by itself: {name}" for name in system.deaths()]
        stored = {partition: _recorded(system, partition) for partition in system.partitions()}
        checked = check(
            history, stored, logs=system.known_logs, commits=commits(system.commits), broken=system.broken_commands()
        )
        checked.violations += violations
        _check_copies(system, stored, checked)
    return Report(seed, nemesis.injected, checked, log)


def _all_faults(field: Field, owner: ShakyOwner, pair: PostgresPair | None) -> Kinds:
    families = (ProcessFaults(field), ServerFaults(field), QueueFaults(field), StorageFaults(field, owner))
    kinds = {name: kind for family in families for name, kind in family.kinds().items()}
    if pair is None:
        return kinds
    del kinds[LOCKED]  # which takes SQLite's one lock
    return kinds | dict(PostgresFaults(field, pair).kinds())


def _under_load(system: ChaosSystem, history: History, rng: random.Random, body: Callable[[], None]) -> None:
    stop = threading.Event()
    logs = SessionLogs(Path(system.settings.sessions))
    seeds = [rng.getrandbits(32) for _ in range(_CLIENTS)]
    clients = [Client(system.proxy.url, SESSIONS, seed, history, stop, logs=logs) for seed in seeds]
    for client in clients:
        client.start()
    try:
        body()
    finally:
        stop.set()
        for client in clients:
            client.join(60)


def _fire(nemesis: Nemesis, field: Field, seconds: float, pause_s: float, note: Callable[[str], None]) -> None:
    until = time.monotonic() + seconds
    try:
        while time.monotonic() < until:
            field.pass_time(field.rng.uniform(0.05, pause_s))
            note(nemesis.inject())
    finally:
        field.end_all()
        field.pass_time(1.0)  # what thaws now may do its worst
        field.system.retire_doomed()


def _settle(system: ChaosSystem, history: History) -> list[str]:
    """After the last fault: every command can still be had an answer to, and everything comes to rest."""
    violations: list[str] = []
    system.proxy.forget_traps()
    with FeedbackClient.from_url(system.server.url) as client:
        # One more command a Session: the current generation is served, whatever became of the last change.
        last: list[Mutation] = [Put(session_id, "m1", "positive", command_id=uuid4()) for session_id in SESSIONS]
        for request in [*unanswered(history), *last]:
            system.bury()
            heard = listen(lambda request=request: client.submit(request).result(_LAST_CALL_S))  # type: ignore[misc]  # bound early
            history.calls.append(Call(request, heard))
            if heard.result is None and heard.failure in ("ResultTimeout", "QueueUnavailable"):
                violations.append(f"no answer after the faults had ended ({heard.failure}): {request}")
                if len(violations) > 3:
                    return violations
        for session_id in SESSIONS:
            heard = listen(lambda session_id=session_id: client.list(session_id, timeout=_LAST_CALL_S))  # type: ignore[misc]  # bound early
            history.readings.append(Reading(session_id, None, heard))
            if heard.result is None:
                violations.append(f"no list after the faults had ended: {session_id} {heard.failure}")
    try:
        wait_until(lambda: not _unrest(system), "queues are empty and the projection has caught up", _SETTLE_S)
    except AssertionError as error:
        violations.append(f"{error}: {_unrest(system)}")
    return violations


def _unrest(system: ChaosSystem) -> list[str]:
    """What is not at rest yet."""
    current = max(system.generations)
    partitions = [partition for partition in system.partitions() if partition.generation >= current - 1]
    with suppress(RedisError, FeedbackError):
        lists = [key for p in partitions for key in (keys.queue(p), keys.claimed(p), keys.aside(p))]
        waiting = [key for key in lists if system.admin.exists(key)]
        heads = system.store.heads([partition for partition in partitions if partition.generation == current])
        reached = ListCache(system.admin).checkpoints(current)
        behind = [
            f"{p}: at {reached.get(p.number, 0)} of {h}" for p, h in heads.items() if reached.get(p.number, 0) != h
        ]
        return waiting + behind + ([] if system.is_changed() else ["the last change of partitions is not through"])
    return ["server or store out of reach"]


def _recorded(system: ChaosSystem, partition: PartitionId) -> list[tuple[int, Event]]:
    return [(sequence, decode_event(data)) for sequence, data in system.store.outcomes(partition, 0, 10_000_000)]


def _check_copies(system: ChaosSystem, stored: Mapping[PartitionId, list[tuple[int, Event]]], checked: Checked) -> None:
    """Streams and cache are copies of the store: each entry that stands there says what the store says."""
    for partition, records in stored.items():
        truth = dict(records)
        entries: Any = system.admin.xrange(keys.events(partition))
        for entry_id, fields in entries:
            sequence = int(entry_id.partition(b"-")[0])
            checked.checks["streams equal the store"] += 1
            if truth.get(sequence) != decode_event(fields[b"event"]):
                checked.violations.append(f"streams equal the store: not event {sequence} of {partition}")
    for session_id, view in ListCache(system.admin).read(SESSIONS).views.items():
        checked.checks["cached lists equal the store"] += 1
        feedback = system.store.feedback(session_id)
        if feedback is None or (view.revision, view.items) != (feedback.revision, feedback.items):
            checked.violations.append(f"cached lists equal the store: {session_id} at {view.revision}, {feedback}")
