"""Fixtures of the tests of clients (`system`, `idle`) and of the projection."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from redis import Redis

from feedback.connection import connect
from feedback.partitions import Topology
from feedback.settings import Settings
from persistence.sidecar import SqliteStore
from projections.runner import Follower
from tests.harness import serving, settings_for, write_session
from tests.integration.projecting import Deployment
from tests.integration.rating import MESSAGES
from worker.topology import publish


@pytest.fixture
def system(redis_client: Redis, valkey_url: str, tmp_path: Path) -> Iterator[Settings]:
    """A serving system with one Session, "s"."""
    settings = settings_for(valkey_url, tmp_path)
    write_session(settings, "s", *MESSAGES)
    with serving(settings):
        yield settings


@pytest.fixture
def idle(redis_client: Redis) -> Redis:
    """A server that was set up, where no worker runs."""
    publish(redis_client, Topology(generation=1, partitions=4, max_note_bytes=8192))
    return redis_client


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    with closing(SqliteStore(tmp_path / "sidecar.sqlite3")) as store:
        yield store


@pytest.fixture
def deployment(redis_client: Redis, store: SqliteStore) -> Deployment:
    return Deployment(redis_client, store)


@pytest.fixture
def follower(valkey_url: str, deployment: Deployment) -> Iterator[Follower]:
    """A follower that has loaded its positions, to be stepped by the test."""
    with connect(valkey_url) as client:
        follower = Follower(client, deployment.store)
        assert follower.step(1)
        yield follower
