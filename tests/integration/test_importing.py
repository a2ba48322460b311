"""Imports into a system that runs: workers go on, the projection follows, nothing is lost, nothing is done twice."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from redis import Redis

from feedback import FeedbackClient, ItemList, Ok, Put, VersionConflict, keys
from feedback.calls import wall_clock_ms
from feedback.connection import connect
from feedback.model import Item, SessionIdentity
from feedback.partitions import PartitionId
from feedback.settings import Settings
from persistence.interchange.rows import Row
from persistence.sidecar import SidecarStore, open_store
from persistence.sidecar.store import PartitionsFenced, StoredSession
from tests.harness import CREATED_AT, serving, settings_for, wait_until, write_session
from tests.integration.rq_jobs import wait_for_beats
from tests.interchanging import counts, item, set_up
from tests.proxy import Proxy
from worker import importing
from worker.importing import Importer, ImportReport
from worker.turns import Turns

SESSIONS = [f"s{number}" for number in range(8)]
LIFE = SessionIdentity(created_at=CREATED_AT, cwd="/w")
PARTITIONS = tuple(PartitionId(1, number) for number in range(4))


@pytest.fixture
def settings(redis_client: Redis, valkey_url: str, tmp_path: Path) -> Settings:
    settings = settings_for(valkey_url, tmp_path)
    for session_id in SESSIONS:
        write_session(settings, session_id, "own", *(f"i{number}" for number in range(30)))
    with closing(open_store(settings.sidecar_url)) as store:
        set_up(store)
    return settings


def rows(numbers: Sequence[int]) -> list[Row]:
    """The same items for each Session."""
    items = tuple(item(f"i{number}", version=number + 1, note=f"n{number}") for number in numbers)
    return [Row(session_id, LIFE, items) for session_id in SESSIONS]


def run_import(settings: Settings, found: Sequence[Row], *, server: bool = True) -> ImportReport:
    with closing(open_store(settings.sidecar_url)) as store, connect(settings.redis_url) as redis:
        turns = Turns(store, redis if server else None, settings)
        importer = Importer(store, turns, clock_ms=wall_clock_ms, retention_ms=1000, actor=None)
        return importer.run(found, check=False)


def rate(settings: Settings, times: int) -> dict[str, Item]:
    """Change the rating of one message of each Session, again and again; what was acknowledged last."""
    stands: dict[str, Item] = {}
    with FeedbackClient.from_url(settings.redis_url) as client:
        for _ in range(times):
            ratings = {
                session_id: client.submit(
                    Put(
                        session_id,
                        "own",
                        "negative" if session_id in stands and stands[session_id].rating == "positive" else "positive",
                        if_version=stands[session_id].version if session_id in stands else None,
                    )
                )
                for session_id in SESSIONS
            }
            for session_id, ticket in ratings.items():
                result = ticket.result(timeout=20)
                assert isinstance(result, Ok), result
                assert isinstance(result.value, Item)
                stands[session_id] = result.value
    return stands


def listed(client: FeedbackClient, session_id: str) -> dict[str, Item]:
    result = client.list(session_id, timeout=20)
    assert isinstance(result, Ok)
    assert isinstance(result.value, ItemList)
    return {one.message_id: one for one in result.value.items}


def check_streams(redis: Redis, store: SidecarStore) -> None:
    """Each partition's stream has what the store has: every outcome once, in order."""
    for partition in PARTITIONS:
        entries = redis.execute_command("XRANGE", keys.events(partition), "-", "+")
        stream = [(int(entry.partition(b"-")[0]), fields[b"event"]) for entry, fields in entries]
        assert stream == store.outcomes(partition, 0, 10_000)
        assert [sequence for sequence, _ in stream] == list(range(1, len(stream) + 1))


