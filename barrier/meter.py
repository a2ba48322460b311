"""What an agent tells about its work, to whoever measures it (`barrier.metrics`)."""

from barrier.rules import DurabilityBarrier


class Meter:
    """Measures nothing: what an agent has whose metrics are off. Called a few times a round, never per message."""

    def turn(self, *, serves: bool) -> None:
        """The agent begins a turn, as the one of its host or as a standby."""

    def interrupted(self) -> None:
        """The server is in the way of everything."""

    def dropped(self, reason: str, count: int) -> None:
        """So many requests, or questions, are not answered (`feedback.dropped`)."""

    def timed_barrier(self, barrier: DurabilityBarrier) -> DurabilityBarrier:
        """The barrier to use in place of this one."""
        return barrier
