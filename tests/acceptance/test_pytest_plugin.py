"""The fixtures for developers of hosts, used as such a developer would: installed, in one line."""

import asyncio
import sys
from typing import TYPE_CHECKING

import msgspec
import pytest

from feedback import Item, Ok, Rejected, SessionNotFound
from feedback.errors import SettingsInvalid

if TYPE_CHECKING:
    from app.testing import RunningSystem


@pytest.mark.parametrize("fixture", ["feedback_system", "feedback_quick"])
@pytest.mark.process
def test_both_systems_keep_the_contract(fixture: str, request: pytest.FixtureRequest) -> None:
    """Put, list, change and remove, on a real server as without one; what one wrote is read at once."""
    system: RunningSystem = request.getfixturevalue(fixture)
    session, (first, second) = system.write_session("Forty-two.", "Sorry, forty-three.")
    with system.client() as client:
        stored = client.put(session, first, "positive", note="so long")
        assert isinstance(stored, Ok)
        assert isinstance(stored.value, Item)
        conflict = client.put(session, first, "negative")
        assert isinstance(conflict, Rejected)
        changed = client.put(session, second, "negative")
        listed = client.list(session, at_least=changed.revision)
        assert [item["messageId"] for item in as_members(listed)] == [first, second]
        assert client.delete(session, first, if_version=stored.value.version).ok
        assert [item["messageId"] for item in as_members(client.list(session))] == [second]
        unknown = client.list("no such Session")
        assert isinstance(unknown, Rejected)
        assert unknown.error == SessionNotFound(session_id="no such Session")


@pytest.mark.process
def test_the_real_system_serves_asyncio_hosts(feedback_system: "RunningSystem") -> None:
    session, (answer,) = feedback_system.write_session()

    async def rate() -> bool:
        async with feedback_system.async_client() as client:
            return (await client.put(session, answer, "positive")).ok

    assert asyncio.run(rate())


@pytest.mark.parametrize("turn", [1, 2])
def test_quick_systems_share_nothing(feedback_quick: "RunningSystem", turn: int) -> None:
    """Each test has its own: what the first one rated is not rated in the second."""
    session, (answer,) = feedback_quick.write_session(session_id="the same in both")
    with feedback_quick.client() as client:
        assert client.put(session, answer, "positive", if_version=None).ok


def test_without_its_extra_the_quick_fixture_says_what_to_install(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "app.quick", raising=False)
    monkeypatch.setitem(sys.modules, "fakeredis", None)
    with pytest.raises(SettingsInvalid, match=r"needs fakeredis: pip install 'session-feedback\[testing\]'"):
        request.getfixturevalue("feedback_quick")


def as_members(result: Ok | Rejected) -> list[dict[str, str]]:
    members: list[dict[str, str]] = msgspec.to_builtins(result)["value"]["items"]
    return members
