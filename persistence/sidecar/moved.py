"""A store that was moved, or that is the unfinished copy of another, serves nobody."""

from collections.abc import Iterable

from feedback.errors import StoreMoved

_NAME = "name that one by --sidecar-url or FEEDBACK_SIDECAR_URL"
_FINISH = "run the same `feedback migrate` again to finish it, or with --abandon to give it up"


def refuse_moved(location: str, transfers: Iterable[tuple[str, str, bool]]) -> None:
    """Refuse a store by its marks: (its role in a transfer, the other store's location, whether that is finished).

    Raises:
        StoreMoved: naming the other store, and what to do.
    """
    for role, peer, finished in transfers:
        if role == "source":
            moved = f"was moved to {peer}; {_NAME}" if finished else f"is being moved to {peer}; {_FINISH}"
            raise StoreMoved(f"sidecar store {location}: {moved}")
        if not finished:
            raise StoreMoved(f"sidecar store {location}: an unfinished copy of {peer}; {_FINISH}")
