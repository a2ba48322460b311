"""A system of real processes under load, whose disks fail and come back; what must hold before, meanwhile and after.

The load: one client puts on every message of every Session, round after round (the first round writes, the later ones
meet a conflict), another one lists; both go on through all that happens.
"""

import json
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from itertools import cycle
from pathlib import Path

from redis import Redis

from app.processes import Child
from feedback import FeedbackClient, FeedbackError, Item, Ok, Put, Ticket
from feedback.settings import Settings
from feedback.troubles import Trouble, read_troubles
from persistence.session_log import LogWriter
from persistence.session_log.events import exchange
from persistence.sidecar import open_store
from tests.acceptance.command_line import feedback
from tests.harness import CREATED_AT, wait_until, write_session
from tests.integration.rating import items_of
from tests.outcomes import assert_sound
from tests.processes import child

SICK = "sick"
"""The Session whose log fails, where one does."""
SESSIONS = ("a", "b", "c", SICK)
MESSAGES = tuple(f"m{number}" for number in range(60))


class Ailing:
    """The system while its load runs."""

    def __init__(self, redis: Redis, settings: Settings, client: FeedbackClient, running: Mapping[str, Child]) -> None:
        self.redis = redis
        self.settings = settings
        self.client = client
        self.running = running
        self._stop = threading.Event()
        self._load: list[Future[None]] = []
        self.tickets: dict[str, list[Ticket]] = defaultdict(list)

    def start(self, threads: ThreadPoolExecutor) -> None:
        """Begin the load, and wait until it is being served."""
        self._load = [threads.submit(self._put), threads.submit(self._list)]
        self.serves(*SESSIONS)

    def stop(self) -> None:
        """End the load."""
        self._stop.set()
        for part in self._load:
            part.result()

    def grow(self, session_id: str) -> None:
        """Append to a Session's log, as its host does: what was known of it is not enough any more."""
        with LogWriter(Path(self.settings.sessions), session_id, created_at=CREATED_AT, cwd="/w") as log:
            log.append(exchange(len(MESSAGES) + 1, "More?", "Yes.", user_id="u", assistant_id="more"))

    def serves(self, *session_ids: str) -> None:
        """What is sent to these Sessions from now on is answered."""
        for session_id in session_ids:
            sent = len(self.tickets[session_id])
            wait_until(lambda s=session_id, n=sent: len(self.tickets[s]) > n, "more is sent")  # type: ignore[misc]  # mypy cannot infer a lambda with a default
            self.tickets[session_id][sent].result(timeout=30)

    def troubles(self, process: str) -> list[Trouble]:
        """What workers, or projectors, say that they have now."""
        found = read_troubles(self.redis)
        return [trouble for reporter, trouble in found.items() if reporter.startswith(process)]

    def is_in_trouble(self, codes: str, words: str, processes: str = "worker") -> None:
        """Wait until these processes say so, by one of the codes, and it is in what an operator sees."""
        for process in processes.split():
            wait_until(
                lambda p=process: any(one.code in codes.split() and words in one.message for one in self.troubles(p)),  # type: ignore[misc]  # as above
                f"the {process} says {codes}: {words}",
            )
        env = {"FEEDBACK_REDIS_URL": self.settings.redis_url, "FEEDBACK_SIDECAR_URL": self.settings.sidecar_url}

        def is_shown() -> bool:
            shown = json.loads(feedback("status", "--json", env=env).out)["troubles"]
            return any(one["code"] in codes.split() and words in one["message"] for one in shown)

        # A trouble may change its form while it lasts.
        wait_until(is_shown, "status shows it to programs")
        wait_until(lambda: words in feedback("status", env=env).out, "status shows it to people")

    def heals(self) -> None:
        """Wait until nobody has trouble any more, every command is answered, and nothing is lost or done twice."""
        self.serves(*SESSIONS)
        wait_until(lambda: not read_troubles(self.redis), "nobody has trouble")
        self.stop()
        answers = {s: [ticket.result(timeout=30) for ticket in tickets] for s, tickets in self.tickets.items()}
        assert all(process.poll() is None for process in self.running.values()), "nothing had to be started anew"
        command_ids = [ticket.command_id for tickets in self.tickets.values() for ticket in tickets]
        assert_sound(self.redis, self.settings, command_ids)
        with closing(open_store(self.settings.sidecar_url)) as store:
            assert store.health().findings == ()
            for session_id, results in answers.items():
                stored = store.feedback(session_id)
                assert stored is not None
                told = [one.value for one in results if isinstance(one, Ok) and isinstance(one.value, Item)]
                assert sorted(told, key=_by_id) == sorted(stored.items, key=_by_id), "what was told is what is kept"
                assert items_of(self.client.list(session_id, at_least=stored.revision)) == stored.items

    def _put(self) -> None:
        for message_id in cycle(MESSAGES):
            if self._stop.wait(0.02):
                return
            for ticket, session_id in zip(
                self.client.submit_many(Put(session_id, message_id, "positive") for session_id in SESSIONS),
                SESSIONS,
                strict=True,
            ):
                self.tickets[session_id].append(ticket)

    def _list(self) -> None:
        """Lists that can be had never go back; others are refused, and never wrong."""
        seen = dict.fromkeys(SESSIONS, 0)
        for session_id in cycle(SESSIONS):
            if self._stop.wait(0.01):
                return
            try:
                listed = self.client.list(session_id, timeout=1)
            except FeedbackError:
                continue
            assert listed.ok, "every Session exists all the time"
            assert listed.revision is not None
            assert listed.revision >= seen[session_id]
            seen[session_id] = listed.revision


def _by_id(item: Item) -> str:
    return item.message_id


@contextmanager
def ailing(redis: Redis, settings: Settings, logs: Path, variables: Mapping[str, str]) -> Iterator[Ailing]:
    """A worker and a projector that see the disk through `variables`, under load until the block ends."""
    for session_id in SESSIONS:
        write_session(settings, session_id, *MESSAGES)
    running: dict[str, Child] = {}
    with FeedbackClient.from_url(settings.redis_url) as client, ThreadPoolExecutor(2) as threads:
        try:
            # The worker first: it makes the store.
            running["worker"] = child("worker", settings, logs, variables)
            running["projector"] = child("projector", settings, logs, variables)
            system = Ailing(redis, settings, client, running)
            client.list("nobody", timeout=30)
            system.start(threads)
            try:
                yield system
            finally:
                system.stop()
        finally:
            for process in running.values():
                process.stop(settings.shutdown_grace)
