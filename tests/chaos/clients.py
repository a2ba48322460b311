"""Clients of the campaign: threads that rate, change, remove, repeat and read, and note what they hear."""

import functools
import random
import threading
from collections.abc import Callable
from time import monotonic
from uuid import UUID

from feedback import Delete, FeedbackClient, Put, Ticket
from feedback.calls import wall_clock_ms
from feedback.model import Item
from feedback.results import ItemList, Ok, Rejected, Result, VersionConflict
from persistence.session_log import SessionLogs
from tests.chaos.history import Call, Heard, History, Mutation, Reading, listen

TIMEOUT_S = 4.0
MESSAGES = ("m1", "m2", "m3")
_NOTES = (None, None, "short", "ünï", "x" * 8192, "é" * 4096, "y" * 8193, " ")


class Client(threading.Thread):
    """One caller on a connection of its own, until `stop` is set; its seed and its answers say what it does."""

    def __init__(
        self,
        url: str,
        sessions: tuple[str, ...],
        seed: int,
        history: History,
        stop: threading.Event,
        *,
        logs: SessionLogs,
    ) -> None:
        super().__init__(name=f"client-{seed}", daemon=True)
        self._url = url
        self._logs = logs
        self._sessions = sessions
        self._rng = random.Random(seed)
        self._history = history
        self._stopping = stop
        self._known: dict[tuple[str, str], str | None] = {}
        self._sent: list[Mutation] = []
        self._revisions: dict[str, int] = {}

    def run(self) -> None:
        with (
            FeedbackClient.from_url(self._url) as client,
            FeedbackClient.from_url(self._url, logs=self._logs) as seeing,
        ):
            while not self._stopping.is_set():
                kind = self._rng.choices(("mutate", "burst", "again", "read"), (60, 10, 10, 20))[0]
                # Lists come by both ways: through the projector, and from the cache by who sees the log root.
                getattr(self, f"_{kind}")(seeing if kind == "read" and self._rng.random() < 0.5 else client)

    def _mutate(self, client: FeedbackClient) -> None:
        request = self._request()
        self._call(request, lambda: client.submit(request, timeout=TIMEOUT_S).result(TIMEOUT_S))

    def _burst(self, client: FeedbackClient) -> None:
        """Many at once, in order; their answers one after the other."""
        requests = [self._request() for _ in range(self._rng.randrange(2, 24))]
        tickets: list[Ticket] = []

        def submit() -> Result:
            tickets.extend(client.submit_many(requests, timeout=TIMEOUT_S))
            return Ok(value=ItemList(items=()))

        began = listen(submit)
        if began.failure is not None:
            # Some may be on their way all the same.
            self._history.calls += [Call(request, began) for request in requests]
            return
        give_up = began.ended + TIMEOUT_S
        for request, ticket in zip(requests, tickets, strict=True):
            patience = max(0.01, give_up - monotonic())
            heard = listen(functools.partial(ticket.result, patience))
            self._note(request, Heard(began.began, heard.ended, heard.result, heard.failure))

    def _again(self, client: FeedbackClient) -> None:
        """A command sent before: by id, again, or (a mistake) its id with another payload."""
        if not self._sent:
            return
        request = self._rng.choice(self._sent[-200:])
        command_id = str(request.command_id)
        how = self._rng.random()
        if how < 0.4:
            self._call(request, lambda: client.result_of(command_id, timeout=TIMEOUT_S))
        elif how < 0.9:
            self._call(request, lambda: client.submit(request, timeout=TIMEOUT_S).result(TIMEOUT_S))
        elif any(call.command_id == command_id and _is_recorded(call.heard) for call in self._history.calls):
            other = Put(request.session_id, "m3", "negative", "another payload", None, command_id=command_id)
            heard = listen(lambda: client.submit(other, timeout=TIMEOUT_S).result(TIMEOUT_S))
            # Refused; or, where the server has lost the job and kept its answer, told what came of the first payload.
            self._history.calls.append(Call(other, heard))

    def _read(self, client: FeedbackClient) -> None:
        session_id = self._rng.choice(self._sessions)
        at_least = self._revisions.get(session_id) if self._rng.random() < 0.5 else None
        heard = listen(lambda: client.list(session_id, at_least=at_least, timeout=TIMEOUT_S))
        self._history.readings.append(Reading(session_id, at_least, heard))
        if isinstance(heard.result, Ok) and isinstance(heard.result.value, ItemList):
            items = {item.message_id: item.version for item in heard.result.value.items}
            self._known |= {(session_id, message_id): items.get(message_id) for message_id in MESSAGES}

    def _request(self) -> Mutation:
        rng = self._rng
        session_id, message_id = rng.choice(self._sessions), rng.choice(MESSAGES)
        version = (
            self._known.get((session_id, message_id)) if rng.random() < 0.9 else str(UUID(int=rng.getrandbits(128)))
        )
        expires_at = wall_clock_ms() + rng.choice((-1, 5, 50, 500)) if rng.random() < 0.05 else None
        command_id = str(UUID(int=rng.getrandbits(128), version=4))
        request: Mutation
        if rng.random() < 0.3:
            request = Delete(session_id, message_id, version, command_id=command_id, expires_at=expires_at)
        else:
            rating = rng.choice(("positive", "negative"))
            request = Put(
                session_id,
                message_id,
                "positive" if rating == "positive" else "negative",
                rng.choice(_NOTES),
                version,
                command_id=command_id,
                expires_at=expires_at,
            )
        self._sent.append(request)
        return request

    def _call(self, request: Mutation, ask: Callable[[], Result]) -> None:
        self._note(request, listen(ask))

    def _note(self, request: Mutation, heard: Heard) -> None:
        self._history.calls.append(Call(request, heard))
        place = request.session_id, request.message_id
        match heard.result:
            case Ok(value=Item(version=version)):
                self._known[place] = version
            case Ok():
                self._known[place] = None
            case Rejected(error=VersionConflict(current=current)):
                self._known[place] = None if current is None else current.version
        if heard.result is not None and heard.result.revision is not None:
            before = self._revisions.get(request.session_id, 0)
            self._revisions[request.session_id] = max(before, heard.result.revision)


def _is_recorded(heard: Heard) -> bool:
    """A worker answered. A note refused at the boundary left no trace of its command's id."""
    return heard.result is not None and heard.result.revision is not None
