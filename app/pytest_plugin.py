"""Pytest fixtures for developers of hosts: `pip install session-feedback[testing]` is all it takes.

def test_thumbs_up(feedback_quick):
    session = feedback_quick.write_session("Forty-two.")
    with feedback_quick.client() as client:
        assert client.put(session.session_id, session.answers[0], "positive").ok
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from app.testing import RunningSystem

# pytest loads this module in every run, also where no test wants a system: so the imports wait for the first fixture.


@pytest.fixture(scope="session")
def feedback_system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningSystem]:
    """A real system (embedded server, worker process, projector process), shared by all tests of this run.

    Sessions keep tests apart: `write_session` makes up an id of its own each time.
    """
    from app.testing import running_system  # noqa: PLC0415

    with running_system(tmp_path_factory.mktemp("feedback")) as system:
        yield system


@pytest.fixture
def feedback_quick(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningSystem]:
    """A new system without server and processes for this test alone: the same code on fakeredis, in threads."""
    try:
        from app.quick import quick_system  # noqa: PLC0415
    except ModuleNotFoundError as error:
        from feedback.errors import SettingsInvalid  # noqa: PLC0415

        reason = f"`feedback_quick` needs {error.name}: pip install 'session-feedback[testing]'"
        raise SettingsInvalid(reason) from None

    with quick_system(tmp_path_factory.mktemp("feedback")) as system:
        yield system
