"""How much goes on at once in this process: in all, and for one bearer. Whoever finds no room comes back later."""

from collections import Counter
from http import HTTPStatus
from types import TracebackType

from gateway.web.problems import RETRY_AFTER_S, Refused, refused


class Room:
    """Holds up to `most` places, and up to `each` for one bearer. For one thread."""

    def __init__(self, most: int, each: int) -> None:
        self._most = most
        self._each = each
        self._taken = 0
        self._of_bearer = Counter[str]()

    def take(self, bearer: str | None) -> "Place":
        """A place, which must be left again. `bearer` None: nobody has to say who they are, so nobody is told apart.

        Raises:
            Refused: 429, this bearer has its share already; 503, there is none left.
        """
        if bearer is not None and self._of_bearer[bearer] >= self._each:
            raise _come_back(HTTPStatus.TOO_MANY_REQUESTS, "too-many-at-once", "This token has too many under way.")
        if self._taken >= self._most:
            raise _come_back(HTTPStatus.SERVICE_UNAVAILABLE, "busy", "Too many are under way. Try again later.")
        self._taken += 1
        if bearer is not None:
            self._of_bearer[bearer] += 1
        return Place(self, bearer)

    def leave(self, bearer: str | None) -> None:
        """For `Place`: one is free again."""
        self._taken -= 1
        if bearer is not None:
            self._of_bearer[bearer] -= 1
            if not self._of_bearer[bearer]:
                del self._of_bearer[bearer]


class Place:
    """A place in a room, until it is left; also as a context."""

    def __init__(self, room: Room, bearer: str | None) -> None:
        self._room: Room | None = room
        self._bearer = bearer

    def leave(self) -> None:
        """Repeatable."""
        if self._room is not None:
            room, self._room = self._room, None
            room.leave(self._bearer)

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.leave()


def _come_back(status: HTTPStatus, code: str, sentence: str) -> Refused:
    return refused(status, code, sentence, Retry_After=str(RETRY_AFTER_S))
