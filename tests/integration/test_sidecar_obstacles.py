"""A store that cannot be opened says what is in its way, where SQLite only says that it could not."""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from feedback.errors import StoreUnavailable
from persistence.sidecar import SqliteStore
from tests.integration.sidecar_children import child, line_of


def refusal(path: Path) -> str:
    with pytest.raises(StoreUnavailable) as caught:
        SqliteStore(path)
    return str(caught.value)


def test_a_directory_that_is_missing_or_none(tmp_path: Path) -> None:
    assert f"its directory {tmp_path}/nowhere: No such file or directory" in refusal(tmp_path / "nowhere/store")
    (tmp_path / "file").touch()
    assert f"{tmp_path}/file is no directory" in refusal(tmp_path / "file/store")
    assert "it is no regular file" in refusal(tmp_path)


def test_a_path_that_is_too_long(tmp_path: Path) -> None:
    """Of a name the system says so; of a whole path SQLite has a bound of its own."""
    assert "File name too long" in refusal(tmp_path / ("n" * 300))
    deep = tmp_path
    while len(str(deep)) < 440:
        deep /= "d" * 50
    deep.mkdir(parents=True)
    longest = deep / ("n" * (504 - len(str(deep)) - 1))
    SqliteStore(longest).close()
    assert "its path is too long: 505 bytes, of which SQLite takes 504" in refusal(
        longest.with_name(longest.name + "n")
    )


SCRIPT = """
import os, resource, sys
from pathlib import Path
from feedback.errors import StoreUnavailable
from persistence.sidecar import SqliteStore
if sys.argv[2] == "few files":
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) - 1,) * 2)
elif os.getuid() == 0:
    os.setgroups([])
    os.setuid(65534)
try:
    SqliteStore(Path(sys.argv[1]))
except StoreUnavailable as error:
    print(error, flush=True)
"""


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that other users reach; a test's own ones are private."""
    with TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


def said(path: Path, limit: str) -> str:
    with child(SCRIPT, path, limit) as process:
        return line_of(process)


@pytest.mark.process
def test_missing_rights(place: Path) -> None:
    """To the directory, then to the file."""
    place.chmod(0o555)
    assert f"no right to make files in {place}" in said(place / "store", "nobody")
    place.chmod(0o777)
    SqliteStore(place / "store").close()
    (place / "store").chmod(0)
    assert "no right to read and write it" in said(place / "store", "nobody")


@pytest.mark.process
def test_too_many_open_files(tmp_path: Path) -> None:
    assert "Too many open files" in said(tmp_path / "store", "few files")
