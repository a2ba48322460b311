"""README's five minutes, as a stranger would type them: every command, and its output to the letter."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.acceptance.command_line import FEEDBACK, environment

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
HOME = "/home/ada/session-feedback"
START, ACTIVATE = "make up", ". .venv/bin/activate"
SETTING_UP = "Setting up .venv: a minute or two and 700 MB, tests and tools included, the first time.\n"

UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}")
# What differs from one run to the next, and what is put in its place on both sides.
VOLATILE = (
    (re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ$", re.MULTILINE), "TIME"),
    (re.compile(r'At":\d{13}'), 'At":TIME'),
    (re.compile(r"127\.0\.0\.1:\d+"), "ADDRESS"),
    (re.compile(r"(worker|projector|server) \d+"), r"\1 PID"),
    (re.compile(r"(valkey|SQLite) \d+\.\d+\.\d+"), r"\1 VERSION"),
)


class Typed(NamedTuple):
    """One command of the README, and what it says comes out."""

    command: str
    output: str


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def typed() -> list[Typed]:
    parts = [part for block in blocks("console") for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]]
    return [Typed(*part.split("\n", 1)) for part in parts]


def stable(text: str, home: Path | None = None) -> str:
    """Text without what differs from run to run."""
    text = text.replace(str(home), HOME) if home else text
    for pattern, placeholder in VOLATILE:
        text = pattern.sub(placeholder, text)
    return UUID.sub("UUID", text)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory in which `feedback up` runs, as `make up` starts it; its greeting is in `greeting`."""
    directory = tmp_path_factory.mktemp("clone")
    env = environment({"PATH": os.defpath})
    up = subprocess.Popen([FEEDBACK, "up"], cwd=directory, env=env, stdout=subprocess.PIPE, text=True)
    with up:
        assert up.stdout is not None
        greeting = [up.stdout.readline() for _ in range(typed()[0].output.count("\n") - 1)]
        (directory / "greeting").write_text("".join(greeting).replace(FEEDBACK, ".venv/bin/feedback"))
        yield directory
        up.terminate()
        assert up.stdout.read() == "stopped; all data is kept\n"
    assert up.returncode == 0


def shell() -> Mapping[str, str]:
    """A shell in which the virtual environment is active."""
    return environment({"PATH": f"{Path(FEEDBACK).parent}{os.pathsep}{os.environ['PATH']}"})


def test_make_up_greets_as_the_readme_says(home: Path) -> None:
    """And `make up` is nothing but that command, after setting up what it needs."""
    command, output = typed()[0]
    assert (command, output[: len(SETTING_UP)]) == (START, SETTING_UP)
    assert stable((home / "greeting").read_text(), home) == stable(output.removeprefix(SETTING_UP))
    makefile = (ROOT / "Makefile").read_text().replace("$(VENV)", ".venv")
    assert SETTING_UP.rstrip() in makefile
    assert '$(BIN)/feedback up --data "$(DATA)"' in makefile


def test_every_command_prints_what_the_readme_says_and_the_python_example_runs(home: Path) -> None:
    """In order, in one directory; a version of the README stands for the one that really came."""
    versions: dict[str, str] = {}
    for written, output in typed():
        if written in (START, ACTIVATE):
            continue
        command = written
        for in_readme, real in versions.items():
            command = command.replace(in_readme, real)
        done = subprocess.run(
            ["bash", "-c", command], cwd=home, env=shell(), capture_output=True, text=True, timeout=60, check=False
        )
        assert (stable(done.stdout, home), done.stderr) == (stable(output), ""), command
        versions |= dict(zip(UUID.findall(output), UUID.findall(done.stdout), strict=True))

    example, _ = blocks("python")
    program = [sys.executable, "-c", example]
    done = subprocess.run(program, cwd=home, env=shell(), capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("stored positive\n['answer-2', 'answer-1', 'answer-3']\n", "")


def test_the_pytest_example_runs(tmp_path: Path) -> None:
    """The plugin is found without a line of configuration."""
    _, example = blocks("python")
    (tmp_path / "test_example.py").write_text(example)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, env=shell(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout


def test_every_path_that_the_readme_names_is_there() -> None:
    """Guarantees point at the file that keeps them and the test that proves them."""
    paths = set(re.findall(r"`((?:[a-z_]+/)+[a-z_]*(?:\.[a-z]+)?)`", README))
    assert len(paths) > 20
    assert [path for path in sorted(paths) if not (ROOT / path).exists()] == []


def test_every_link_of_a_page_leads_to_a_file_and_a_heading_that_are_there() -> None:
    """Of README and all pages under `docs/`, as a reader of the repository follows them."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    links = [(page, link) for page in pages for link in re.findall(r"\]\(([^):]+)\)", page.read_text(encoding="utf-8"))]
    assert len(links) > 50
    broken = []
    for page, link in links:
        path, _, anchor = link.partition("#")
        target = (page.parent / path) if path else page
        if not target.exists() or (anchor and anchor not in headings(target)):
            broken.append((page.name, link))
    assert broken == []


def headings(page: Path) -> set[str]:
    """The anchors of a page: headings in lower case, without punctuation, hyphens for spaces."""
    lines = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", line.lower()).replace(" ", "-") for line in lines}
