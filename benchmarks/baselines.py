"""What the system is compared with: the floor under a durable command, and stock RQ."""

import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from redis import Redis
from rq import Queue

from app.processes import Child

_ROW = b"x" * 300
_QUEUE = "bench-noop"
_STOP_S = 10.0


class Floor:
    """One SQLite commit with `synchronous=FULL`, and three Redis round trips: no durable command takes less."""

    def __init__(self, redis: Redis, database: sqlite3.Connection) -> None:
        self._redis = redis
        self._database = database

    def __call__(self) -> None:
        self.commit()
        for _ in range(3):
            self.round_trip()

    def commit(self) -> None:
        """One row in a write-ahead log, synced."""
        self._database.execute("BEGIN IMMEDIATE")
        self._database.execute("INSERT INTO floor (row) VALUES (?)", (_ROW,))
        self._database.execute("COMMIT")

    def round_trip(self) -> None:
        """A write that goes into the append-only file."""
        self._redis.execute_command("SET", "bench:floor", _ROW)


@contextmanager
def floor(redis: Redis, home: Path) -> Iterator[Floor]:
    """The floor on the same server, and on the same disk as `home`."""
    with closing(sqlite3.connect(home / "floor.sqlite3", isolation_level=None)) as database:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = FULL")
        database.execute("CREATE TABLE floor (key INTEGER PRIMARY KEY, row BLOB NOT NULL)")
        yield Floor(redis, database)


def no_op() -> None:
    """What a stock RQ worker runs: nothing."""


class StockRq:
    """RQ as it comes, with its own SimpleWorker (no fork per job) in a process of its own."""

    def __init__(self, redis: Redis, home: Path) -> None:
        self.queue = Queue(_QUEUE, connection=redis)
        url = _url(redis)
        command = (sys.executable, "-P", "-m", "rq.cli", "worker", "--url", url)
        worker = (*command, "--worker-class", "rq.worker.SimpleWorker", _QUEUE)
        self._worker = Child("rq", worker, log=home / "rq.log")

    def enqueue(self) -> None:
        """One job by RQ's own API."""
        self.queue.enqueue(no_op)

    def enqueue_many(self, number: int) -> None:
        """Jobs in one pipeline, by RQ's own API."""
        self.queue.enqueue_many([Queue.prepare_data(no_op) for _ in range(number)])

    def backlog(self) -> int:
        """Jobs that have not begun."""
        return len(self.queue)

    def start(self) -> None:
        self._worker.start()

    def stop(self) -> None:
        self._worker.stop(_STOP_S)


def _url(redis: Redis) -> str:
    place = redis.connection_pool.connection_kwargs
    return f"redis://{place['host']}:{place['port']}/{place['db']}"
