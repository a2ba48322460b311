"""Unit tests reach no server: a socket that one of them opens is a mistake, said at once."""

import socket
from typing import NoReturn

import hypothesis
import pytest

# The same examples in every run, and no clock decides what passes.
hypothesis.settings.register_profile("repeatable", derandomize=True, deadline=None)
hypothesis.settings.load_profile("repeatable")


def _no_sockets(*args: object, **kwargs: object) -> NoReturn:
    raise AssertionError("a unit test opened a socket")


@pytest.fixture(autouse=True)
def no_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test here runs with sockets blocked."""
    monkeypatch.setattr(socket, "socket", _no_sockets)
