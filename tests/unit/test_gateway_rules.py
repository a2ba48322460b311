"""The gateway's rules that need no server: rates, origins, preconditions, ids in paths, marks, bounded queues."""

from collections.abc import Coroutine
from http import HTTPStatus
from typing import Any, TypeVar

import pytest
from starlette.datastructures import Headers
from starlette.requests import Request

from feedback import errors, results
from feedback.errors import Disposition, FeedbackError, InvalidRequest, SettingsInvalid
from feedback.failures import Failure, error_of
from feedback.model import Item
from feedback.partitions import PartitionId
from gateway.access.limits import RateLimiter
from gateway.live.marks import MOST_MARK_CHARS, Mark, mark_of_all, mark_of_one, parse_mark
from gateway.live.subscriptions import Delivery, Subscription
from gateway.room import Room
from gateway.web.origins import OriginRule, is_loopback, parse_origins
from gateway.web.paths import id_in_path
from gateway.web.preconditions import expected_version, idempotency_key, is_unchanged
from gateway.web.problems import Refused, problem_of_rejection, refusal_of_failure

T = TypeVar("T")

UUID = "5f1fd2c1-9a0e-4b8e-8a51-0d6a4f4f6c55"


def test_a_bucket_gives_its_burst_then_its_rate() -> None:
    """What is refused says how long to wait, and waiting so long is enough; buckets do not share."""
    now = 0.0
    limiter = RateLimiter(2.0, 3.0, clock=lambda: now)
    assert [limiter.take("a") for _ in range(4)] == [0, 0, 0, 0.5]
    assert limiter.take("b") == 0
    now = 0.5
    assert [limiter.take("a") for _ in range(2)] == [0, 0.5]
    now = 1000.0
    assert [limiter.take("a") for _ in range(4)] == [0, 0, 0, 0.5], "no more than the burst is saved up"


def test_buckets_are_bounded() -> None:
    """The one that was not used for longest is forgotten."""
    limiter = RateLimiter(1.0, 1.0, clock=lambda: 0.0, most=2)
    assert [limiter.take(name) for name in "abcb"] == [0, 0, 0, 1]
    assert limiter.take("a") == 0


def test_a_room_holds_so_many_and_of_one_bearer_so_many() -> None:
    """Whoever has their share is 429, whoever meets a full room 503; a place that is left twice is free once."""
    room = Room(3, 2)
    mine = [room.take("a"), room.take("a")]
    with pytest.raises(Refused) as share:
        room.take("a")
    with room.take("b"):
        for bearer in ("b", None):
            with pytest.raises(Refused) as full:
                room.take(bearer)
    assert (share.value.problem.status, full.value.problem.status) == (429, 503)
    mine[0].leave()
    mine[0].leave()
    room.take("a")
    room.take(None)
    with pytest.raises(Refused):
        room.take(None)


LOCAL = OriginRule(listens_on="127.0.0.1", hosts="", origins=("https://ratings.example",))
REMOTE = OriginRule(listens_on="0.0.0.0", hosts="", origins=())
NAMED = OriginRule(listens_on="0.0.0.0", hosts="Feedback.example, other.example", origins=())


@pytest.mark.parametrize(
    ("rule", "method", "headers", "status"),
    [
        (LOCAL, "GET", {"host": "127.0.0.1:8080"}, None),
        (LOCAL, "GET", {"host": "LOCALHOST:1"}, None),
        (LOCAL, "GET", {"host": "[::1]:8080"}, None),
        (LOCAL, "GET", {"host": "rebound.example:8080"}, 421),
        (LOCAL, "GET", {"host": "127.0.0.1.rebound.example"}, 421),
        (LOCAL, "GET", {"host": "127.0.0.2:8080"}, None),
        (LOCAL, "GET", {"host": "128.0.0.1:8080"}, 421),
        (LOCAL, "PUT", {"host": "127.0.0.2:8080", "origin": "http://127.0.0.2:8080"}, None),
        (LOCAL, "PUT", {"host": "127.0.0.2:8080", "origin": "http://127.0.0.3:8080"}, 403),
        (LOCAL, "GET", {"host": ""}, 421),
        (LOCAL, "GET", {"host": "[::1"}, 421),
        (LOCAL, "PUT", {"host": "localhost:8080", "origin": "http://localhost:8080"}, None),
        (LOCAL, "PUT", {"host": "localhost:8080", "origin": "http://localhost:8081"}, 403),
        (LOCAL, "PUT", {"host": "localhost:8080", "origin": "https://evil.example"}, 403),
        (LOCAL, "GET", {"host": "localhost:8080", "origin": "https://evil.example"}, 403),
        (LOCAL, "PUT", {"host": "localhost:8080", "origin": "null"}, 403),
        (LOCAL, "PUT", {"host": "localhost:8080", "origin": "http://[::1"}, 403),
        (LOCAL, "PUT", {"host": "localhost:8080", "origin": "https://ratings.example"}, None),
        (LOCAL, "PUT", {"host": "localhost:8080", "origin": "https://ratings.example.evil"}, 403),
        (LOCAL, "PUT", {"host": "localhost:8080", "sec-fetch-site": "cross-site"}, 403),
        (LOCAL, "PUT", {"host": "localhost:8080", "sec-fetch-site": "same-origin"}, None),
        (LOCAL, "GET", {"host": "localhost:8080", "sec-fetch-site": "cross-site"}, None),
        (REMOTE, "PUT", {"host": "feedback.example"}, None),
        (REMOTE, "PUT", {"host": "feedback.example", "origin": "https://feedback.example"}, None),
        (REMOTE, "PUT", {"host": "feedback.example:443", "origin": "https://feedback.example"}, None),
        (REMOTE, "PUT", {"host": "feedback.example", "origin": "https://evil.example"}, 403),
        (NAMED, "GET", {"host": "feedback.EXAMPLE"}, None),
        (NAMED, "GET", {"host": "third.example"}, 421),
        (NAMED, "GET", {"host": "127.0.0.2"}, None),
    ],
)
def test_which_pages_a_request_may_come_from(
    rule: OriginRule, method: str, headers: dict[str, str], status: int | None
) -> None:
    try:
        rule.check(method, Headers(headers))
    except Refused as refused:
        assert refused.problem.status == status
    else:
        assert status is None


