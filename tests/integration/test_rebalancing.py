"""What a worker does with the leases that it finds in Redis, one look at a time."""

from pathlib import Path

import pytest
from redis import Redis

from feedback import keys
from tests.harness import settings_for
from worker.loop import PartitionLoop
from worker.runtime import open_runtime

pytestmark = pytest.mark.server


def test_what_is_too_much_after_an_outage_is_given_back(valkey_url: str, redis_client: Redis, tmp_path: Path) -> None:
    """Another worker joined while the server was out of reach: this one holds nothing any more, but its leases stand.

    Left standing they would keep everybody from those partitions, as long as it lives.
    """
    with open_runtime(settings_for(valkey_url, tmp_path), redis_client) as runtime:
        redis_client.hset(keys.owners(1), mapping=dict.fromkeys("0123", "w1"))
        redis_client.sadd(keys.WORKERS, "w2")
        redis_client.set(keys.worker_session("w2"), 1, px=60_000)
        loop = PartitionLoop(runtime, "w1")
        loop._keeper._try_beat()
        loop._assignment.look_after(loop._keeper)
        held = {str(partition.number).encode() for partition in loop.partitions()}
        assert len(held) == 2
        assert redis_client.hgetall(keys.owners(1)) == dict.fromkeys(held, b"w1")
