"""Small C libraries of the tests, put before the C library of processes that are started with `variables`."""

import atexit
import mmap
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path

_SOURCES = Path(__file__).parent


def compiler() -> str | None:
    """A C compiler, if there is one."""
    return shutil.which("cc") or shutil.which("gcc")


@cache
def build(name: str) -> Path:
    """`tests/<name>.c` as a library, one for all tests of this process; it is removed with it."""
    found = compiler()
    assert found is not None, "no C compiler"
    home = tempfile.TemporaryDirectory(prefix="feedback-tests-")
    atexit.register(home.cleanup)
    library = Path(home.name, f"{name}.so")
    subprocess.run([found, "-shared", "-fPIC", "-O1", "-o", library, _SOURCES / f"{name}.c", "-ldl"], check=True)
    return library


def together(*parts: Mapping[str, str]) -> dict[str, str]:
    """The variables of several libraries at once."""
    libraries = ":".join(part["LD_PRELOAD"] for part in parts)
    return {name: value for part in parts for name, value in part.items()} | {"LD_PRELOAD": libraries}


class SteppedClock:
    """The wall clock of the processes that are started with these `variables`: see `stepped_clock.c`."""

    def __init__(self, library: Path, home: Path, name: str) -> None:
        """`library` is built from `stepped_clock`; the clock's file is made in `home`."""
        path = home / f"{name}.clock"
        path.write_bytes(bytes(8))
        with path.open("r+b") as file:
            self._offset = mmap.mmap(file.fileno(), 8)
        self.variables: Mapping[str, str] = {"LD_PRELOAD": str(library), "STEPPED_CLOCK": str(path)}

    def step_to(self, ahead_ms: int) -> None:
        """From now on the clock is so much ahead of the real one, or behind it; milliseconds."""
        self._offset[:] = struct.pack("=q", ahead_ms)

    def close(self) -> None:
        """The processes keep it as it is."""
        self._offset.close()
