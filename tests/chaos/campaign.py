"""One campaign: load, faults, quiet, and the check."""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec import Struct
from redis.exceptions import RedisError

from feedback import FeedbackClient, keys
from feedback.errors import FeedbackError
from feedback.events import Event, decode_event
from persistence.session_log import SessionLogs
from projections.cache import ListCache
from tests.chaos.checker import Checked, check, unanswered
from tests.chaos.clients import Client
from tests.chaos.faults import Nemesis, write_life
from tests.chaos.history import Call, History, Reading, listen
from tests.chaos.mutants import Mutant
from tests.chaos.system import ChaosSystem
from tests.harness import wait_until

SESSIONS = tuple(f"session-{number}" for number in range(12))
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
) -> Report:
    """Run a campaign in `home`. The faults follow from `seed`; when they hit what depends on the machine.

    `kinds` names the faults to draw from; all when it is empty.
    """
    rng = random.Random(seed)
    history = History()
    log: list[str] = []
    began = time.monotonic()

    def note(line: str) -> None:
        log.append(f"{time.monotonic() - began:7.2f} {line}")
        say(log[-1])

    for session_id in SESSIONS:
        write_life(home / "sessions", session_id, 0)
    with ChaosSystem(home, workers=_WORKERS, mutant=mutant) as system:
        system.wait_until_owned()
        nemesis = Nemesis(system, history, SESSIONS, rng, kinds)
        _under_load(system, history, rng, lambda: _fire(nemesis, system, seconds, rng, note))
        note("quiet")
        violations = _settle(system, history)
        if mutant is None:
            violations += [f"{name} ended by itself" for name in system.deaths()]
        stored = {p.number: _recorded(system, p.number) for p in system.partitions()}
        checked = check(history, stored, troubled=frozenset(nemesis.reborn))
        checked.violations += violations + _copies_differ(system)
    return Report(seed, nemesis.injected, checked, log)


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


def _fire(
    nemesis: Nemesis, system: ChaosSystem, seconds: float, rng: random.Random, note: Callable[[str], None]
) -> None:
    until = time.monotonic() + seconds
    try:
        while time.monotonic() < until:
            nemesis.pass_time(rng.uniform(0.05, 1.2))
            note(nemesis.inject())
    finally:
        nemesis.end()
        system.retire_doomed()


def _settle(system: ChaosSystem, history: History) -> list[str]:
    """After the last fault: every command can still be had an answer to, and everything comes to rest."""
    violations: list[str] = []
    system.proxy.forget_traps()
    with FeedbackClient.from_url(system.server.url) as client:
        for request in unanswered(history):
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
        wait_until(lambda: _is_at_rest(system), "queues are empty and the projection has caught up", _SETTLE_S)
    except AssertionError as error:
        violations.append(f"{error}: {_unrest(system)}")
    return violations


def _is_at_rest(system: ChaosSystem) -> bool:
    return not _unrest(system)


def _unrest(system: ChaosSystem) -> list[str]:
    partitions = system.partitions()
    with suppress(RedisError, FeedbackError):
        waiting = [key for p in partitions for key in (keys.queue(p), keys.claimed(p)) if system.admin.exists(key)]
        heads = {p.number: head for p, head in system.store.heads(partitions).items()}
        reached = ListCache(system.admin).checkpoints(1)
        return waiting + [
            f"checkpoint of {n}: {reached.get(n)}, head {h}" for n, h in heads.items() if reached.get(n, 0) != h
        ]
    return ["server or store out of reach"]


def _recorded(system: ChaosSystem, number: int) -> list[tuple[int, Event]]:
    (partition,) = (p for p in system.partitions() if p.number == number)
    return [(sequence, decode_event(data)) for sequence, data in system.store.outcomes(partition, 0, 10_000_000)]


def _copies_differ(system: ChaosSystem) -> list[str]:
    """Streams and cache are copies of the store: each entry that stands there says what the store says."""
    violations: list[str] = []
    for partition in system.partitions():
        stored = dict(system.store.outcomes(partition, 0, 10_000_000))
        entries: Any = system.admin.xrange(keys.events(partition))
        for entry_id, fields in entries:
            sequence = int(entry_id.partition(b"-")[0])
            if stored.get(sequence) != fields[b"event"]:
                violations.append(f"stream {partition} has another event {sequence} than the store")
    for session_id, view in ListCache(system.admin).read(SESSIONS).views.items():
        truth = system.store.feedback(session_id)
        if truth is None or (view.revision, view.items) != (truth.revision, truth.items):
            violations.append(f"cached list of {session_id} at {view.revision}, store at {truth and truth.revision}")
    return violations
