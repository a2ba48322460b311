"""What `feedback status` tells: one look at a running system, or at one whose workers are all dead."""

from collections.abc import Mapping, Sequence
from contextlib import closing

import msgspec
from msgspec import Struct
from redis import Redis

from app.catalog import open_existing_store
from app.inspection import Ownership, ServerFacts, read_ownership, read_parked, read_server
from feedback.calls import wall_clock_ms
from feedback.errors import StoreForeign, StoreUnavailable
from feedback.partitions import PartitionId, Topology
from feedback.troubles import read_troubles
from projections.lag import lag
from projections.waiting import Backlog, read_backlog


class PartitionStatus(Struct, frozen=True, kw_only=True):
    """One partition.

    `claimed` are commands that its owner holds, or held when it died; `parked` Sessions whose commands wait for another
    try, as a live owner says; `oldest` when the oldest command that is not done was enqueued (milliseconds), null when
    all are. `lag`: outcomes that are committed and not projected yet; null when there is no store to ask.
    """

    partition: int
    owner: str | None
    waiting: int
    claimed: int
    parked: int
    failed: int
    oldest: int | None
    lag: int | None

    @property
    def is_quiet(self) -> bool:
        """Whether there is nothing to say about it: it has an owner and nothing to do, and nothing failed."""
        return self.owner is not None and not any((self.waiting, self.claimed, self.parked, self.failed, self.lag))


class TopologyStatus(Struct, frozen=True, rename="camel"):
    """How Sessions are spread over queues."""

    generation: int
    partitions: int
    max_note_bytes: int


class TroubleLine(Struct, frozen=True):
    """What is in the way of a process (`reporter`) since when (milliseconds): a failure's name and its sentence."""

    reporter: str
    code: str
    message: str
    since: int


class SystemStatus(Struct, frozen=True, kw_only=True):
    """The `--json` document (docs/command-line.md)."""

    server: ServerFacts
    topology: TopologyStatus | None
    workers: tuple[str, ...]
    waiting: int
    claimed: int
    parked: int
    failed: int
    oldest: int | None
    lag: int | None
    partitions: tuple[PartitionStatus, ...]
    troubles: tuple[TroubleLine, ...]


def read_status(redis: Redis, sidecar_url: str) -> SystemStatus:
    """Look once. A store that cannot be read from here is one more trouble, and hides nothing else.

    Raises:
        RedisError: the server cannot be asked.
        SettingsInvalid: the URL is none of a store.
    """
    server, ownership = read_server(redis), read_ownership(redis)
    troubles = [
        TroubleLine(reporter, trouble.code, trouble.message, trouble.since)
        for reporter, trouble in read_troubles(redis).items()
    ]
    backlog: Mapping[PartitionId, Backlog] = {}
    parked: Mapping[str, int] = {}
    lags: Mapping[PartitionId, int] = {}
    if ownership.topology is not None:
        backlog = read_backlog(redis, ownership.topology.all_partitions())
        parked = read_parked(redis, ownership.workers)
        try:
            lags = _lags(redis, sidecar_url, ownership.topology)
        except (StoreUnavailable, StoreForeign) as error:
            troubles.append(TroubleLine("this command", error.code, str(error), wall_clock_ms()))
    partitions = [
        PartitionStatus(
            partition=partition.number,
            owner=ownership.owners[partition.number],
            waiting=one.waiting,
            claimed=one.claimed,
            parked=parked.get(str(partition), 0),
            failed=one.failed,
            oldest=one.oldest,
            lag=lags.get(partition),
        )
        for partition, one in backlog.items()
    ]
    return _summed(server, ownership, partitions, troubles)


def _lags(redis: Redis, sidecar_url: str, topology: Topology) -> dict[PartitionId, int]:
    store = open_existing_store(sidecar_url)
    if store is None:
        return {}
    with closing(store):
        return lag(redis, store, topology)


def _summed(
    server: ServerFacts,
    ownership: Ownership,
    partitions: Sequence[PartitionStatus],
    troubles: Sequence[TroubleLine],
) -> SystemStatus:
    behind = [one.lag for one in partitions if one.lag is not None]
    return SystemStatus(
        server=server,
        topology=msgspec.convert(ownership.topology, TopologyStatus | None, from_attributes=True),
        workers=ownership.workers,
        waiting=sum(one.waiting for one in partitions),
        claimed=sum(one.claimed for one in partitions),
        parked=sum(one.parked for one in partitions),
        failed=sum(one.failed for one in partitions),
        oldest=min((one.oldest for one in partitions if one.oldest is not None), default=None),
        lag=sum(behind) if behind else None,
        partitions=tuple(partitions),
        troubles=tuple(troubles),
    )
