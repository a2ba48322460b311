"""What a run was measured on."""

import os
import platform
import sqlite3
from pathlib import Path

from msgspec import Struct


class Machine(Struct, frozen=True, kw_only=True):
    """Enough to judge figures by, and nothing that names the machine."""

    cores: int
    processor: str
    system: str
    file_system: str
    python: str
    sqlite: str


def machine(directory: Path) -> Machine:
    """This one; `directory` is where the measured files lie."""
    return Machine(
        cores=len(os.sched_getaffinity(0)),
        processor=_processor(),
        system=f"{platform.system()} {platform.release().partition('-')[0]}",
        file_system=_file_system(directory.resolve()),
        python=platform.python_version(),
        sqlite=sqlite3.sqlite_version,
    )


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()


def _file_system(directory: Path) -> str:
    """The type of the file system that `directory` lies on."""
    kinds = {}
    for line in Path("/proc/mounts").read_text(encoding="utf-8").splitlines():
        _, place, kind, *_ = line.split(" ")
        kinds[place] = kind
    return next((kinds[str(place)] for place in (directory, *directory.parents) if str(place) in kinds), "unknown")
