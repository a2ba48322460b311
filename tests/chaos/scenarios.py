"""The shortest histories that show what each broken worker lacks: what a campaign meets by chance, placed by hand.

They have a campaign's system and its check.
"""

import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from random import Random
from time import monotonic
from uuid import uuid4

from feedback import FeedbackClient, Put, keys
from feedback.crashpoints import Action, CrashPoint
from feedback.events import Event, decode_event
from tests.chaos.checker import Checked, check
from tests.chaos.history import Call, Heard, History, listen
from tests.chaos.mutants import Mutant
from tests.chaos.system import ChaosSystem, is_stopped, kill
from tests.chaos.worker import commits
from tests.harness import wait_until

_SESSION = "session-0"
_PATIENCE_S = 30.0
_MOST_PUTS = 2000


class Scene:
    """A system of broken workers, one client of it, and what that one heard."""

    def __init__(self, system: ChaosSystem, client: FeedbackClient) -> None:
        self.system = system
        self._client = client
        self._history = History()

    def put(self) -> Put:
        """Create the item, and hear what came of it."""
        request = Put(_SESSION, "m1", "positive", command_id=str(uuid4()))
        heard = listen(lambda: self._client.submit(request).result(_PATIENCE_S))
        assert heard.result is not None, heard.failure
        self._history.calls.append(Call(request, heard))
        return request

    def send(self) -> Put:
        """Create the item, and hear nothing."""
        request = Put(_SESSION, "m1", "positive", command_id=str(uuid4()))
        began = monotonic()
        self._client.submit(request)
        self._history.calls.append(Call(request, Heard(began, monotonic(), failure="ResultTimeout")))
        return request

    def copies(self, request: Put) -> int:
        """How many outcomes of a command are stored."""
        return sum(event.command_id == request.command_id for _, event in self._stored())

    def checked(self) -> Checked:
        """What the check of a campaign finds."""
        stored = {self.system.partition_of(_SESSION): self._stored()}
        return check(self._history, stored, logs=self.system.known_logs, commits=commits(self.system.commits))

    def _stored(self) -> list[tuple[int, Event]]:
        partition = self.system.partition_of(_SESSION)
        return [(number, decode_event(data)) for number, data in self.system.store.outcomes(partition, 0, 1_000_000)]


def _wake_up_late(scene: Scene) -> None:
    """A worker stops with a command in its hands, the server forgets, another worker serves, the first one goes on."""
    system = scene.system
    zombie = system.add_worker(f"{CrashPoint.AFTER_CLAIM}:{Action.STOP}")
    system.wait_until_owned()
    held = scene.send()
    wait_until(lambda: is_stopped(zombie), "it stops with what it claimed")
    system.admin.flushall()
    system.add_worker()
    system.wait_until_owned()
    scene.put()
    kill(zombie, signal.SIGCONT)
    wait_until(lambda: scene.copies(held), "it commits")


def _die_between(scene: Scene) -> None:
    """A worker answers, and dies before it commits."""
    scene.system.add_worker()
    assert any(not scene.copies(scene.put()) for _ in range(_MOST_PUTS)), "it always commits first"


def _deliver_again(scene: Scene) -> None:
    """A command that was done lies on its queue once more."""
    system = scene.system
    system.add_worker()
    done = scene.put()
    system.admin.rpush(keys.queue(system.partition_of(_SESSION)), str(done.command_id))
    wait_until(lambda: scene.copies(done) > 1, "it is done again")


_PLAYS: Mapping[Mutant, Callable[[Scene], None]] = {
    Mutant.FENCE_OFF: _wake_up_late,
    Mutant.ACKNOWLEDGE_FIRST: _die_between,
    Mutant.FORGETFUL: _deliver_again,
}


def play(home: Path, mutant: Mutant) -> Checked:
    """Let a mutant do in `home` what it does wrong; what the check says of that."""
    with _scene(home, mutant) as scene:
        _PLAYS[mutant](scene)
        return scene.checked()


@contextmanager
def _scene(home: Path, mutant: Mutant) -> Iterator[Scene]:
    with (
        ChaosSystem(home, (_SESSION,), workers=0, rng=Random(0), mutant=mutant) as system,
        FeedbackClient.from_url(system.proxy.url) as client,
    ):
        yield Scene(system, client)
