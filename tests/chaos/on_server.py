"""Faults of the Redis server and of the way to it: forgetful, full, silent, cut off, wrong about the time."""

import signal
import time
from collections.abc import Callable
from pathlib import Path

from redis.exceptions import RedisError

from feedback.scripting import Script
from projections.rebuild import rebuild
from tests.chaos.nemesis import Field, Kinds
from tests.chaos.system import LEASE_TTL_S
from tests.proxy import Matcher, names, runs

_ROOT = Path(__file__).parents[2]
_SCRIPTS: tuple[Matcher, ...] = tuple(
    runs(Script(path.parts[-3], path.stem))
    for path in sorted(_ROOT.glob("*/scripts/*.lua"))
    if not path.stem.startswith("dlq")
)
_COMMANDS = tuple(names(command) for command in ("BLMPOP", "BLMOVE", "XREAD", "BLPOP", "HMGET", "RPUSH", "HSET"))
_HOUR_MS = 3_600_000
_STEPS_MS = (-24 * _HOUR_MS, -_HOUR_MS, -5000, 5000, _HOUR_MS, 24 * _HOUR_MS)
"""Of the server's clock: far less than what it keeps records by."""


class ServerFaults:
    """The server, its data, and the network before it."""

    def __init__(self, field: Field) -> None:
        self._field = field
        self._system, self._rng = field.system, field.rng

    def kinds(self) -> Kinds:
        server = self._system.server
        return {
            "lose a reply": (6, self._lose_reply),
            "lose a request": (4, self._lose_request),
            "cut every connection": (2, self._cut_all),
            "CLIENT KILL": (1, self._kill_clients),
            "CLIENT PAUSE": (1, self._pause_clients),
            "black hole of a lease": (1, lambda: self._black_hole(1)),
            "black hole of ten leases": (1, lambda: self._black_hole(10)),
            "server out of memory": (1, lambda: self._configure("maxmemory", "1", "0")),
            "server takes no more clients": (1, lambda: self._configure("maxclients", "1", "10000")),
            "server read-only": (1, self._read_only),
            "server frozen": (1, self._freeze_server),
            "server's clock steps": (1, self._step_clock),
            "server restarts": (1, lambda: self._restart(lambda: "with all its data")),
            "server loses the last writes": (2, lambda: self._restart(lambda: server.lose_tail(self._rng))),
            "server loses everything": (1, lambda: self._restart(server.lose_everything)),
            "stale replica promoted": (1, lambda: self._restart(server.promote_copy)),
            "replica falls behind": (2, self._copy),
            "FLUSHALL": (1, self._flush_all),
            "a key is deleted": (8, self._delete_key),
            "SCRIPT FLUSH": (1, self._flush_scripts),
            "lists are rebuilt": (1, self._rebuild),
        }

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

    def _kill_clients(self) -> str:
        killed = self._system.admin.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        return f"{killed} of them"

    def _pause_clients(self) -> str:
        seconds, writes = self._rng.uniform(0.2, 3) * LEASE_TTL_S, self._rng.random() < 0.5
        self._system.admin.execute_command("CLIENT", "PAUSE", int(1000 * seconds), "WRITE" if writes else "ALL")
        return f"{'writes' if writes else 'all'} for {seconds:.1f} s"

    def _black_hole(self, leases: int) -> str:
        """Connections stand, and nothing comes through any of them."""
        self._system.proxy.freeze()
        self._field.after(leases * LEASE_TTL_S, self._system.proxy.thaw)
        return f"for {leases * LEASE_TTL_S:g} s"

    def _configure(self, name: str, bad: str, good: str) -> str:
        self._system.admin.config_set(name, bad)
        self._later(lambda: self._system.admin.config_set(name, good))
        return f"{name} {bad}"

    def _read_only(self) -> str:
        # A replica of nobody keeps its data and refuses writes.
        self._system.admin.replicaof("127.0.0.1", "1")
        self._later(lambda: self._system.admin.replicaof("NO", "ONE"))
        return "for a while"

    def _later(self, undo: Callable[[], object]) -> None:
        self._field.after(self._rng.uniform(0.1, 1), lambda: _insist(undo))

    def _freeze_server(self) -> str:
        seconds = self._rng.uniform(0.2, 2) * LEASE_TTL_S
        self._system.server.signal(signal.SIGSTOP)
        time.sleep(seconds)
        self._system.server.signal(signal.SIGCONT)
        return f"for {seconds:.1f} s"

    def _step_clock(self) -> str:
        clock = self._system.server_clock
        if clock is None:
            return ""
        ahead_ms = self._rng.choice(_STEPS_MS)
        clock.step_to(ahead_ms)
        self._field.after(self._rng.uniform(1, 4), lambda: clock.step_to(0))
        return f"by {ahead_ms / 1000:g} s"

    def _restart(self, meanwhile: Callable[[], str]) -> str:
        self._field.end_all()
        return self._system.server.restart(meanwhile)

    def _copy(self) -> str:
        self._system.server.copy_data()
        return "from now on"

    def _flush_all(self) -> str:
        self._system.admin.flushall()
        return "everything"

    def _delete_key(self) -> str:
        found: list[bytes] = sorted(self._system.admin.scan_iter(count=1000))
        prefixes = sorted({key.rsplit(b":", 1)[0] for key in found})
        if not prefixes:
            return ""
        prefix = self._rng.choice(prefixes)
        key = self._rng.choice([key for key in found if key.rsplit(b":", 1)[0] == prefix])
        self._system.admin.delete(key)
        return key.decode(errors="backslashreplace")

    def _flush_scripts(self) -> str:
        self._system.admin.script_flush()
        return "all"

    def _rebuild(self) -> str:
        rebuild(self._system.admin)
        return "all"


def _insist(undo: Callable[[], object]) -> None:
    give_up = time.monotonic() + 10
    while True:
        try:
            undo()
        except RedisError:
            if time.monotonic() > give_up:
                raise
            time.sleep(0.1)
        else:
            return
