"""What a projector tells about its work, to whoever measures it (`projections.metrics`)."""

from collections.abc import Iterable

from feedback.events import Event


class Meter:
    """Measures nothing: what a projector has whose metrics are off. Called a few times a round, never per event."""

    def turn(self, loop: str) -> None:
        """The follower or the responder begins a turn."""

    def follows(self, does: bool) -> None:
        """Whether this projector follows the events, or another one does."""

    def projected(self, outcomes: int, events: Iterable[Event] = ()) -> None:
        """So many outcomes are in the lists now; of these there were events."""

    def began_anew(self) -> None:
        """All cached lists are to be made anew."""

    def took(self, queries: int) -> None:
        """So many queries were taken to be answered."""

    def dropped(self, reason: str, count: int) -> None:
        """So many queries are not answered (`feedback.dropped`)."""

    def looked_up(self, *, memory: int = 0, cache: int = 0, store: int = 0) -> None:
        """So many lists came from each of these places."""