def test_origins_are_checked_and_spelled_as_browsers_do() -> None:
    assert parse_origins("https://A.example:443/, http://[::1]:80 ,http://b:81") == (
        "https://a.example",
        "http://[::1]",
        "http://b:81",
    )
    for wrong in ("*", "a.example", "ftp://a", "https://a/b", "https://u@a", "https://a:x", "https://", "null"):
        with pytest.raises(SettingsInvalid, match="gateway_origins"):
            parse_origins(wrong)


def test_names_of_its_own_are_names_or_addresses() -> None:
    """A port or a URL among them would never be met by any Host, and shut everybody out."""
    rule = OriginRule(listens_on="::", hosts="[2001:DB8::1], 2001:db8::2", origins=())
    for host in ("[2001:db8::1]:8080", "[2001:db8::2]"):
        rule.check("GET", Headers({"host": host}))
    for wrong in ("a.example:8080", "https://a.example", "a/b", "u@a", "*", "*.a.example"):
        with pytest.raises(SettingsInvalid, match="gateway_hosts"):
            OriginRule(listens_on="127.0.0.1", hosts=wrong, origins=())


def test_only_addresses_of_this_machine_are_the_loopback() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.8.9.1", "::1", "[::1]", "localhost", "LocalHost")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "", "192.168.0.1", "localhost.evil.example", "example.org")))


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ([("if-match", f'"{UUID}"')], UUID),
        ([("if-match", ' "" ')], ""),
        ([("if-match", '"anything, even this"')], InvalidRequest),
        ([("if-none-match", "*")], None),
        ([], HTTPStatus.PRECONDITION_REQUIRED),
        ([("if-match", "*")], InvalidRequest),
        ([("if-match", UUID)], InvalidRequest),
        ([("if-match", f'W/"{UUID}"')], InvalidRequest),
        ([("if-match", '"a", "b"')], InvalidRequest),
        ([("if-match", '"a"'), ("if-match", '"b"')], InvalidRequest),
        ([("if-match", '"a"'), ("if-none-match", "*")], InvalidRequest),
        ([("if-none-match", '"a"')], InvalidRequest),
    ],
)
def test_preconditions_name_exactly_one_version_or_none(headers: list[tuple[str, str]], expected: object) -> None:
    given = Headers(raw=[(name.encode(), value.encode("latin-1")) for name, value in headers])
    if expected is InvalidRequest:
        with pytest.raises(InvalidRequest):
            expected_version(given)
    elif isinstance(expected, HTTPStatus):
        with pytest.raises(Refused) as refused:
            expected_version(given)
        assert refused.value.problem.status == expected
    else:
        assert expected_version(given) == expected


def test_a_get_is_answered_short_when_the_caller_has_the_version() -> None:
    for value, unchanged in (
        ("*", True),
        ('"v"', True),
        ('W/"v"', True),
        ('"a", "v"', True),
        ('"a"', False),
        ("v", False),
    ):
        assert is_unchanged(Headers({"if-none-match": value}), "v") is unchanged
    assert not is_unchanged(Headers({}), "v")


