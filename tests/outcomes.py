"""Checks over what a run left behind: the store is the truth, streams and results are copies of it."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from redis import Redis

from feedback import keys
from feedback.events import Event, FeedbackDeleted, FeedbackPut, decode_event
from feedback.partitions import PartitionId
from feedback.settings import Settings
from persistence.sidecar import open_store


def stored_events(settings: Settings, generations: Mapping[int, int] | None = None) -> list[Event]:
    """All recorded events, partition by partition in commit order; `generations` says how many each has."""
    store = open_store(settings.sidecar_url)
    try:
        return [
            decode_event(event)
            for partition in _partitions(settings, generations)
            for _, event in store.outcomes(partition, 0, 1_000_000)
        ]
    finally:
        store.close()


def published_events(redis: Redis, settings: Settings, generations: Mapping[int, int] | None = None) -> list[Event]:
    """All events that stand in the streams, partition by partition."""
    return [
        decode_event(fields[b"event"])
        for partition in _partitions(settings, generations)
        for fields in _entries(redis, keys.events(partition))
    ]


def _partitions(settings: Settings, generations: Mapping[int, int] | None) -> list[PartitionId]:
    counts = generations or {1: settings.partitions}
    return [PartitionId(generation, number) for generation, count in counts.items() for number in range(count)]


def assert_sound(
    redis: Redis, settings: Settings, command_ids: list[str], generations: Mapping[int, int] | None = None
) -> list[Event]:
    """Each command has exactly one outcome, published once; revisions are dense; epochs never go back."""
    stored = stored_events(settings, generations)
    assert Counter(event.command_id for event in stored) == Counter(command_ids)
    assert published_events(redis, settings, generations) == stored
    epochs: dict[str, int] = {}
    revisions: dict[str, int] = {}
    for event in stored:
        partition = event.event_id.rpartition("-")[0]
        assert event.epoch >= epochs.get(partition, 0), "an older epoch committed after a newer one"
        epochs[partition] = event.epoch
        material = isinstance(event, FeedbackPut | FeedbackDeleted)
        revisions[event.session_id] = revisions.get(event.session_id, 0) + material
        assert event.revision == revisions[event.session_id], "a Session's revisions are not dense"
    return stored


def _entries(redis: Redis, stream: str) -> list[dict[bytes, bytes]]:
    entries: Any = redis.xrange(stream)
    return [fields for _, fields in entries]


def workers_of_epochs(redis: Redis, events: list[Event]) -> dict[tuple[int, int], set[str]]:
    """Which workers acknowledged commands of each (partition, epoch)."""
    workers: dict[tuple[int, int], set[str]] = {}
    for event in events:
        for fields in _entries(redis, keys.results(event.command_id)):
            workers.setdefault((event.partition, event.epoch), set()).add(fields[b"worker_name"].decode())
    return workers


def is_idle(redis: Redis, settings: Settings) -> bool:
    """Nothing waits and nothing is claimed."""
    partitions = [PartitionId(1, number) for number in range(settings.partitions)]
    lists = (*map(keys.queue, partitions), *map(keys.claimed, partitions), *map(keys.aside, partitions))
    return not redis.exists(*lists)
