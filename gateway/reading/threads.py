"""Where the page's reading is done: in threads of its own, for what reads logs for long must hold up no write."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from gateway.room import Room

P = ParamSpec("P")
T = TypeVar("T")

MOST_READINGS = 64
"""Readings that are under way or wait for a thread."""
MOST_READINGS_EACH = 16
THREADS = 8
"""Most of them wait for a disk, or for a look at the logs that another one began."""


class ReadingThreads:
    """Runs readings, as long as there is room for them. For one event loop."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(THREADS, "reading")
        self._room = Room(MOST_READINGS, MOST_READINGS_EACH)

    async def run(self, bearer: str | None, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What `function` returns.

        Raises:
            Refused: too many are under way, in all or for this bearer.
        """
        place = self._room.take(bearer)
        reading = asyncio.get_running_loop().run_in_executor(self._threads, lambda: function(*args, **kwargs))
        # A thread that works for nobody any more still takes its place.
        reading.add_done_callback(lambda _: place.leave())
        return await asyncio.shield(reading)

    def close(self) -> None:
        """Nothing more is begun; what is under way ends by itself."""
        self._threads.shutdown(wait=False, cancel_futures=True)