def test_an_idempotency_key_is_a_uuid_bare_or_quoted() -> None:
    assert idempotency_key(Headers({})) is None
    for value in (UUID, UUID.upper(), f'"{UUID}"'):
        assert idempotency_key(Headers({"idempotency-key": value})) == UUID
    for wrong in ("", "x", f"{UUID}, {UUID}", f'"{UUID}'):
        with pytest.raises(InvalidRequest, match="Idempotency-Key"):
            idempotency_key(Headers({"idempotency-key": wrong}))


@pytest.mark.parametrize(
    ("encoded", "plain"),
    [
        ("", ""),
        ("a%2Fb", "a/b"),
        ("%2E%2e", ".."),
        ("%00", "\0"),
        ("%C3%BC+", "ü+"),
        ("%F0%9F%9A%80", "🚀"),
        ("%", None),
    ]
    + [(broken, None) for broken in ("%4", "%zz", "%ff", "%ED%A0%80", "a%2")],
)
def test_ids_in_paths_are_any_unicode_or_refused(encoded: str, plain: str | None) -> None:
    request = Request({"type": "http", "path_params": {"session": encoded}})
    if plain is None:
        with pytest.raises(InvalidRequest):
            id_in_path(request, "session")
    else:
        assert id_in_path(request, "session") == plain


FAILURES = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, FeedbackError)]


@pytest.mark.parametrize("kind", FAILURES)
def test_a_failure_is_503_where_trying_again_helps_and_says_nothing_of_the_server(kind: type[FeedbackError]) -> None:
    """Its sentence holds no path and no address."""
    members: dict[str, Any] = {"path": "/var/lib/secret", "reason": "broken", "session_id": "s", "command_id": UUID}
    error = error_of(Failure(kind.__name__, "Session 's': broken (/var/lib/secret)", members))
    refused = refusal_of_failure(error)
    if kind.disposition is Disposition.RETRYABLE:
        assert refused.problem.status == HTTPStatus.SERVICE_UNAVAILABLE
        assert refused.headers["Retry-After"] == "1"
    if kind is not InvalidRequest and kind is not errors.ResultTimeout:
        assert "secret" not in refused.problem.detail
    assert refused.problem.code == error.code


@pytest.mark.parametrize(
    ("rejection", "status", "members"),
    [
        (results.SessionNotFound(session_id="s"), 404, {"session_id": "s"}),
        (results.TargetNotFound(session_id="s", message_id="m"), 404, {"session_id": "s", "message_id": "m"}),
        (results.VersionConflict(current=None), 412, {"current": None}),
        (results.NoteBlank(), 422, {}),
        (results.NoteTooLarge(max_bytes=1, actual_bytes=2), 413, {"max_bytes": 1, "actual_bytes": 2}),
    ],
)
def test_a_business_error_keeps_code_and_members(
    rejection: results.Rejection, status: int, members: dict[str, Item | None]
) -> None:
    found = problem_of_rejection(rejection)
    assert (found.status, found.code) == (status, rejection.__struct_config__.tag)
    assert {name: getattr(found, name) for name in members} == members


def test_marks_come_back_as_they_were_given() -> None:
    one, another = PartitionId(3, 0), PartitionId(3, 1)
    assert parse_mark(mark_of_one(another, 17)) == Mark(3, of_all=False, sequences={another: 17})
    every = mark_of_all(3, [4, 5])
    assert every is not None
    assert parse_mark(every) == Mark(3, of_all=True, sequences={one: 4, another: 5})
    assert mark_of_all(1, [10**14] * 1000) is None
    for wrong in (
        "",
        "3",
        "3-1",
        "3-1-x",
        "3-1-²",
        "-1-2",
        "3:",
        "3:1.",
        "3:" + "1." * MOST_MARK_CHARS + "1",
        "3-1-" + "9" * 16,
    ):
        assert parse_mark(wrong) is None


def test_a_subscriber_that_does_not_keep_up_loses_what_waited_and_is_told() -> None:
    """Memory is bounded; what it took before was in order. None of these has to wait, so no loop runs."""
    subscription = Subscription("s", most=3)
    events = [delivery(number) for number in range(8)]
    for event in events[:3]:
        subscription.offer(event)
    assert [at_once(subscription.take(60)) for _ in range(3)] == events[:3]
    for event in events[3:]:
        subscription.offer(event)
    assert subscription.is_overrun
    assert subscription.is_empty
    assert at_once(subscription.take(60)) is None


def delivery(sequence: int) -> Delivery:
    place = PartitionId(1, 0)
    return Delivery(
        partition=place, sequence=sequence, session_id="s", name="feedback.put", before=0, revision=1, data=b""
    )


def at_once(coroutine: Coroutine[None, None, T]) -> T:
    """What a coroutine returns that waits for nothing."""
    with pytest.raises(StopIteration) as end:
        coroutine.send(None)
    value: T = end.value.value
    return value
