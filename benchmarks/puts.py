"""Puts for the benchmarks: which message next, and under which version."""

from collections.abc import Iterator, Sequence
from itertools import cycle, islice
from typing import Literal

from feedback import FeedbackClient, Item, Ok, Put, Rating, Rejected

Kind = Literal["create", "conflict", "no-op"]


class Rater:
    """Rates messages one after the other and waits for each answer; what it has rated it rates the other way."""

    def __init__(self, client: FeedbackClient, targets: Sequence[tuple[str, str]]) -> None:
        self._client = client
        self._targets = cycle(targets)
        self._items: dict[tuple[str, str], Item] = {}

    def __call__(self) -> None:
        """One put that changes something, from the call to its result."""
        target = next(self._targets)
        known = self._items.get(target)
        rating: Rating = "negative" if known is not None and known.rating == "positive" else "positive"
        result = self._client.put(*target, rating, if_version=known.version if known else None)
        assert isinstance(result, Ok), result
        assert isinstance(result.value, Item), result
        self._items[target] = result.value

    def refuse(self) -> None:
        """One put that meets a conflict."""
        result = self._client.put(*next(self._targets), "positive", if_version="stale")
        assert isinstance(result, Rejected), result

    def keep(self) -> None:
        """One put of what is stored already."""
        target = next(self._targets)
        known = self._items[target]
        result = self._client.put(*target, known.rating, if_version=known.version)
        assert isinstance(result, Ok), result
        assert result.value == known, result


class Load:
    """Puts by the thousand, each on a message of its own, one Session after the other."""

    def __init__(self, sessions: Sequence[str], messages: Sequence[str]) -> None:
        self._targets = ((session, message) for message in messages for session in sessions)

    def take(self, number: int, if_version: str | None = None) -> list[Put]:
        """The next puts. Raises ValueError when there are not so many messages left."""
        puts = [Put(*target, "positive", None, if_version) for target in islice(self._targets, number)]
        if len(puts) < number:
            raise ValueError("the benchmark has run out of messages")
        return puts


def chunks(puts: Sequence[Put], size: int) -> Iterator[Sequence[Put]]:
    for start in range(0, len(puts), size):
        yield puts[start : start + size]


def submit(client: FeedbackClient, puts: Sequence[Put], size: int = 500) -> None:
    """Enqueue puts without waiting for their answers."""
    for chunk in chunks(puts, size):
        client.submit_many(chunk)
