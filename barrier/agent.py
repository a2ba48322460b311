"""The agent of a host: does the barrier where the logs are, for those who cannot see them (docs/agents.md)."""

import time
from collections.abc import Iterable, Sequence
from uuid import uuid4

import msgspec
from msgspec import Struct
from redis import Redis
from redis.exceptions import ResponseError

from barrier.flush import FlushDesk, new_request_id, read_reply
from barrier.judging import Judge
from barrier.meter import Meter
from barrier.rules import Answer, FlushNeeded, Need, outcome_of, unanswered
from feedback import keys
from feedback.calls import wall_clock_ms
from feedback.crashpoints import CrashPoint, reach
from feedback.dropped import Dropped, Reason
from feedback.evidence import (
    EvidenceReply,
    EvidenceRequest,
    Finding,
    Found,
    LogQuestion,
    Registration,
    decode_request,
    encode_reply,
)
from feedback.flushing import FlushReply, LiveOwner
from feedback.lines import Command, Lines
from feedback.live_owners import live_owners

_OFF = Meter()
_MOST_TAKEN = 64
_MOST_FLUSHING = 10_000
_REPLY_BYTES = 4 * 2**20


class _Flushing(Struct, frozen=True):
    """A question that waits for the Session's live owner."""

    request: EvidenceRequest
    question: LogQuestion
    owner: LiveOwner
    until_s: float


