"""Files appear whole or not at all."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from persistence.atomic_file import make_directories, publish_file, replace_file


def _names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_a_file_is_replaced_whole_and_private(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for data in (b"first", b"second" * 100_000, b""):
        replace_file(path, data)
        assert path.read_bytes() == data
    assert path.stat().st_mode & 0o777 == 0o600
    assert _names(tmp_path) == ["file"]


def test_publishing_never_overwrites(tmp_path: Path) -> None:
    path = tmp_path / "file"
    publish_file(path, b"first")
    with pytest.raises(FileExistsError):
        publish_file(path, b"second")
    assert path.read_bytes() == b"first"
    assert _names(tmp_path) == ["file"]


@pytest.mark.parametrize("write", [replace_file, publish_file])
def test_a_failure_before_the_file_is_named_leaves_nothing(
    tmp_path: Path, write: Callable[[Path, bytes], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space"):
        write(tmp_path / "file", b"data")
    assert _names(tmp_path) == []


def test_replacing_a_directory_fails_and_cleans_up(tmp_path: Path) -> None:
    (tmp_path / "file").mkdir()
    with pytest.raises(OSError, match="directory"):
        replace_file(tmp_path / "file", b"data")
    assert _names(tmp_path) == ["file"]


def test_directories_are_made_private_and_their_names_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each new directory's parent is fsynced before the next one is made."""
    synced: list[str] = []
    fsync = os.fsync

    def recording(descriptor: int) -> None:
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", recording)
    make_directories(tmp_path / "a" / "b")
    make_directories(tmp_path / "a" / "b")
    assert synced == [tmp_path.name, "a"]
    assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o700
