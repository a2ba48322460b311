"""A host process of the tests: holds one Session open, and stops or dies at a named step of its flush.

`python -m tests.hosts URL ROOT SESSION STEP SIGNAL TTL`: STEP is `before` (asked, nothing written), `written` (the
message is on disk, the owner has not said so) or `never`; SIGNAL is the one that it sends itself there. It prints
`ready` once the Session is registered, and ends when its standard input does.
"""

import os
import signal
import sys
from pathlib import Path

from feedback import LiveSessions, SessionIdentity
from persistence.session_log import LogWriter
from persistence.session_log.events import exchange
from tests.harness import CREATED_AT


def main(arguments: list[str]) -> None:
    url, root, session_id, step, signal_name, ttl = arguments
    identity = SessionIdentity(created_at=CREATED_AT, cwd="/w")
    number = signal.Signals[signal_name]
    with (
        LogWriter(Path(root), session_id, created_at=CREATED_AT, cwd="/w") as log,
        LiveSessions.from_url(url, ttl=float(ttl)) as live,
    ):

        def flush() -> int:
            if step == "before":
                os.kill(os.getpid(), number)
            log.append(exchange(1, "Please?", "Here.", user_id="u1", assistant_id="m1"))
            if step == "written":
                os.kill(os.getpid(), number)
            return log.next_seq

        with live.register(session_id, identity, flush):
            print("ready", flush=True)
            sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1:])
