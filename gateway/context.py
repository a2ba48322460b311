"""What the routes share: settings, the client, logs, a connection to the server, guard, live events, the library."""

import asyncio
from collections.abc import Callable
from pathlib import Path

from feedback.aio import AsyncFeedbackClient
from feedback.calls import wall_clock_ms
from feedback.connection import connect_async
from feedback.settings import Settings
from gateway.access.authentication import authenticator_for
from gateway.guard import Guard
from gateway.live.hub import EventHub
from gateway.reading.library import Library
from gateway.reading.threads import ReadingThreads
from gateway.room import Room
from persistence.session_log import SessionLogs

MOST_LISTENERS = 1000
"""Streams of events that are open."""
MOST_LISTENERS_EACH = 100


class Gateway:
    """One gateway process. For one event loop."""

    def __init__(self, settings: Settings, *, clock_ms: Callable[[], int] = wall_clock_ms) -> None:
        """Nothing is sent yet. Deadlines of commands are counted from `clock_ms`.

        Raises:
            SettingsInvalid: a setting of the gateway is malformed, or everybody could use it from elsewhere.
            QueueUnavailable: `redis_url` is no URL.
        """
        self.settings = settings
        self.guard = Guard(settings, authenticator_for(settings))
        self.redis = connect_async(settings.redis_url)
        self.logs = SessionLogs(Path(settings.sessions), index_bytes=settings.index_bytes)
        # Whoever sees the logs reads cached lists without asking the projector.
        logs = self.logs if self.logs.root.is_dir() else None
        self.client = AsyncFeedbackClient(self.redis, logs=logs, host=settings.host or None, clock_ms=clock_ms)
        self.hub = EventHub(self.redis)
        self.listeners = Room(MOST_LISTENERS, MOST_LISTENERS_EACH)
        self.library = Library(settings, self.logs)
        self.reading = ReadingThreads()
        self.is_draining = False

    def drain(self) -> None:
        """No longer ready; streams of events end, requests that are under way go on. Repeatable."""
        self.is_draining = True
        self.hub.close()

    async def close(self) -> None:
        """Release the connections."""
        self.drain()
        self.reading.close()
        await asyncio.to_thread(self.library.close)
        await self.client.close()
        await self.redis.aclose()
