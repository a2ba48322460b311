"""A process that competes for a partition: `python -m tests.conformance.racing_owner <url> <owner> <commits>`.

Each commit puts one item into the same Session, from what it loaded in the same transaction. An
owner that was fenced off raises the epoch again and goes on.
"""

import sys

from persistence.sidecar import SidecarStore, open_store
from persistence.sidecar.store import Change, PartitionsFenced, PutItem, StartSession
from tests.conformance.sidecar_engines import FIRST_LIFE, P0, item, record

SESSION = "contended"


def compete(store: SidecarStore, owner: str, commits: int) -> int:
    """Commit so many times; how often this owner was fenced off on the way."""
    fenced = done = 0
    while done < commits:
        fence = store.acquire_fences([P0], owner)[P0]
        sequence = fence.sequence
        try:
            # A few under one epoch, so that owners can make progress between takeovers.
            for _ in range(min(5, commits - done)):
                with store.transaction({P0: fence.epoch}) as transaction:
                    stored = transaction.load([], [(SESSION, "")]).sessions.get(SESSION)
                    revision = 1 if stored is None else stored.revision + 1
                    put = PutItem(SESSION, item(f"{owner} {done}"), revision)
                    changes: list[Change] = [StartSession(SESSION, FIRST_LIFE), put]
                    transaction.apply(changes, [record(sequence + 1, session_id=SESSION)], {})
                sequence += 1
                done += 1
        except PartitionsFenced:
            fenced += 1
    return fenced


if __name__ == "__main__":
    url, name, count = sys.argv[1:]
    opened = open_store(url)
    compete(opened, name, int(count))
    opened.close()
