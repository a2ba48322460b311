"""A host process for tests: holds Sessions open until it is killed. Arguments: URL, TTL, Session ids.

Prints its owner id when they are registered, and a line for each flush.
"""

import sys
import threading

from feedback import LiveSessions
from tests.integration.live_hosts import LIFE


def main(url: str, ttl: str, *session_ids: str) -> None:
    live = LiveSessions.from_url(url, ttl=float(ttl))
    for session_id in session_ids:
        live.register(session_id, LIFE, lambda: print("flushed", flush=True))
    print(live.owner_id, flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
