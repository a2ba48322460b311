"""What `doctor` says about a PostgreSQL store: the server's settings, its standbys, what would fill its disk."""

from collections.abc import Iterator
from typing import LiteralString

from psycopg.rows import TupleRow

from persistence.sidecar import postgres_schema as schema
from persistence.sidecar.postgres_session import Session
from persistence.sidecar.store import StoreHealth

_MIB = 2**20
_FAR_BEHIND_BYTES = 256 * _MIB
_LARGE_LOG_BYTES = 1024 * _MIB
_OLD_TRANSACTIONS = 1_500_000_000
"""Of the 2,000 million after which PostgreSQL stops taking writes."""

_COUNTS: LiteralString = """
    SELECT (SELECT value FROM meta WHERE name = 'sessions'), sum(items)::bigint, sum(commands)::bigint FROM tally"""
_SERVER: LiteralString = """
    SELECT current_setting('server_version'), pg_is_in_recovery(), current_setting('transaction_read_only') = 'on',
           current_setting('fsync') = 'on', current_setting('full_page_writes') = 'on',
           current_setting('synchronous_commit') IN ('on', 'remote_apply'), current_setting('autovacuum') = 'on',
           (SELECT age(datfrozenxid) FROM pg_database WHERE datname = current_database()),
           current_setting('synchronous_standby_names') <> ''"""
# Roles without `pg_read_all_stats` see how many there are, and nothing more.
_STANDBYS: LiteralString = """
    SELECT coalesce(application_name, ''), sync_state IN ('sync', 'quorum'),
           CASE WHEN NOT pg_is_in_recovery() THEN pg_wal_lsn_diff(pg_current_wal_lsn(), replay_lsn)::bigint END
    FROM pg_stat_replication"""
_SLOTS: LiteralString = """
    SELECT slot_name::text,
           CASE WHEN NOT pg_is_in_recovery() THEN pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::bigint END
    FROM pg_replication_slots WHERE NOT active AND restart_lsn IS NOT NULL"""
_BEYOND: LiteralString = """
    SELECT fence.generation, fence.partition, max(command.sequence), fence.sequence
    FROM fence JOIN command ON command.generation = fence.generation AND command.partition = fence.partition
    AND command.sequence > fence.sequence
    GROUP BY fence.generation, fence.partition, fence.sequence"""


def read_health(session: Session, location: str) -> StoreHealth:
    """Ask the server about itself and about our tables, in one round trip."""
    counts, server, standbys, slots, beyond = session.ask(
        [(statement, ()) for statement in (_COUNTS, _SERVER, _STANDBYS, _SLOTS, _BEYOND)]
    )
    (sessions, items, commands), (version, *facts) = counts[0], server[0]
    findings = (*_of_server(facts), *_of_standbys(facts, standbys), *_of_slots(slots), *_of_partitions(beyond))
    return StoreHealth(
        f"PostgreSQL {version.split()[0]}", location, schema.SCHEMA_VERSION, sessions, items, commands, findings
    )


def _of_server(facts: list[object]) -> Iterator[str]:
    is_standby, is_read_only, fsync, full_pages, commits_are_durable, vacuums, age, _ = facts
    if is_standby:
        yield "the server is a standby: it takes no writes; name the primary"
    elif is_read_only:
        yield "the server, the database or the role is set to read only (default_transaction_read_only)"
    if not fsync:
        yield "fsync is off: a crash of the server loses ratings that were acknowledged; turn it on"
    if not full_pages:
        yield "full_page_writes is off: a crash of the server may damage the store; turn it on"
    if not commits_are_durable:
        yield "synchronous_commit is off in spite of us: a pooler in between mixes up sessions; connect without it"
    if not vacuums:
        yield "autovacuum is off: the tables grow without bound, and in the end the server takes no writes"
    if isinstance(age, int) and age > _OLD_TRANSACTIONS:
        yield f"{age} transactions since the last freeze: the server will soon take no writes; VACUUM the database"


def _of_standbys(facts: list[object], standbys: list[TupleRow]) -> Iterator[str]:
    must_have_one = facts[-1]
    if must_have_one and not any(is_synchronous is not False for _, is_synchronous, _ in standbys):
        yield "no synchronous standby is connected, and commits wait for one (synchronous_standby_names)"
    if standbys and not must_have_one:
        yield "standbys only follow: a failover loses ratings that were acknowledged; set synchronous_standby_names"
    for name, _, behind in standbys:
        if behind is not None and behind > _FAR_BEHIND_BYTES:
            yield f"standby {name!r} is {behind // _MIB} MiB behind"


def _of_slots(slots: list[TupleRow]) -> Iterator[str]:
    for name, kept in slots:
        if kept is not None and kept > _LARGE_LOG_BYTES:
            yield f"replication slot {name!r} has no reader and keeps {kept // _MIB} MiB of log: the disk will fill"


def _of_partitions(beyond: list[TupleRow]) -> Iterator[str]:
    """A record past its partition's last sequence: somebody wrote around the fence."""
    for generation, number, record, sequence in beyond:
        yield f"partition {generation}-{number}: record {record} lies past the last sequence {sequence}"
