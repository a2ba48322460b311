"""Fixtures that several tiers share: a real server per test process, and a client that finds it empty."""

from collections.abc import Iterator

import pytest
from redis import Redis

from app.embedded import VOLATILE, EmbeddedServer
from feedback.connection import connect
from tests.postgres import Databases, Postgres


@pytest.fixture(scope="session")
def valkey_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Valkey server from the wheel, one per test process, without persistence."""
    server = EmbeddedServer(tmp_path_factory.mktemp("valkey"), VOLATILE)
    server.start()
    try:
        yield server.url
    finally:
        server.stop()


@pytest.fixture
def redis_client(valkey_url: str) -> Iterator[Redis]:
    """A client of that server, which is empty when the test begins."""
    with connect(valkey_url) as client:
        client.flushall()
        yield client


@pytest.fixture(scope="session")
def databases() -> Iterator[Databases]:
    """A PostgreSQL server from the wheel, one per test process, that syncs nothing, with databases for many tests."""
    server = Postgres()
    try:
        server.start()
        yield Databases(server)
    finally:
        server.close()
