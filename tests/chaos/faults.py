"""The faults of the campaign, drawn from a seed (FAULTS, sections 2 and 3)."""

import heapq
import itertools
import random
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path

from redis.exceptions import RedisError

from feedback import keys
from feedback.crashpoints import CrashPoint
from feedback.scripting import Script
from persistence.session_log import LogWriter
from persistence.session_log.events import exchange
from tests.chaos.history import History
from tests.chaos.system import LEASE_TTL_S, ChaosSystem, is_stopped, kill
from tests.harness import CREATED_AT, wait_until
from tests.proxy import Matcher, names, runs

_SCRIPTS: tuple[Matcher, ...] = tuple(
    runs(Script(package, name))
    for package, name in (
        ("worker", "claim"),
        ("worker", "finish"),
        ("worker", "recover"),
        ("worker", "publish"),
        ("worker", "heartbeat"),
        ("worker", "assign"),
        ("feedback", "enqueue"),
        ("feedback", "read_list"),
        ("feedback", "owners_of"),
        ("projections", "store"),
    )
)
_COMMANDS = tuple(names(command) for command in ("BLMPOP", "XREAD", "BLPOP", "HMGET", "RPUSH", "HSET"))
_CRASH_POINTS = tuple(point for point in CrashPoint if "checkpoint" not in point)
_ZOMBIE_POINTS = (CrashPoint.AFTER_CLAIM, CrashPoint.AFTER_BARRIER, CrashPoint.BEFORE_COMMIT)
_MOST_WORKERS = 5


