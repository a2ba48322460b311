"""A worker that disagrees with its store, or with Redis, refuses to start, and says both values."""

import threading
from contextlib import closing
from pathlib import Path

import pytest
from redis import Redis

from feedback import SettingsInvalid, keys
from feedback.settings import Settings
from persistence.sidecar import SqliteStore
from projections.process import run_projector
from tests.harness import settings_for
from tests.integration.rq_jobs import set_up
from worker.topology import establish

pytestmark = pytest.mark.server


@pytest.fixture
def settings(valkey_url: str, redis_client: Redis, tmp_path: Path) -> Settings:
    """Of a deployment that was set up."""
    settings = settings_for(valkey_url, tmp_path)
    set_up(redis_client, settings)
    return settings


def refusal(redis: Redis, settings: Settings, home: Path) -> str:
    """What a worker with the store in `home` says."""
    with closing(SqliteStore(home / "sidecar.sqlite3")) as store, pytest.raises(SettingsInvalid) as caught:
        establish(redis, store, settings)
    return str(caught.value)


def test_the_first_worker_writes_what_clients_need(redis_client: Redis, settings: Settings, tmp_path: Path) -> None:
    """Generation 1, in the store for good and in Redis for all to see."""
    with closing(SqliteStore(tmp_path / "sidecar.sqlite3")) as store:
        stored = store.topology()
    assert stored is not None
    assert stored.deployment > 0
    assert redis_client.hgetall(keys.TOPOLOGY) == {
        b"generation": b"1",
        b"partitions": b"4",
        b"max_note_bytes": b"8192",
        b"command_retention": b"604800",
        b"deployment": str(stored.deployment).encode(),
    }


def test_another_store_of_the_same_topology_is_refused(
    redis_client: Redis, settings: Settings, valkey_url: str, tmp_path: Path
) -> None:
    """By worker and projector: each Session's feedback would be in the store of whoever served it last."""
    other = tmp_path / "other"
    said = refusal(redis_client, settings_for(valkey_url, other), other)
    assert "another store" in said
    with pytest.raises(SettingsInvalid, match="another store"):
        run_projector(settings_for(valkey_url, other), threading.Event())
    redis_client.flushall()
    with closing(SqliteStore(other / "sidecar.sqlite3")) as store:
        assert establish(redis_client, store, settings_for(valkey_url, other)).current.partitions == 4


def test_another_number_of_partitions_is_refused(
    redis_client: Redis, settings: Settings, valkey_url: str, tmp_path: Path
) -> None:
    """By the store's number; Redis keeps its topology."""
    said = refusal(redis_client, settings_for(valkey_url, tmp_path, partitions=8), tmp_path)
    assert "8 here" in said
    assert "set up with 4" in said
    assert redis_client.hget(keys.TOPOLOGY, "partitions") == b"4"


def test_another_deployments_store_is_refused(
    redis_client: Redis, settings: Settings, valkey_url: str, tmp_path: Path
) -> None:
    """A new store beside a server that was set up with another one."""
    (tmp_path / "other").mkdir()
    said = refusal(redis_client, settings_for(valkey_url, tmp_path, partitions=8), tmp_path / "other")
    assert "generation 1 with 4 partitions" in said
    assert "generation 1 with 8" in said


def test_another_bound_on_notes_is_refused_while_workers_run(
    redis_client: Redis, settings: Settings, valkey_url: str, tmp_path: Path
) -> None:
    """They would answer the same note differently. Without any, the new bound counts."""
    other = settings_for(valkey_url, tmp_path, max_note_bytes=100)
    redis_client.sadd(keys.WORKERS, b"\xff", "w1")
    redis_client.set(keys.worker_session("w1"), 1)
    said = refusal(redis_client, other, tmp_path)
    assert "100 here" in said
    assert "running workers use 8192" in said
    redis_client.delete(keys.worker_session("w1"))
    with closing(SqliteStore(tmp_path / "sidecar.sqlite3")) as store:
        establish(redis_client, store, other)
    assert redis_client.hget(keys.TOPOLOGY, "max_note_bytes") == b"100"


@pytest.mark.parametrize("partitions", [b"many", b"0", b"-1", b""])
def test_a_topology_that_is_none_is_refused(
    redis_client: Redis, settings: Settings, tmp_path: Path, partitions: bytes
) -> None:
    """Typed, with the key to look at."""
    redis_client.hset(keys.TOPOLOGY, "partitions", partitions)
    assert keys.TOPOLOGY in refusal(redis_client, settings, tmp_path)
