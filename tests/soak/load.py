"""Load that a deployment could have, at a steady rate, which comes to rest nowhere: all that is kept has its end.

Puts, conflicts, deletes, lists, bursts and repetitions on a fixed number of Sessions; commands that fail and that have
expired; a host that opens and closes Sessions, and flushes them.
"""

import contextlib
import random
import threading
import time
from pathlib import Path
from uuid import UUID

from feedback import Delete, FeedbackClient, LiveSessions, Put, SessionIdentity
from feedback.calls import wall_clock_ms
from feedback.errors import FeedbackError
from feedback.requests import Request
from feedback.settings import Settings
from tests.harness import CREATED_AT, write_session

SESSIONS = tuple(f"session-{number}" for number in range(200))
BROKEN = "broken"
"""Its log is corrupt: commands about it fail, and are forgotten after `failure_ttl`."""
LIVE = tuple(f"live-{number}" for number in range(8))
_MESSAGES = ("m1", "m2", "m3")
_CLIENTS = 3
_TIMEOUT_S = 10.0


def write_logs(settings: Settings) -> None:
    """All Sessions of the load."""
    for session_id in (*SESSIONS, *LIVE, BROKEN):
        write_session(settings, session_id, *_MESSAGES)
    for log in Path(settings.sessions).glob(f"*/{BROKEN}/session*"):
        log.write_bytes(log.read_bytes()[:20] + bytes(8) + log.read_bytes()[28:])


class Load:
    """Clients and a host as threads, until `close`."""

    def __init__(self, settings: Settings, rate: float) -> None:
        """`rate`: commands a second altogether."""
        self.commands = 0
        """Done so far: answered, or failed."""
        self._settings = settings
        self._interval_s = _CLIENTS / rate
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._call, args=(seed,), daemon=True) for seed in range(_CLIENTS)]
        self._threads.append(threading.Thread(target=self._open_and_close, daemon=True))
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """End the load."""
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _call(self, seed: int) -> None:
        rng = random.Random(seed)
        due = time.monotonic()
        with FeedbackClient.from_url(self._settings.redis_url) as client:
            while not self._stop.wait(max(0.0, due - time.monotonic())):
                requests = [_request(rng) for _ in range(rng.choice((1, 1, 1, 8)))]
                if rng.random() < 0.05:
                    requests.append(requests[0])
                with contextlib.suppress(FeedbackError):
                    for ticket in client.submit_many(requests, timeout=_TIMEOUT_S):
                        with contextlib.suppress(FeedbackError):
                            ticket.result(_TIMEOUT_S)
                    if rng.random() < 0.3:
                        client.list(requests[0].session_id, timeout=_TIMEOUT_S)
                with self._lock:
                    self.commands += len(requests)
                due = max(due, time.monotonic() - 1) + self._interval_s * len(requests)

    def _open_and_close(self) -> None:
        rng = random.Random(_CLIENTS)
        identity = SessionIdentity(created_at=CREATED_AT, cwd="/w")
        with LiveSessions.from_url(self._settings.redis_url) as live:
            while not self._stop.wait(0.2):
                with contextlib.suppress(FeedbackError), live.register(rng.choice(LIVE), identity, lambda: None):
                    self._stop.wait(0.2)


def _request(rng: random.Random) -> Request:
    session_id = rng.choice((*SESSIONS, *LIVE, *LIVE, BROKEN))
    message_id, command_id = rng.choice(_MESSAGES), str(UUID(int=rng.getrandbits(128), version=4))
    expires_at = wall_clock_ms() - 1 if rng.random() < 0.02 else None
    if rng.random() < 0.5:
        # Without knowing the version: what is there conflicts, what is not is made.
        note = "x" * rng.choice((0, 10, 1000)) or None
        return Put(session_id, message_id, "positive", note, command_id=command_id, expires_at=expires_at)
    return Delete(session_id, message_id, None, command_id=command_id, expires_at=expires_at)