class Agent:
    """Takes requests of one host, and answers each in one reply or several. For one thread.

    What it loses when it ends, those who asked ask again. A Session whose owner flushes holds up no other.
    """

    def __init__(
        self, redis: Redis, host: str, me: Registration, judge: Judge, *, flush_timeout_s: float, meter: Meter = _OFF
    ) -> None:
        """`redis` is used by this object alone; its owner closes it, after `close`."""
        self._redis = redis
        self._lines = Lines(redis)
        self._host = host
        self._me = me
        self._judge = judge
        self._flushes = FlushDesk(redis, me.agent_id, flush_timeout_s)
        self._flushing: dict[str, _Flushing] = {}
        self._dropped = Dropped(f"agent {host}", meter.dropped)
        self._ready: list[tuple[str, bytes]] = []
        """Replies and the wake lists that they go to: they go out with the next look for requests."""

    def step(self, block_s: float, *, serves: bool = True) -> None:
        """Tell what is ready, take what has come, waiting at most `block_s` for it, and have the evidence ready.

        An agent that does not serve (any more) takes no requests.

        Raises:
            RedisError: what was taken is lost; whoever asked asks again.
        """
        rings, documents = self._exchange(self._patience_s(block_s), serves=serves)
        requests = list(self._readable(documents))
        if requests:
            reach(CrashPoint.AFTER_QUESTION)
            self._look(requests)
        flushed = [self._flushed(reply) for ring in rings if (reply := read_reply(ring)) is not None]
        self._answer([*(one for one in flushed if one is not None), *self._given_up()])

    def flush(self) -> None:
        """Tell what is ready.

        Raises:
            RedisError: some of it was not told.
        """
        if replies := self._replies():
            _check_told(self._lines.send(*replies, refusals=True))

    def recover(self) -> None:
        """After a failure: old connections may lead to a server that is the primary no more, and what a stranger put
        in a list's place gives way.

        Raises:
            RedisError: the trouble goes on.
        """
        self._lines.drop()
        self._redis.connection_pool.disconnect()
        for name in (keys.wake(self._me.agent_id), keys.agent_requests(self._host)):
            if self._redis.type(name) not in {b"list", b"none"}:
                self._redis.delete(name)

    def close(self) -> None:
        """Close the connections that this agent made."""
        self._lines.close()

    def _patience_s(self, block_s: float) -> float:
        until = min((flushing.until_s for flushing in self._flushing.values()), default=float("inf"))
        return max(0.001, min(block_s, until - time.monotonic()))

    def _exchange(self, block_s: float, *, serves: bool) -> tuple[list[bytes], list[bytes]]:
        """Send what is ready and take what has come, in one write: rings on the wake list, or requests."""
        lists = [keys.wake(self._me.agent_id), *([keys.agent_requests(self._host)] if serves else [])]
        take = ("BLMPOP", f"{block_s:.3f}", len(lists), *lists, "LEFT", "COUNT", _MOST_TAKEN)
        *told, taken = self._lines.send(*self._replies(), take, refusals=True)
        if isinstance(taken, ResponseError):
            raise taken
        _check_told(told)
        if taken is None:
            return [], []
        name, found = taken
        return (found, []) if name.decode() == lists[0] else ([], found)

    def _replies(self) -> list[Command]:
        """The commands that tell what is ready, which is so no more. No script: those need the right to read what they
        write, and whoever may read a wake list may take what others wait for."""
        ready, self._ready = self._ready, []
        if ready:
            reach(CrashPoint.BEFORE_TELLING)
        commands: list[Command] = []
        for reply_to, reply in ready:
            wake = keys.wake(reply_to)
            commands += (("RPUSH", wake, reply), ("EXPIRE", wake, keys.WAKE_TTL_S))
        return commands

    def _readable(self, documents: Iterable[bytes]) -> Iterable[EvidenceRequest]:
        """The requests that somebody may still be waiting for."""
        now_ms = wall_clock_ms()
        for document in documents:
            try:
                request = decode_request(document)
            except msgspec.MsgspecError as error:
                self._dropped.note(Reason.MALFORMED, str(error))
                continue
            if request.host != self._host:
                self._dropped.note(Reason.FOREIGN, "for another host")
            elif request.deadline <= now_ms:
                self._dropped.note(Reason.OVERDUE, f"{(now_ms - request.deadline) / 1000:.1f} s past its deadline")
            else:
                yield request

    def _look(self, requests: Sequence[EvidenceRequest]) -> None:
        """Judge what can be judged now, and have the other Sessions' owners asked to flush."""
        asked = {question.session_id for request in requests for question in request.sessions}
        owners = live_owners(self._redis, asked)
        flushing: list[tuple[EvidenceRequest, LogQuestion, LiveOwner]] = []
        for request in requests:
            # One question a Session: whoever puts two at once gets an answer to the last.
            questions = {question.session_id: question for question in request.sessions}
            found: list[Found] = []
            for session_id, finding in self._judged(questions.values(), owners).items():
                if isinstance(finding, FlushNeeded):
                    flushing.append((request, questions[session_id], finding.owner))
                else:
                    found.append(Found(session_id, finding))
            self._tell(request, found)
        reach(CrashPoint.AFTER_READING)
        self._ask_to_flush(flushing)

    def _judged(
        self, questions: Iterable[LogQuestion], owners: dict[str, LiveOwner]
    ) -> dict[str, Finding | FlushNeeded]:
        return self._judge.judged(
            {
                question.session_id: (question, Need(durable=question.durable, owner=owners.get(question.session_id)))
                for question in questions
            }
        )

    def _ask_to_flush(self, needed: Sequence[tuple[EvidenceRequest, LogQuestion, LiveOwner]]) -> None:
        """Ask live owners. Past what may wait, questions are dropped: they are asked again."""
        room = max(0, _MOST_FLUSHING - len(self._flushing))
        asked = {new_request_id(): one for one in needed[:room]}
        if len(needed) > room:
            self._dropped.note(Reason.CROWDED, f"{_MOST_FLUSHING} wait for live owners", len(needed) - room)
        if asked:
            until_s = self._flushes.request({key: owner for key, (_, _, owner) in asked.items()})
            self._flushing |= {key: _Flushing(*one, until_s) for key, one in asked.items()}
            reach(CrashPoint.AFTER_FLUSH_REQUEST)

    def _flushed(self, reply: FlushReply) -> tuple[_Flushing, Answer] | None:
        flushing = self._flushing.pop(reply.request_id, None)
        return None if flushing is None else (flushing, outcome_of(reply, flushing.owner))

    def _given_up(self) -> list[tuple[_Flushing, Answer]]:
        """Owners that did not answer in time."""
        now = time.monotonic()
        late = [key for key, flushing in self._flushing.items() if flushing.until_s <= now]
        return [(flushing, unanswered(flushing.owner)) for flushing in map(self._flushing.pop, late)]

    def _answer(self, answered: Sequence[tuple[_Flushing, Answer]]) -> None:
        """Judge what was read after the flushes, side by side: the owners' word alone never counts."""
        while answered:
            # A Session that was asked about by several is judged for one after the other.
            now = {one[0].question.session_id: one for one in answered}
            answered = [one for one in answered if one is not now[one[0].question.session_id]]
            findings = self._judge.judged(
                {
                    session_id: (one.question, Need(durable=one.question.durable, owner=one.owner, answer=answer))
                    for session_id, (one, answer) in now.items()
                }
            )
            for session_id, (flushing, _) in now.items():
                finding = findings[session_id]
                assert not isinstance(finding, FlushNeeded), "the owner was asked"
                self._tell(flushing.request, [Found(session_id, finding)])

    def _tell(self, request: EvidenceRequest, found: Sequence[Found]) -> None:
        """Have it told, in replies that are not too large."""
        some: list[Found] = []
        size = 0
        for one in found:
            length = len(msgspec.msgpack.encode(one))
            if some and size + length > _REPLY_BYTES:
                self._reply(request, some)
                some, size = [], 0
            some.append(one)
            size += length
        if some:
            self._reply(request, some)

    def _reply(self, request: EvidenceRequest, found: Sequence[Found]) -> None:
        reply = EvidenceReply(
            request_id=request.request_id,
            host=self._host,
            agent_id=self._me.agent_id,
            root=self._me.root,
            sessions=tuple(found),
        )
        self._ready.append((request.reply_to, encode_reply(reply)))


def new_agent(host: str, root: str) -> Registration:
    """An agent of a new id: what its access rights know its wake list by, and never the name of another list that
    somebody waits on."""
    return Registration(f"agent:{host}:{uuid4().hex}", root)


def _check_told(replies: Iterable[object]) -> None:
    """Raises what the server refused, except to push on what a stranger made a key of another type."""
    for reply in replies:
        if isinstance(reply, ResponseError) and not str(reply).startswith("WRONGTYPE"):
            raise reply
