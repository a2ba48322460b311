"""What each role of `docs/acl.md` may write, key by key, as a real server judges it: no more than is said here."""

from collections.abc import Iterator
from typing import NamedTuple

import pytest
from redis import Redis

from barrier.agent import new_agent
from feedback import keys
from feedback.partitions import PartitionId
from projections.lease import FollowerLease
from tests.acceptance.test_acl import RULES, refusals, server, url

__all__ = ["server"]  # the fixture: a server with the page's users

pytestmark = pytest.mark.server

P = PartitionId(1, 0)
HOSTS = frozenset({"host", "gateway"})
WRITERS = {
    keys.TOPOLOGY: HOSTS | {"worker"},
    keys.WORKERS: {"worker"},
    keys.worker_session("w"): {"worker"},
    keys.parked("w"): {"worker"},
    keys.owners(1): {"worker"},
    keys.claimed(P): {"worker"},
    keys.aside(P): {"worker"},
    keys.trials(1): {"worker"},
    keys.unpublished(1): {"worker"},
    keys.wake("w"): HOSTS | {"worker", "projector", "agent"},
    keys.events(P): {"worker", "projector"},
    keys.checkpoint(1): {"worker", "projector"},
    keys.PROJECTOR: {"projector"},
    keys.list_cache("s"): {"worker", "projector"},
    keys.LIST_ERA: {"worker", "projector"},
    keys.QUERIES: HOSTS | {"reader", "projector"},
    keys.reply("q"): HOSTS | {"reader", "projector"},
    keys.live("s"): {"host", "worker", "projector"},
    keys.owner("o"): {"host", "worker", "projector"},
    keys.flushes("o"): {"host", "worker", "projector", "agent"},
    keys.agent("box-1"): {"worker", "projector", "agent"},
    keys.agent_requests("box-1"): {"worker", "projector", "agent"},
    keys.agent("another"): {"worker", "projector"},
    keys.agent_requests("another"): {"worker", "projector"},
    keys.TROUBLES: {"worker", "projector", "agent"},
    keys.RQ_QUEUES: HOSTS | {"worker"},
    keys.queue(P): HOSTS | {"worker"},
    keys.job("c"): HOSTS | {"worker"},
    keys.results("c"): {"worker"},
    keys.finished_registry(P): {"worker"},
    keys.failed_registry(P): {"worker"},
    "rq:queue:somebody-elses": set(),
    "somebody:elses": set(),
}
"""Who may write a key, besides the operator, who may write all of this system's and of RQ's."""

ADMINISTRATION = (
    ("CONFIG", "SET", "maxmemory", "1"),
    ("CONFIG", "GET", "*"),
    ("ACL", "SETUSER", "me"),
    ("ACL", "LIST"),
    ("FLUSHALL",),
    ("FLUSHDB",),
    ("SHUTDOWN",),
    ("DEBUG", "SLEEP", "0"),
    ("MODULE", "LIST"),
    ("MONITOR",),
    ("SAVE",),
    ("SWAPDB", "0", "1"),
    ("MIGRATE", "h", "1", "k", "0", "1"),
    ("PUBLISH", "somebody", "x"),
    ("CLUSTER", "RESET"),
)


class Judge(NamedTuple):
    """The server's own verdict; nothing is done."""

    redis: Redis

    def lets(self, role: str, *command: str) -> bool:
        return self.redis.execute_command("ACL", "DRYRUN", role, *command) in (b"OK", "OK")

    def writes(self, role: str, key: str) -> bool:
        """By any of the ways that this system writes, and by some that it does not."""
        ways = (
            ("EVAL", "return 1", "1", key),
            ("RPUSH", key, "x"),
            ("HSET", key, "f", "x"),
            ("SET", key, "x"),
            ("DEL", key),
            ("XADD", key, "*", "f", "x"),
            ("ZADD", key, "1", "x"),
            ("SADD", key, "x"),
            ("RENAME", key, key),
            ("RESTORE", key, "0", "x"),
            ("GETDEL", key),
            ("EXPIRE", key, "1"),
        )
        return any(self.lets(role, *way) for way in ways)


@pytest.fixture(scope="module")
def judge(server: Redis) -> Iterator[Judge]:
    yield Judge(server)


@pytest.mark.parametrize("role", sorted(RULES.keys() - {"operator"}))
def test_a_role_writes_its_keys_and_no_others(judge: Judge, role: str) -> None:
    assert {key for key in WRITERS if judge.writes(role, key)} == {
        key for key, roles in WRITERS.items() if role in roles
    }


def test_the_operator_writes_all_of_the_systems_keys_and_no_others(judge: Judge) -> None:
    assert {key for key in WRITERS if not judge.writes("operator", key)} == {"somebody:elses"}


@pytest.mark.parametrize("role", sorted(RULES))
def test_a_role_administers_nothing(judge: Judge, role: str) -> None:
    """Not the server, its users, its copies, or others' keys by name."""
    assert [command for command in ADMINISTRATION if judge.lets(role, *command)] == []
    assert judge.lets(role, "KEYS", "*") == (role == "operator")
    assert judge.lets(role, "REPLICAOF", "NO", "ONE") == (role == "sentinel")
    assert judge.lets(role, "PSYNC", "?", "-1") == (role == "replica")


def test_an_agent_takes_from_its_own_lists_and_only_pushes_on_others(judge: Judge) -> None:
    """Not what workers, projectors, live owners or other hosts' agents wait for."""
    own = {keys.agent_requests("box-1"), keys.wake(new_agent("box-1", "/").agent_id)}
    others = {
        keys.wake("w"),
        keys.flushes("o"),
        keys.agent_requests("another"),
        keys.wake(new_agent("another", "/").agent_id),
        keys.wake(new_agent("box-1-b", "/").agent_id),
    }

    def takes(key: str) -> bool:
        ways = (("BLMPOP", "1", "1", key, "LEFT"), ("DEL", key), ("EVAL", "return 1", "1", key), ("TYPE", key))
        return any(judge.lets("agent", *way) for way in ways)

    assert {key for key in own | others if takes(key)} == own
    assert all(judge.lets("agent", "RPUSH", key, "x") for key in own | {keys.wake("w"), keys.flushes("o")})


def test_a_probe_only_pings(judge: Judge) -> None:
    assert judge.lets("probe", "PING")
    for command in (("INFO",), ("EVAL", "return 1", "0"), ("DBSIZE",), ("SUBSCRIBE", "x"), ("CLIENT", "LIST")):
        assert not judge.lets("probe", *command), command


def test_a_projector_leads_and_stands_by(server: Redis) -> None:
    """Both ways of the lease's scripts, without a refusal."""
    with Redis.from_url(url(server, "projector")) as redis:
        first, second = FollowerLease(redis, 60), FollowerLease(redis, 60)
        assert first.holds()
        assert not second.holds()
        first.leave()
        second.leave()
    assert refusals(server) == []
