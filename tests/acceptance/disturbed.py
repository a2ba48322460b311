"""A small system with a fixed workload, to be disturbed at one place of the code and looked at afterwards.

Everything that a command can come to is in the workload, over three partitions: puts, deletes, a no-op, conflicts, a
missing target, a missing Session, ids that are delivered twice, and a Session that is parked until its owner flushes.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TypeAlias

from redis import Redis

from app.processes import Child
from feedback import Delete, FeedbackClient, Item, LiveSessions, Ok, Put, Rejected, SessionIdentity, Ticket, keys
from feedback.crashpoints import VARIABLE
from feedback.requests import Request
from feedback.results import Result
from feedback.settings import Settings
from persistence.session_log import LogWriter
from persistence.session_log.events import exchange
from persistence.sidecar import open_store
from projections.cache import ListCache
from tests.harness import CREATED_AT, serving, settings_for, wait_until, write_session
from tests.integration.rating import item_of, items_of
from tests.integration.rq_jobs import partition_of
from tests.outcomes import assert_sound, is_idle
from tests.processes import child

SESSIONS = ("a", "b", "g")
"""One in each partition."""
LIVE = "live"
EVERYONE = (*SESSIONS, LIVE)

Told: TypeAlias = tuple[object, ...]
"""What a caller learns, without what differs from run to run (versions, times)."""


def told(result: Result) -> Told:
    match result:
        case Ok(value=Item() as item):
            return (result.revision, item.message_id, item.rating, item.note)
        case Ok(value=value):
            return (result.revision, value)
        case Rejected(error=error):
            current = getattr(error, "current", None)
            return (result.revision, type(error), current and (current.message_id, current.rating, current.note))


class LiveOwner:
    """Holds the Session "live" open, and cannot flush it before it is allowed to: until then the Session is parked."""

    def __init__(self, log: LogWriter) -> None:
        self._log = log
        self.allowed = False

    def flush(self) -> int:
        if not self.allowed:
            raise OSError("not yet")
        if self._log.next_seq == 0:
            self._log.append(exchange(1, "Please?", "Here.", user_id="u1", assistant_id="m1"))
        return self._log.next_seq


class Disturbed:
    """The system. Its processes are started by the test."""

    def __init__(self, settings: Settings, redis: Redis, client: FeedbackClient, owner: LiveOwner, home: Path) -> None:
        self.settings = settings
        self.redis = redis
        self.owner = owner
        self.home = home
        self._client = client
        self._seeded: list[str] = []
        self._tickets: list[Ticket] = []
        self._rounds_left = _ROUNDS

    def seed(self) -> Mapping[str, str]:
        """One item a Session, put by an undisturbed worker; their versions."""
        with serving(self.settings, projector=False):
            tickets = self._client.submit_many(Put(session_id, "m1", "positive") for session_id in SESSIONS)
            self._seeded = [ticket.command_id for ticket in tickets]
            return {name: item_of(one.result()).version for name, one in zip(SESSIONS, tickets, strict=True)}

    def submit(self, versions: Mapping[str, str]) -> None:
        """The workload; three of its commands lie on their queues twice."""
        requests: list[Request] = [
            Put("a", "m1", "negative", "worse", if_version=versions["a"]),
            Put("a", "m2", "positive", " kept to the letter "),
            Put("a", "m2", "negative"),
            Delete("a", "m1", if_version=versions["a"]),
            Put("a", "no-such-message", "positive"),
            Delete("b", "m1", if_version=versions["b"]),
            Put("b", "m1", "negative"),
            Delete("b", "m2"),
            Put("g", "m1", "positive", if_version=versions["g"]),
            Put("g", "m2", "positive"),
            Put(LIVE, "m1", "positive"),
            Put(LIVE, "m1", "negative"),
            Put("nowhere", "m1", "positive"),
        ]
        tickets = self._client.submit_many(requests)
        self._tickets += tickets
        for place in (0, 5, 10):
            partition = partition_of(self.settings, requests[place].session_id)
            self.redis.rpush(keys.queue(partition), tickets[place].command_id)

    def submit_more(self) -> None:
        """One more conflict a Session: of the rounds that every run has, one that comes now."""
        self._rounds_left -= 1
        assert self._rounds_left >= 0
        self._tickets += self._client.submit_many(
            Put(session_id, "m1", "negative", if_version="stale") for session_id in SESSIONS
        )

    def start(self, name: str, crash_point: str = "", *, url: str | None = None) -> Child:
        """A process that is to be disturbed."""
        settings = self.settings if url is None else settings_for(url, self.home, **_SETTINGS)
        return child(name, settings, self.home, {VARIABLE: crash_point})

    def is_worked_off(self) -> bool:
        """Whether everything is answered but what is parked."""
        everyone_else = [ticket.command_id for place, ticket in enumerate(self._tickets) if place not in {10, 11}]
        return self.redis.exists(*map(keys.results, everyone_else)) == len(everyone_else)

    def owners(self) -> set[bytes]:
        """The workers that partitions point at."""
        owners: list[bytes] = self.redis.hvals(keys.owners(1))  # type: ignore[assignment]  # redis-py types both its clients as one
        return set(owners)

    def finish(self) -> list[Told]:
        """Let the owner flush, wait until all is done, check what must hold, and give what the callers were told."""
        while self._rounds_left:
            self.submit_more()
        self.owner.allowed = True
        wait_until(lambda: is_idle(self.redis, self.settings), "everything is finished")
        results = [ticket.result() for ticket in self._tickets]
        command_ids = [ticket.command_id for ticket in self._tickets]
        assert_sound(self.redis, self.settings, [*self._seeded, *command_ids])
        for command_id in command_ids:
            entries: Sequence[tuple[bytes, dict[bytes, bytes]]] = self.redis.xrange(keys.results(command_id))  # type: ignore[assignment]  # as above
            assert len({fields[b"return_value"] for _, fields in entries}) == 1, "a copy was answered differently"
        self._check_lists()
        return [told(result) for result in results]

    def _check_lists(self) -> None:
        """The lists that the projector answers with, and what it then has cached, equal the store."""
        cache = ListCache(self.redis)
        with closing(open_store(self.settings.sidecar_url)) as store:
            for session_id in EVERYONE:
                stored = store.feedback(session_id)
                assert stored is not None
                assert items_of(self._client.list(session_id, at_least=stored.revision)) == stored.items
                view = cache.read([session_id]).views[session_id]
                assert (view.revision, view.items) == (stored.revision, stored.items)
            assert store.health().findings == ()


_ROUNDS = 3
_SETTINGS = {"partitions": 3, "lease_ttl": 1.0, "max_attempts": 1000, "event_retention": 1_000_000}


@contextmanager
def disturbed(url: str, redis: Redis, home: Path) -> Iterator[Disturbed]:
    """A system whose server is empty, with Sessions that were rated before."""
    settings = settings_for(url, home, **_SETTINGS)
    for session_id in SESSIONS:
        write_session(settings, session_id, "m1", "m2")
    with (
        LogWriter(Path(settings.sessions), LIVE, created_at=CREATED_AT, cwd="/w") as log,
        LiveSessions.from_url(url) as live,
        FeedbackClient.from_url(url) as client,
    ):
        owner = LiveOwner(log)
        with live.register(LIVE, SessionIdentity(created_at=CREATED_AT, cwd="/w"), owner.flush):
            system = Disturbed(settings, redis, client, owner, home)
            system.submit(system.seed())
            yield system
