"""Two projectors, of which one follows: the other takes over from one that was killed, frozen or stopped."""

import re
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from redis import Redis

from app.processes import Child
from feedback import FeedbackClient, ItemList, Ok, SessionIdentity, keys
from feedback.crashpoints import VARIABLE
from feedback.settings import Settings
from persistence.sidecar import SqliteStore
from projections.lease import FollowerLease
from tests.harness import CREATED_AT, settings_for, wait_until, write_session
from tests.integration.projecting import Deployment
from tests.processes import child, is_stopped, kill

LOGGED = SessionIdentity(created_at=CREATED_AT, cwd="/w")
"""The Session's identity, as `write_session` logs it."""

pytestmark = [pytest.mark.server, pytest.mark.process]


class Pair:
    """Projectors of one deployment, each with a log of its own."""

    def __init__(self, settings: Settings, redis: Redis, home: Path) -> None:
        self._settings = settings
        self._redis = redis
        self._home = home
        self.started: list[Child] = []

    def start(self, armed: str = "") -> Child:
        """Start one and wait until it has decided what it is."""
        logs = self._home / str(len(self.started))
        logs.mkdir()
        self.started.append(child("projector", self._settings, logs, {VARIABLE: armed} if armed else None))
        wait_until(lambda: self.is_said(self.started[-1], "follows"), "it follows, or stands by")
        return self.started[-1]

    def is_said(self, projector: Child, words: str) -> bool:
        assert projector.poll() is None, projector.log_tail()
        return words in projector.log_tail()

    def turns(self, projector: Child) -> list[str]:
        """What it was, one after the other."""
        return re.findall("this projector follows|standing by", projector.log_tail())

    def holder(self) -> bytes:
        token = self._redis.get(keys.PROJECTOR)
        assert isinstance(token, bytes | None)
        return token or b""


@pytest.fixture
def settings(valkey_url: str, tmp_path: Path) -> Settings:
    settings = settings_for(valkey_url, tmp_path, partitions=2, lease_ttl=1.0)
    write_session(settings, "s", "m1")
    return settings


@pytest.fixture
def deployment(settings: Settings, redis_client: Redis, tmp_path: Path) -> Iterator[Deployment]:
    with closing(SqliteStore(tmp_path / "sidecar.sqlite3")) as store:
        yield Deployment(redis_client, store)


@pytest.fixture
def pair(settings: Settings, redis_client: Redis, tmp_path: Path, deployment: Deployment) -> Iterator[Pair]:
    pair = Pair(settings, redis_client, tmp_path)
    yield pair
    for projector in pair.started:
        if projector.pid is not None and projector.poll() is None:
            kill(projector, signal.SIGCONT)
        projector.stop(settings.shutdown_grace)


def test_the_standby_answers_and_takes_over_from_the_killed_and_the_stopped(
    deployment: Deployment, pair: Pair, settings: Settings
) -> None:
    first = pair.start()
    standby = pair.start()
    assert pair.turns(first) == ["this projector follows"]
    assert pair.turns(standby) == ["standing by"]
    deployment.put("s", "m1", identity=LOGGED)
    deployment.settle()
    kill(first)
    deployment.put("s", "m2", identity=LOGGED)
    with FeedbackClient.from_url(settings.redis_url) as client:
        # Nobody follows yet; a list is never older than what was committed before it was asked for.
        listed = client.list("s", timeout=20)
    assert isinstance(listed, Ok)
    assert isinstance(listed.value, ItemList)
    assert [item.message_id for item in listed.value.items] == ["m1", "m2"]
    deployment.settle()
    assert pair.turns(standby) == ["standing by", "this projector follows"]
    third = pair.start()
    assert pair.turns(third) == ["standing by"]
    token = pair.holder()
    assert standby.stop(settings.shutdown_grace)
    assert pair.holder() != token, "who stops leaves its lease at once"
    deployment.put("s", "m3", identity=LOGGED)
    deployment.settle()
    assert deployment.cached("s") == {"s": deployment.view("s")}


def test_one_that_thaws_in_the_midst_of_a_round_does_no_harm(deployment: Deployment, pair: Pair) -> None:
    """Its checkpoints are old when it goes on: nothing of what it held is stored, and it stands by."""
    frozen = pair.start(armed="before-checkpoint:stop")
    standby = pair.start()
    deployment.put("s", "m1")
    wait_until(lambda: is_stopped(frozen), "the one that follows is frozen with a list that it has not stored")
    deployment.settle()
    for _ in range(3):
        deployment.delete("s", "m1")
        deployment.put("s", "m1")
    deployment.settle()
    before = deployment.redis.hgetall(keys.checkpoint(1))
    token = pair.holder()
    kill(frozen, signal.SIGCONT)
    wait_until(lambda: pair.turns(frozen)[-1] == "standing by", "it sees that another one follows")
    assert pair.is_said(frozen, "another projector was faster")
    assert deployment.redis.hgetall(keys.checkpoint(1)) == before
    assert deployment.cached("s") == {"s": deployment.view("s")}
    assert pair.holder() == token
    assert pair.turns(standby) == ["standing by", "this projector follows"]


@pytest.mark.parametrize("foreign", [b"somebody:1000", b"somebody", [b"a list"]])
def test_a_lease_that_would_never_end_is_nobodys(redis_client: Redis, foreign: bytes | list[bytes]) -> None:
    """A stranger's key, or one whose end moved away with the server's clock."""
    if isinstance(foreign, list):
        redis_client.rpush(keys.PROJECTOR, *foreign)
    else:
        redis_client.set(keys.PROJECTOR, foreign, px=None if foreign == b"somebody" else 3_600_000)
    lease, other = FollowerLease(redis_client, 60), FollowerLease(redis_client, 60)
    assert lease.holds()
    assert 0 < redis_client.pttl(keys.PROJECTOR) <= 60_000
    assert not other.holds()
    other.leave()
    assert redis_client.exists(keys.PROJECTOR), "only its holder gives it back"
    lease.leave()
    assert not redis_client.exists(keys.PROJECTOR)
