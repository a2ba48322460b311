"""What `doctor` says about a server and a disk that are in a bad way."""

from pathlib import Path

import msgspec
import pytest

from app import diagnosis
from app.diagnosis import Finding, diagnose, server_findings
from app.inspection import ServerFacts
from app.testing import settings_in_home
from persistence.sidecar import SqliteStore, open_store, postgres_url
from persistence.sidecar.store import StoreHealth
from persistence.sidecar.transfer import move

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


@pytest.mark.parametrize(
    ("told", "detail", "action"),
    [
        ("fsync is off: a crash loses ratings; turn it on", "fsync is off: a crash loses ratings", "turn it on"),
        ("partition 1-0: record 2 lies past the last sequence 1", None, "repair or restore the store"),
        ("standby 'b' is 99 MiB behind", None, "mend what it names"),
    ],
)
def test_each_ill_of_a_store_has_its_own_remedy(
    told: str, detail: str | None, action: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that the store itself says, or one for its kind: only a damaged store is to be restored."""
    settings = settings_in_home(tmp_path)
    open_store(settings.sidecar_url).close()
    monkeypatch.setattr(
        SqliteStore, "health", lambda _: StoreHealth("SQLite", str(tmp_path / "x"), 1, 0, 0, 0, (told,))
    )
    (wrong,) = (one for one in diagnose(settings, tmp_path) if one.check == "store" and not one.ok)
    assert (wrong.detail, str(wrong.action)[: len(action)]) == (detail or told, action)


def test_a_store_that_was_moved_says_how_to_name_the_other(tmp_path: Path) -> None:
    settings = settings_in_home(tmp_path)
    open_store(settings.sidecar_url).close()
    target = f"sqlite:///{tmp_path / 'elsewhere'}"
    move(settings.sidecar_url, target, lambda _: None)
    (wrong,) = (one for one in diagnose(settings, tmp_path) if one.check == "store")
    assert wrong.detail.endswith(f"was moved to {target}")
    assert wrong.action == "name that one by --sidecar-url or FEEDBACK_SIDECAR_URL"


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("postgresql://ada:s3cr3t@h:5433,i/d?sslmode=require", "postgresql://ada@h:5433,i/d"),
        ("postgresql://ada@[::1]:5432/d", "postgresql://ada@[::1]:5432/d"),
        ("postgresql:///d?host=/run/pg&user=ada", "postgresql://ada@%2Frun%2Fpg/d"),
    ],
)
def test_the_place_that_errors_name_is_a_url_of_the_same_store(url: str, place: str) -> None:
    """Of several hosts or a socket as well: where a store was moved to can be copied from the message."""
    assert postgres_url.location(postgres_url.parse(url)) == place
    again = postgres_url.parse(place)
    assert {name: again[name] for name in ("user", "host", "dbname")} == {
        name: value for name, value in postgres_url.parse(url).items() if name in ("user", "host", "dbname")
    }
