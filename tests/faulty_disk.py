"""A disk that fails under running processes, and comes back: see `faulty_disk.c`."""

import errno
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.preloaded import build, compiler

HALF = -1
"""Instead of an error number: reads and writes do half of what is asked."""
POWER_CUT, ONCE, KILLED = 1000, 2000, 3000
"""With n added, instead of an error number: at the nth such call the power is cut, it alone fails with EIO, or the
process is killed."""


class FaultyDisk:
    """Processes started with these `variables` meet the errors that are told here, until it `works` again."""

    def __init__(self, home: Path) -> None:
        """Keeps its rules in `home`; skips the test where there is no C compiler."""
        if compiler() is None:
            pytest.skip("no C compiler: calls to the disk cannot be made to fail here")
        self._rules = home / "rules"
        self.variables: Mapping[str, str] = {"LD_PRELOAD": str(build("faulty_disk")), "FAULTY_DISK": str(self._rules)}

    def fails(self, calls: str, error: int, *parts: str) -> None:
        """From now on calls (`open`, `read`, `write`, `sync`, or a name) fail on paths with one of these parts."""
        text = "".join(f"{call} {error} {part}\n" for call in calls.split() for part in parts)
        fresh = self._rules.with_suffix(".new")
        fresh.write_text(text)
        fresh.replace(self._rules)

    def works(self) -> None:
        """From now on nothing fails."""
        self._rules.unlink(missing_ok=True)


class SmallDisk:
    """A file system of its own, of so many bytes, that can be filled up."""

    def __init__(self, path: Path, size: int) -> None:
        """Skips the test where nothing may be mounted."""
        self.path = path
        path.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={size},mode=0700", "tmpfs", str(path)]
        if shutil.which("mount") is None or subprocess.run(command, check=False, capture_output=True).returncode != 0:
            pytest.skip("no right to mount a small file system")

    def fill(self) -> None:
        """Leave no room at all."""
        with (self.path / "ballast").open("ab", buffering=0) as ballast:
            try:
                while ballast.write(bytes(4096)):
                    pass
            except OSError as error:
                assert error.errno == errno.ENOSPC, error

    def make_room(self) -> None:
        (self.path / "ballast").unlink()

    def unmount(self) -> None:
        """What still uses it keeps it until it ends."""
        subprocess.run(["umount", "--lazy", os.fspath(self.path)], check=True)


class MortalDisk:
    """A file system whose power can be cut: what was not synced is lost then, as on a machine."""

    def __init__(self, home: Path) -> None:
        """Skips the test where none can be made or mounted."""
        self.path, self._image = home / "mortal", home / "image"
        self.path.mkdir()
        with self._image.open("wb") as image:
            image.truncate(16 * 2**20)
        if shutil.which("mkfs.ext4") is None:
            pytest.skip("no mkfs.ext4")
        subprocess.run(["mkfs.ext4", "-q", "-F", self._image], check=True)
        if not self.mount():
            pytest.skip("no right to mount a loop device")

    def mount(self) -> bool:
        """Bring it back after a power cut, or for the first time."""
        command = ["mount", "-o", "loop", str(self._image), str(self.path)]
        return subprocess.run(command, check=False, capture_output=True).returncode == 0

    def unmount(self) -> None:
        subprocess.run(["umount", self.path], check=True)
