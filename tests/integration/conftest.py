"""Fixtures of the projection's tests."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from redis import Redis

from feedback.connection import connect
from persistence.sidecar import SqliteStore
from projections.runner import Follower
from tests.integration.projecting import Deployment


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
