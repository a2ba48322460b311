"""What the projector's threads run on through, and what ends them."""

import threading
from collections.abc import Iterator
from contextlib import closing

import pytest
from redis import Redis
from redis.exceptions import AuthenticationError, NoPermissionError, ReadOnlyError, RedisError, ResponseError
from redis.exceptions import ConnectionError as RedisConnectionError

from feedback.connection import connect
from feedback.errors import StoreForeign, StoreUnavailable
from projections.patience import run_patiently


@pytest.fixture
def client(valkey_url: str) -> Iterator[Redis]:
    with closing(connect(valkey_url)) as client:
        yield client


@pytest.mark.parametrize(
    "failure",
    [
        StoreUnavailable("the disk is away"),
        RedisConnectionError("gone"),
        ReadOnlyError("READONLY You can't write against a read only replica."),
        ResponseError("OOM command not allowed"),
        ResponseError("WRONGTYPE Operation against a key holding the wrong kind of value"),
    ],
    ids=lambda failure: f"{type(failure).__name__}-{failure}"[:24],
)
def test_a_passing_failure_is_recovered_from(client: Redis, failure: Exception) -> None:
    """After each failure what was known is given up, and the next step is made."""
    stop = threading.Event()
    calls: list[str] = []

    def step() -> None:
        calls.append("step")
        if calls.count("step") == 3:
            stop.set()
        else:
            raise failure

    run_patiently("test", client, stop, step, lambda: calls.append("recover"))
    assert calls == ["step", "recover", "step", "recover", "step"]


@pytest.mark.parametrize(
    "failure",
    [
        AuthenticationError("WRONGPASS invalid username-password pair"),
        ResponseError("unknown command 'BLMPOP'"),
        ZeroDivisionError("a mistake of ours"),
    ],
    ids=lambda failure: type(failure).__name__,
)
def test_any_other_failure_is_raised(client: Redis, failure: Exception) -> None:
    """Nothing is repeated that no waiting heals."""

    def step() -> None:
        raise failure

    with pytest.raises(type(failure)):
        run_patiently("test", client, threading.Event(), step, lambda: None)


@pytest.mark.parametrize(
    "failure",
    [NoPermissionError("a rule changed by mistake"), StoreForeign("another file in the store's place")],
    ids=lambda failure: type(failure).__name__,
)
def test_what_once_worked_is_waited_for(client: Redis, failure: Exception) -> None:
    """An operator can end it; nobody should have to start the projector again then."""
    stop = threading.Event()
    steps: list[Exception | None] = [None, failure, None]

    def step() -> None:
        now = steps.pop(0)
        if not steps:
            stop.set()
        if now is not None:
            raise now

    run_patiently("test", client, stop, step, lambda: None)
    assert steps == []


def test_a_recovery_that_fails_is_tried_again(client: Redis) -> None:
    """The server may still be away when the recovery looks at it."""
    stop = threading.Event()
    calls: list[str] = []

    def step() -> None:
        calls.append("step")
        if calls.count("step") == 2:
            stop.set()
            return
        raise RedisConnectionError("gone")

    def recover() -> None:
        calls.append("recover")
        raise RedisError("still gone")

    run_patiently("test", client, stop, step, recover)
    assert calls == ["step", "recover", "step"]


def test_stopping_does_not_wait_for_the_next_try(client: Redis) -> None:
    """A thread that waits for a server to come back ends when it is told to."""
    stop = threading.Event()

    def step() -> None:
        stop.set()
        raise RedisConnectionError("gone")

    run_patiently("test", client, stop, step, lambda: None)