def test_commands_and_an_import_of_the_same_sessions_go_together(
    settings: Settings, redis_client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every command is answered, every item is imported once, and a list that is asked for when the import has ended
    shows it."""
    monkeypatch.setattr(importing, "_MOST_ITEMS", 40)
    monkeypatch.setattr(importing, "_SHORTEST_PAUSE_S", 0.02)
    with serving(settings, workers=2), ThreadPoolExecutor(1) as threads:
        rating = threads.submit(rate, settings, 6)
        with FeedbackClient.from_url(settings.redis_url) as client:
            assert counts(run_import(settings, rows(range(30)))) == (240, 0, 0, 0, 0)
            for session_id in SESSIONS:
                assert len(listed(client, session_id).keys() - {"own"}) == 30
            stands = rating.result()
            for session_id in SESSIONS:
                items = {one.message_id: one for one in rows(range(30))[0].items}
                assert listed(client, session_id) == items | {"own": stands[session_id]}
            conflict = client.put("s0", "i7", "negative", timeout=20)
            assert not isinstance(conflict, Ok)
            assert isinstance(conflict.error, VersionConflict)
            assert conflict.error.current == items["i7"], "its version is the one that it had"
            assert counts(run_import(settings, rows(range(30)))) == (0, 0, 240, 0, 0)
    with closing(open_store(settings.sidecar_url)) as store:
        check_streams(redis_client, store)
        for session_id in SESSIONS:
            stored = store.feedback(session_id)
            assert stored is not None
            assert stored.revision == 30 + 6


def test_what_was_imported_without_a_server_is_published_by_the_next_owner(
    settings: Settings, redis_client: Redis
) -> None:
    assert counts(run_import(settings, rows([0, 1]), server=False)) == (16, 0, 0, 0, 0)
    with serving(settings), FeedbackClient.from_url(settings.redis_url) as client:
        assert listed(client, "s3").keys() == {"i0", "i1"}
        with closing(open_store(settings.sidecar_url)) as store:
            wait_until(lambda: sum(redis_client.xlen(keys.events(one)) for one in PARTITIONS) == 16, "all is published")
            # Under a worker that serves, too: it is fenced off, and takes its partitions up again.
            assert counts(run_import(settings, rows([2]), server=False)) == (8, 0, 0, 0, 0)
            assert client.put("s3", "own", "positive", timeout=20).ok
            assert wait_until(lambda: listed(client, "s3").keys() == {"i0", "i1", "i2", "own"}, "the list follows")
            for session_id in SESSIONS:
                assert client.put(session_id, "i9", "positive", timeout=20).ok
            check_streams(redis_client, store)


def test_two_imports_at_once_take_turns(
    settings: Settings, redis_client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither waits for the other for ever, and what both have is imported by one of them."""
    monkeypatch.setattr(importing, "_MOST_ITEMS", 20)
    with ThreadPoolExecutor(2) as threads:
        both = [threads.submit(run_import, settings, rows(range(start, start + 20))) for start in (0, 10)]
        added = [one.result().added for one in both]
    assert sum(added) == 8 * 30
    with closing(open_store(settings.sidecar_url)) as store:
        check_streams(redis_client, store)
        assert redis_client.hlen(keys.owners(1)) == 0, "every partition was given back"
        assert redis_client.smembers(keys.WORKERS) == set()


def test_an_importer_that_stands_still_loses_its_turn(settings: Settings, redis_client: Redis) -> None:
    """Its lease runs out, a worker takes over, and what it still had in hand is refused by the store."""
    with (
        serving(settings, projector=False),
        closing(open_store(settings.sidecar_url)) as store,
        Proxy(settings.redis_url) as proxy,
        connect(proxy.url) as redis,
    ):
        wait_until(lambda: redis_client.hlen(keys.owners(1)) == len(PARTITIONS), "the worker owns all")
        (worker,) = set(redis_client.hvals(keys.owners(1)))
        with pytest.raises(PartitionsFenced), Turns(store, redis, settings).take(SESSIONS) as turn:
            assert turn.workers
            assert worker not in redis_client.hvals(keys.owners(1))
            proxy.freeze()
            wait_until(lambda: set(redis_client.hvals(keys.owners(1))) == {worker}, "the worker owns all again")
            with FeedbackClient.from_url(settings.redis_url) as client:
                for session_id in SESSIONS:
                    assert client.put(session_id, "own", "positive", timeout=20).ok
            proxy.thaw()
            with store.transaction({partition: fence.epoch for partition, fence in turn.fences.items()}) as transaction:
                transaction.apply((), (), {})


def test_an_import_keeps_its_turn_for_as_long_as_it_takes(
    valkey_url: str, redis_client: Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that answers late does not cost it its leases: its heartbeats go on."""
    settings = settings_for(valkey_url, tmp_path, lease_ttl=1.0)
    with closing(open_store(settings.sidecar_url)) as store:
        set_up(store)
        answer, waited = store.stored_sessions, []

        def slow(session_ids: Sequence[str]) -> dict[str, StoredSession]:
            for owner in redis_client.hvals(keys.owners(1)):
                wait_for_beats(redis_client, owner)
                waited.append(owner)
            return answer(session_ids)

        monkeypatch.setattr(store, "stored_sessions", slow)
        turns = Turns(store, redis_client, settings)
        importer = Importer(store, turns, clock_ms=wall_clock_ms, retention_ms=1000, actor=None)
        assert counts(importer.run(rows([0])[:1], check=False)) == (1, 0, 0, 0, 0)
        assert len(waited) == 1