class Nemesis:
    """Injects one fault after the other, and undoes by itself what is meant to pass."""

    def __init__(
        self,
        system: ChaosSystem,
        history: History,
        sessions: tuple[str, ...],
        rng: random.Random,
        kinds: Collection[str] = (),
    ) -> None:
        """`kinds` names the faults to draw from; all when it is empty."""
        self._system = system
        self._history = history
        self._sessions = sessions
        self._rng = rng
        self._later: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._lives = dict.fromkeys(sessions, 0)
        self.injected: Counter[str] = Counter()
        self.reborn: set[str] = set()
        self._faults: dict[str, tuple[int, Callable[[], str]]] = {
            "kill a worker": (4, self._kill_worker),
            "pause a worker": (4, self._pause_worker),
            "a worker crashes": (4, self._crash),
            "a zombie": (3, self._zombie),
            "a forgotten zombie": (1, self._forgotten_zombie),
            "a worker joins": (2, self._join),
            "a worker leaves": (2, self._leave),
            "kill the projector": (1, self._kill_projector),
            "lose a reply": (6, self._lose_reply),
            "lose a request": (4, self._lose_request),
            "cut every connection": (2, self._cut_all),
            "server out of memory": (1, lambda: self._configure("maxmemory", "1", "0")),
            "server read-only": (1, self._read_only),
            "server frozen": (1, self._freeze_server),
            "server restarts": (1, lambda: self._restart(lambda: "with all its data")),
            "server loses the last writes": (2, lambda: self._restart(lambda: system.lose_tail(rng))),
            "server loses everything": (1, lambda: self._restart(system.lose_everything)),
            "stale replica promoted": (1, lambda: self._restart(system.promote_copy)),
            "replica falls behind": (2, self._copy),
            "FLUSHALL": (1, self._flush_all),
            "a key is deleted": (8, self._delete_key),
            "SCRIPT FLUSH": (1, self._flush_scripts),
            "a command is delivered again": (4, self._deliver_again),
            "a foreign job": (2, self._foreign_job),
            "the store is locked": (1, self._lock_store),
            "a Session's next life": (1, self._rebirth),
        }
        if kinds:
            self._faults = {kind: self._faults[kind] for kind in kinds}

    def inject(self) -> str:
        """One fault, drawn; what it was."""
        kinds = list(self._faults)
        (kind,) = self._rng.choices(kinds, [weight for weight, _ in self._faults.values()])
        try:
            said = self._faults[kind][1]()
        except RedisError as error:
            return f"{kind}: not now ({type(error).__name__})"
        self.injected[kind] += 1
        return f"{kind}: {said}"

    def pass_time(self, seconds: float) -> None:
        """Sleep, and end the faults whose time is over."""
        until = time.monotonic() + seconds
        while (now := time.monotonic()) < until:
            while self._later and self._later[0][0] <= now:
                heapq.heappop(self._later)[2]()
            time.sleep(min(0.02, max(0.0, until - now)))

    def end(self) -> None:
        """End every fault."""
        while self._later:
            heapq.heappop(self._later)[2]()

    def _after(self, seconds: float, undo: Callable[[], None]) -> None:
        heapq.heappush(self._later, (time.monotonic() + seconds, next(self._order), undo))

    def _worker(self) -> int:
        return self._rng.randrange(len(self._system.workers))

    def _kill_worker(self) -> str:
        child = self._system.workers.pop(self._worker())
        kill(child)
        child.stop(0)
        self._system.add_worker()
        return child.name

    def _pause_worker(self) -> str:
        child = self._system.workers[self._worker()]
        seconds = self._rng.uniform(0.3, 3) * LEASE_TTL_S
        kill(child, signal.SIGSTOP)
        self._after(seconds, lambda: kill(child, signal.SIGCONT))
        return f"{child.name} for {seconds:.1f} s"

    def _crash(self) -> str:
        """Another worker that dies, or stops for long, at a named place in the code."""
        action = self._rng.choice(("kill", "stop"))
        return self._armed(f"{self._rng.choice(_CRASH_POINTS)}:{action}:{self._rng.choice((1, 1, 2, 5))}")

    def _zombie(self) -> str:
        """Another worker that stops with a batch in its hands, and goes on when that is another one's."""
        return self._armed(f"{self._rng.choice(_ZOMBIE_POINTS)}:stop:{self._rng.randrange(1, 6)}")

    def _forgotten_zombie(self) -> str:
        """As a zombie, and the server forgets meanwhile what it held: its commands are nobody's but its own."""
        said = self._zombie()
        child = self._system.workers[-1]
        with suppress(AssertionError):
            wait_until(lambda: is_stopped(child), "it stops", 3 * LEASE_TTL_S)
            self._system.admin.flushall()
            self._after(3 * LEASE_TTL_S, lambda: kill(child, signal.SIGCONT))
        return said

    def _armed(self, spec: str) -> str:
        self._system.bury()
        if len(self._system.workers) > _MOST_WORKERS:
            child = self._system.workers.pop(self._worker())
            kill(child)
            child.stop(0)
        child = self._system.add_worker(spec)
        for beats in (6, 9, 12):
            self._after(beats * LEASE_TTL_S, lambda: kill(child, signal.SIGCONT))
        return f"{child.name} {spec}"

    def _join(self) -> str:
        if len(self._system.workers) >= _MOST_WORKERS:
            return "no room"
        self._system.add_worker()
        return self._system.workers[-1].name

    def _leave(self) -> str:
        if len(self._system.workers) < 2:
            return "the last one stays"
        child = self._system.workers.pop(self._worker())
        kill(child, signal.SIGCONT)
        self._system.end(child)
        return child.name

    def _kill_projector(self) -> str:
        self._system.replace_projector()
        return "and start another"

    def _lose_reply(self) -> str:
        self._system.proxy.lose_reply(self._rng.choice(_SCRIPTS + _COMMANDS), nth=self._rng.randrange(1, 4))
        return "of a script or command"

    def _lose_request(self) -> str:
        trap = self._system.proxy.hold_request(self._rng.choice(_SCRIPTS + _COMMANDS), nth=self._rng.randrange(1, 4))
        trap.cut()
        return "of a script or command"

    def _cut_all(self) -> str:
        self._system.proxy.cut_all()
        return "at once"

    def _configure(self, name: str, bad: str, good: str) -> str:
        self._system.admin.config_set(name, bad)
        self._after(self._rng.uniform(0.1, 1), lambda: _insist(lambda: self._system.admin.config_set(name, good)))
        return f"{name} {bad}"

    def _read_only(self) -> str:
        # A replica of nobody keeps its data and refuses writes.
        self._system.admin.replicaof("127.0.0.1", "1")
        self._after(self._rng.uniform(0.1, 1), lambda: _insist(lambda: self._system.admin.replicaof("NO", "ONE")))
        return "for a while"

    def _freeze_server(self) -> str:
        child = self._system.server.child
        assert child is not None
        seconds = self._rng.uniform(0.2, 2) * LEASE_TTL_S
        kill(child, signal.SIGSTOP)
        time.sleep(seconds)
        kill(child, signal.SIGCONT)
        return f"for {seconds:.1f} s"

    def _restart(self, meanwhile: Callable[[], str]) -> str:
        self.end()
        return self._system.restart_server(meanwhile)

    def _copy(self) -> str:
        self._system.copy_log()
        return "from now on"

    def _flush_all(self) -> str:
        self._system.admin.flushall()
        return "everything"

    def _delete_key(self) -> str:
        found: list[bytes] = sorted(self._system.admin.scan_iter(count=1000))
        prefixes = sorted({key.rsplit(b":", 1)[0] for key in found})
        if not prefixes:
            return "none there"
        prefix = self._rng.choice(prefixes)
        key = self._rng.choice([key for key in found if key.rsplit(b":", 1)[0] == prefix])
        self._system.admin.delete(key)
        return key.decode(errors="backslashreplace")

    def _flush_scripts(self) -> str:
        self._system.admin.script_flush()
        return "all"

    def _deliver_again(self) -> str:
        calls = self._history.calls[-500:]
        if not calls:
            return "none yet"
        call = self._rng.choice(calls)
        job = keys.job(call.command_id)
        if not self._system.admin.exists(job):
            return "gone already"
        queue = keys.queue(self._system.partition_of(call.request.session_id))
        for _ in range(self._rng.choice((1, 2, 20))):
            push = self._rng.choice((self._system.admin.rpush, self._system.admin.lpush))
            push(queue, call.command_id)
        return call.command_id

    def _foreign_job(self) -> str:
        partition = self._rng.choice(self._system.partitions())
        name = f"foreign-{next(self._order)}"
        data = self._rng.choice((b"\x80\x04cos\nsystem\n", b"\x94", b"x" * 100))
        self._system.admin.hset(keys.job(name), "data", data)
        self._system.admin.rpush(keys.queue(partition), name)
        return name

    def _lock_store(self) -> str:
        """Another process holds the write lock."""
        held = self._system.store.transaction({})
        held.__enter__()

        def release() -> None:
            held.__exit__(None, None, None)

        self._after(self._rng.uniform(0.1, 2), release)
        return "for a while"

    def _rebirth(self) -> str:
        """Another Session under the same id: the old log goes, feedback on it counts as absent."""
        session_id = self._rng.choice(self._sessions)
        self.reborn.add(session_id)
        self._lives[session_id] += 1
        root = Path(self._system.settings.sessions)
        for directory in root.glob(f"*/{session_id}"):
            shutil.rmtree(directory)
        write_life(root, session_id, self._lives[session_id])
        return session_id


def write_life(root: Path, session_id: str, life: int) -> None:
    """The log of a Session's nth life, with the messages that clients rate."""
    with LogWriter(root, session_id, created_at=CREATED_AT + life, cwd="/w") as log:
        for turn, message_id in enumerate(("m1", "m2", "m3"), start=1):
            log.append(exchange(turn, "Please?", "Here.", user_id=f"u{turn}", assistant_id=message_id))


def _insist(undo: Callable[[], object]) -> None:
    try:
        undo()
    except RedisError:
        time.sleep(0.1)
        undo()
