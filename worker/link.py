"""One connection to the server, on which commands may be on their way while something else is done."""

from collections.abc import Sequence
from typing import Any, TypeAlias

from hiredis import pack_command
from redis import Connection, Redis
from redis.exceptions import ResponseError

Request: TypeAlias = tuple[Any, ...]
"""A command's name and arguments."""


class Link:
    """Used by one thread at a time. Connects when something is sent, again after it broke; nothing is sent twice.

    Answers come in the order of the commands, as the server spells them.
    """

    def __init__(self, redis: Redis, *, greeting: Sequence[Request] = ()) -> None:
        """A connection of this client's pool, from the first `send` until `close`.

        `greeting` is sent, and answered, whenever it connects anew.
        """
        self._pool = redis.connection_pool
        self._greeting = greeting
        self._connection: Connection | None = None
        self._is_greeted = False
        self.awaited = 0
        """Answers that are still to be received."""

    def send(self, *requests: Request) -> None:
        """Send commands behind each other, in one go.

        Raises:
            RedisError: the connection broke; whether they will be executed is unknown, and nothing is awaited.
        """
        try:
            connection = self._ready()
            # Not redis-py's own packing, which looks at each argument several times.
            connection.send_packed_command((b"".join(map(pack_command, requests)),))
        except BaseException:
            self.reset()
            raise
        self.awaited += len(requests)

    def receive(self) -> Any:
        """The answer to the earliest command that was not answered yet.

        Raises:
            RedisError: what the server answered; or the connection broke, and nothing is awaited any more.
        """
        connection = self._connection
        if connection is None or not self.awaited:
            raise RuntimeError("nothing was sent")
        self.awaited -= 1
        try:
            return connection.read_response()
        except ResponseError:
            raise
        except BaseException:
            self.reset()
            raise

    def reset(self) -> None:
        """Break off: what is on its way may still be executed, its answers are lost."""
        self.awaited = 0
        if self._connection is not None:
            self._connection.disconnect()

    def close(self) -> None:
        """Break off, and give the connection back."""
        self.reset()
        connection, self._connection = self._connection, None
        if connection is not None:
            self._pool.release(connection)

    def _ready(self) -> Connection:
        """The connection, connected and greeted."""
        connection = self._connection
        if connection is None:
            connection = self._connection = self._pool.get_connection()
            self._is_greeted = False
        if not connection.is_connected:
            connection.connect()
            self._is_greeted = False
        if not self._is_greeted:
            for request in self._greeting:
                connection.send_command(*request)
                connection.read_response()
            self._is_greeted = True
        return connection
