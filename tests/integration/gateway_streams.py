"""A server's event streams without workers, for tests of those who read them."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import httpx
import pytest
from redis import Redis

from feedback import keys
from feedback.events import FeedbackPut, encode_event
from feedback.model import Item
from feedback.partitions import PartitionId, Topology
from tests.harness import settings_for
from tests.integration.gateway_serving import caller, gateway_serving
from worker import topology as topologies


class Streams:
    """A server's event streams, written as workers write them."""

    def __init__(self, redis: Redis) -> None:
        self.redis = redis
        self.revisions = Counter[str]()
        self.use(Topology(generation=1, partitions=2, max_note_bytes=8192))

    def use(self, topology: Topology) -> None:
        self.topology = topology
        topologies.publish(self.redis, topology)
        self.sequences = dict.fromkeys(topology.all_partitions(), 0)

    def partition(self, session_id: str) -> PartitionId:
        return self.topology.partition_of(session_id)

    def add(self, session_id: str, note: str | None = None, *, partition: PartitionId | None = None) -> str:
        """One more event of a Session; its id."""
        partition = partition or self.partition(session_id)
        self.revisions[session_id] += 1
        self.sequences[partition] = sequence = self.sequences.get(partition, 0) + 1
        item = Item(message_id="m", rating="positive", note=note, version="v", created_at=1, updated_at=1)
        event = FeedbackPut(
            event_id=f"{partition}-{sequence}",
            command_id=str(uuid4()),
            session_id=session_id,
            revision=self.revisions[session_id],
            message_id="m",
            actor="ada",
            occurred_at=1,
            partition=partition.number,
            epoch=1,
            item=item,
        )
        self.redis.xadd(keys.events(partition), {"event": encode_event(event)}, id=f"{sequence}-0")
        return event.event_id


def readers(redis: Redis) -> int:
    """How many connections wait for events."""
    return sum("b" in one["flags"] for one in redis.client_list())


@pytest.fixture
def streams(redis_client: Redis) -> Streams:
    return Streams(redis_client)


@pytest.fixture
def client(streams: Streams, valkey_url: str, tmp_path: Path) -> Iterator[httpx.Client]:
    """A client of a gateway over these streams; no worker runs."""
    with gateway_serving(settings_for(valkey_url, tmp_path, gateway_port=0)) as url, caller(url) as client:
        yield client
