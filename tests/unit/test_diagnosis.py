"""What `doctor` says about a server and a disk that are in a bad way."""

from pathlib import Path

import msgspec
import pytest

from app import diagnosis
from app.diagnosis import Finding, diagnose, server_findings
from app.inspection import ServerFacts
from app.testing import settings_in_home
from persistence.sidecar import open_store

WELL = ServerFacts(
    name="valkey",
    version="9.1.2",
    append_only=True,
    append_only_fails=False,
    maxmemory_policy="noeviction",
    used_memory=1,
)


@pytest.mark.parametrize(
    ("ill", "check", "action"),
    [
        ({"version": "7.2.4"}, "server", "upgrade it"),
        ({"append_only": False}, "append-only file", "appendonly yes"),
        ({"append_only_fails": True}, "append-only file", "make room on the server's disk"),
        ({"maxmemory_policy": "allkeys-lru"}, "eviction", "noeviction"),
    ],
)
def test_each_ill_of_a_server_has_its_remedy(ill: dict[str, object], check: str, action: str) -> None:
    """And nothing else is found wrong."""
    assert all(finding.ok for finding in server_findings(WELL))
    (wrong,) = (one for one in server_findings(msgspec.structs.replace(WELL, **ill)) if not one.ok)
    assert wrong.check == check
    assert action in str(wrong.action)


def test_a_disk_that_is_nearly_full_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store is healthy, and soon cannot grow any more."""
    settings = settings_in_home(tmp_path)
    open_store(settings.sidecar_url).close()

    def wrong() -> list[Finding]:
        return [one for one in diagnose(settings, tmp_path) if one.check == "store" and not one.ok]

    assert wrong() == []
    monkeypatch.setattr(diagnosis, "LITTLE_ROOM_BYTES", 2**80)
    (little,) = wrong()
    assert "MiB left on its disk" in little.detail
    assert "make room" in str(little.action)
