"""A running system for tests of hosts: what the pytest fixtures give (`app.pytest_plugin`)."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

import msgspec

from app.embedded import VOLATILE
from app.endpoint import USUAL_NOTE_BYTES, home_defaults
from app.system import System
from feedback.aio import AsyncFeedbackClient
from feedback.client import FeedbackClient
from feedback.settings import Settings
from persistence.session_log import LogWriter
from persistence.session_log.events import exchange


class WrittenSession(NamedTuple):
    """A Session that was written for a test: its id, and the ids of the answers that can be rated."""

    session_id: str
    answers: tuple[str, ...]


class RunningSystem:
    """A worker and a projector that serve, and a root to which Session logs can be written."""

    def __init__(self, settings: Settings, client: Callable[[], FeedbackClient]) -> None:
        self.settings = settings
        self.sessions = Path(settings.sessions)
        self._client = client

    @property
    def url(self) -> str:
        """The server's URL. Of the quick system, which has no server, it leads nowhere."""
        return self.settings.redis_url

    def client(self) -> FeedbackClient:
        """A new client; a context manager."""
        return self._client()

    def async_client(self) -> AsyncFeedbackClient:
        """A new client for asyncio; not of the quick system, which has no server."""
        return AsyncFeedbackClient.from_url(self.url)

    def write_session(
        self,
        *answers: str,
        session_id: str | None = None,
        cwd: str | None = "/home/test/project",
        created_at: int = 1_790_000_000_000,
    ) -> WrittenSession:
        """Write the log of a Session in which the assistant gave these answers (one, if none is said).

        Tests share a root: without `session_id` it gets one of its own.
        """
        session_id = session_id or f"session-{uuid4()}"
        ids = []
        with LogWriter(self.sessions, session_id, created_at=created_at, cwd=cwd) as log:
            for turn, answer in enumerate(answers or ("Here you are.",), start=1):
                ids.append(f"answer-{turn}")
                log.append(exchange(turn, "Please?", answer, user_id=f"question-{turn}", assistant_id=ids[-1]))
        return WrittenSession(session_id, tuple(ids))


def settings_in_home(home: Path, **more: object) -> Settings:
    """Settings of a system whose files all lie in `home`, with a root that is there."""
    usual = home_defaults(home)
    Path(str(usual["sessions"])).mkdir(parents=True)
    return msgspec.convert({"redis_url": "", "max_note_bytes": USUAL_NOTE_BYTES} | usual | more, Settings)


@contextmanager
def running_system(home: Path) -> Iterator[RunningSystem]:
    """An embedded server, a worker and a projector as processes of their own, until the block ends."""
    system = System(home, settings_in_home(home), server_options=VOLATILE)
    try:
        system.start()
        url = system.settings.redis_url
        yield RunningSystem(system.settings, lambda: FeedbackClient.from_url(url))
    finally:
        system.stop()
