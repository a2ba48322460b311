"""The program as its users run it: the console script, real processes, the variables of a clean shell."""

import json
import os
import select
import signal
import subprocess
import sysconfig
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from tests.preforked import preforked

FEEDBACK = str(Path(sysconfig.get_path("scripts")) / "feedback")
_PATIENCE_S = 60.0


class Answer(NamedTuple):
    """What one command left behind."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """stdout, which must be one JSON document and a newline."""
        assert self.out.endswith("\n")
        assert self.out.count("\n") == 1
        return json.loads(self.out)


def environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's variables without settings of ours, and `more`."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("FEEDBACK_")}
    return clean | {"COLUMNS": "200"} | dict(more or {})


def feedback(*words: str | bytes | Path, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> Answer:
    """Run one command to its end, as a process that is forked, and not loaded anew where that is the same."""
    variables = environment(env)
    if (forking := preforked(variables)) is not None:
        spelled = [os.fsdecode(word) for word in words]
        code, out, err = forking.run("app.cli", spelled, variables, cwd or Path.cwd(), _PATIENCE_S)
    else:
        command = [FEEDBACK, *words]
        done = subprocess.run(command, env=variables, cwd=cwd, capture_output=True, timeout=_PATIENCE_S, check=False)
        code, out, err = done.returncode, done.stdout, done.stderr
    return Answer(code, out.decode(), err.decode(errors="surrogateescape"))


class Up:
    """A `feedback up` process that serves; a context manager that leaves nothing behind."""

    def __init__(self, data: Path, *words: str | Path, env: Mapping[str, str] | None = None) -> None:
        """Start it and wait until it says that it serves. Its stderr is a file beside `data`."""
        self.data = data
        self._errors = data.with_suffix(".stderr")
        with self._errors.open("ab") as errors:
            self.process = subprocess.Popen(
                [FEEDBACK, "up", "--json", "--data", data, *words],
                env=environment(env),
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self.process.wait(_PATIENCE_S)
        assert line, self.errors
        self.ready: dict[str, Any] = json.loads(line)
        self.pids: dict[str, int] = self.ready["pids"]

    @property
    def url(self) -> str:
        """The server that it serves from."""
        return str(self.ready["redisUrl"])

    @property
    def errors(self) -> str:
        """What it logged."""
        return self._errors.read_text()

    def feedback(self, *words: str | bytes | Path) -> Answer:
        """Run a command against it, as found by `--data`."""
        return feedback(*words, "--data", self.data)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self) -> int:
        """Its exit code, once it ended."""
        code = self.process.wait(_PATIENCE_S)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code

    def stop(self) -> int:
        """SIGTERM, and the exit code."""
        self.signal(signal.SIGTERM)
        return self.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.signal(signal.SIGTERM)
        self.wait()


def wait_for_end(pids: Iterable[int]) -> None:
    """Block until none of these processes, which need not be children, runs any more."""
    for pid in pids:
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            ended, _, _ = select.select([descriptor], [], [], _PATIENCE_S)
            assert ended, f"process {pid} still runs"
        finally:
            os.close(descriptor)


def runs(pid: int) -> bool:
    """Whether the process is there and not merely waiting to be buried."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
