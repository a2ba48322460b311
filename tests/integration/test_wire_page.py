"""A host that knows nothing but `docs/wire-format.md` and its scripts: no line of the client is used here."""

import base64
import hashlib
import re
import time
import uuid
import zlib
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zstandard
from redis import Redis

from feedback.settings import Settings
from tests.harness import CREATED_AT, wait_until, write_session

pytestmark = pytest.mark.server

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/wire-format.md").read_text(encoding="utf-8")
ARGUMENT = re.compile(r"^\| `(KEYS|ARGV)\[(\d+)\]` \| `(.+)` \|$", re.MULTILINE)
PER_COMMAND = ["<commandId>", "<partition>", "<job data>", "<digest>", "<description>", "<key digest>"]

pack, unpack = msgspec.msgpack.encode, msgspec.msgpack.decode


class ForeignHost:
    """What a host in another language would be."""

    def __init__(self, redis: Redis) -> None:
        self._enqueue = redis.register_script((ROOT / "feedback/scripts/enqueue.lua").read_text())
        self._read_list = (ROOT / "feedback/scripts/read_list.lua").read_text()
        self._command: Callable[..., Any] = redis.execute_command
        wait_until(lambda: all(self._topology()), "the first worker has started")
        self.generation, self._partitions = self._topology()

    def _topology(self) -> tuple[int, int]:
        generation, partitions = self._command("HMGET", "feedback:topology", "generation", "partitions")
        return int(generation or 0), int(partitions or 0)

    def partition(self, session_id: str) -> int:
        return zlib.crc32(session_id.encode()) % self._partitions

    def job(self, command_id: str, **members: object) -> tuple[bytes, bytes]:
        """Job data and digest of a command."""
        command = {"schema": 1, "commandId": command_id, "expiresAt": _now_ms() + 60_000, **members}
        parts = ("sessionId", "messageId", "ifVersion", "actor", "rating", "note")
        digest = hashlib.sha256(pack([members.get(part) for part in parts])).digest()
        return pack(["worker.jobs.apply_command", None, [command], {}]), digest

    def enqueue(self, command_id: str, **members: object) -> bytes:
        """By the script, with the arguments of the page's table."""
        session_id = str(members["sessionId"])
        data, digest = self.job(command_id, **members)
        key_digest = hashlib.blake2b(session_id.encode(), digest_size=16).hexdigest()
        keys, arguments = self._table()
        number = self.partition(session_id)
        (reply,) = self._enqueue(keys=keys, args=[*arguments, command_id, number, data, digest, "any text", key_digest])
        return bytes(reply)

    def enqueue_as_rq_does(self, command_id: str, **members: object) -> None:
        """By RQ's own protocol, compressed as RQ does it."""
        data, _ = self.job(command_id, **members)
        queue = f"feedback-{self.generation}-{self.partition(str(members['sessionId']))}"
        fields = ("data", zlib.compress(data), "status", "queued", "origin", queue, "timeout", 180)
        self._command("HSET", f"rq:job:{command_id}", *fields, "created_at", _now(), "enqueued_at", _now())
        self._command("SADD", "rq:queues", f"rq:queue:{queue}")
        self._command("RPUSH", f"rq:queue:{queue}", command_id)

    def answer(self, command_id: str) -> tuple[Any, int]:
        """Result and revision, or the failure and -1."""
        reply = self._command("XREAD", "BLOCK", 4_000, "STREAMS", f"rq:results:{command_id}", "0-0")
        _, fields = reply[0][1][-1]
        if fields[b"type"] == b"1":
            return unpack(base64.b64decode(fields[b"return_value"])), int(fields[b"revision"])
        return unpack(self._command("HGET", f"rq:job:{command_id}", "failure")), -1

    def query(self, **members: object) -> object:
        query_id = str(uuid.uuid4())
        query = pack({"queryId": query_id, "deadline": _now_ms() + 20_000, **members})
        self._command("RPUSH", "feedback:queries", query)
        self._command("LTRIM", "feedback:queries", -10_000, -1)
        self._command("EXPIRE", "feedback:queries", 60)
        _, document = self._command("BLPOP", f"feedback:reply:{query_id}", 4)
        return unpack(document)

    def cached(self, session_id: str) -> dict[str, Any] | None:
        """A cached list that is current."""
        key_digest = hashlib.blake2b(session_id.encode(), digest_size=16).hexdigest()
        names = (f"feedback:list:{key_digest}", "feedback:list-era")
        reply = self._command("EVAL_RO", self._read_list, len(names), *names)
        if reply is None:
            return None
        revision, body = reply
        codec, content = body[0], body[1:]
        found: dict[str, Any] = unpack(zstandard.decompress(content) if codec else content)
        assert (found["schema"], found["sessionId"], found["revision"]) == (1, session_id, int(revision))
        return found

    def events(self, session_id: str) -> list[tuple[bytes, dict[str, object]]]:
        stream = f"feedback:events:{self.generation}-{self.partition(session_id)}"
        return [(entry, unpack(fields[b"event"])) for entry, fields in self._command("XRANGE", stream, "-", "+")]

    def _table(self) -> tuple[list[str], list[str]]:
        values = {"<generation>": str(self.generation), "<partitions>": str(self._partitions), "<now>": _now()}
        found: dict[str, list[str]] = {"KEYS": [], "ARGV": []}
        for kind, number, value in ARGUMENT.findall(PAGE):
            found[kind].append(re.sub(r"<\w+>", lambda name: values[name[0]], value))
            assert len(found[kind]) == int(number)
        return found["KEYS"], found["ARGV"]


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def test_a_host_that_knows_only_the_page_can_do_everything(system: Settings, redis_client: Redis) -> None:
    """Put, repeat, reuse, list, outcome, delete by RQ's protocol, a failure, and the events of it all."""
    assert "| per command | " + ", ".join(f"`{name}`" for name in PER_COMMAND) + " |" in PAGE
    write_session(system, "Sitzung ü", "m1")
    host, target = ForeignHost(redis_client), {"sessionId": "Sitzung ü", "messageId": "m1"}
    first, second, third = (str(uuid.uuid4()) for _ in range(3))

    put = {"type": "put", "rating": "positive", "note": "schön", "ifVersion": None, **target}
    assert host.enqueue(first, **put) == b"enqueued"
    result, revision = host.answer(first)
    item = result["value"]
    assert (item["rating"], item["note"], revision) == ("positive", "schön", 1)
    assert host.enqueue(first, **put) == b"known"
    assert host.enqueue(first, **put | {"rating": "negative"}) == b"reused"

    listed = host.query(type="list", sessionId="Sitzung ü", atLeast=revision)
    assert listed == {"type": "answered", "result": {"ok": True, "value": {"items": [item]}}, "revision": 1}
    assert host.query(type="list", sessionId="Sitzung ü", missed=True) == listed
    cached = host.cached("Sitzung ü")
    assert cached is None or (cached["items"], cached["identity"]) == ([item], {"createdAt": CREATED_AT, "cwd": "/w"})
    assert host.query(type="outcome", commandId=first) == {"type": "answered", "result": result, "revision": 1}
    assert host.query(type="outcome", commandId=second) == {"type": "unknown"}

    host.enqueue_as_rq_does(second, type="delete", ifVersion=item["version"], actor="ada", **target)
    assert host.answer(second) == ({"ok": True, "value": {"absent": True}}, 2)
    assert (host.cached("Sitzung ü") or {"items": []})["items"] == [], "never the older list"

    def is_cached() -> bool:
        host.query(type="list", sessionId="Sitzung ü", missed=True)
        return host.cached("Sitzung ü") is not None

    wait_until(is_cached, "a projector that has come up keeps what it caches")
    assert host.enqueue(third, **put | {"rating": "splendid"}) == b"enqueued"
    failure, _ = host.answer(third)
    assert failure["code"] == "InvalidRequest"

    entries = host.events("Sitzung ü")
    assert [entry for entry, _ in entries] == [b"1-0", b"2-0"]
    events = [event for _, event in entries]
    assert [(event["type"], event["commandId"]) for event in events] == [
        ("feedback.put", first),
        ("feedback.deleted", second),
    ]
    assert events[1]["actor"] == "ada"
