"""docker-compose.yml without an engine: its services as processes of this machine.

What differs from containers: hosts are the loopback, ports are free ones, and what an image or a volume would hold
lies in a directory of the test's. Commands, variables, secrets and health checks are the file's own.
"""

import os
import re
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from app.embedded import server_binary
from app.processes import Child
from feedback.settings import CONFIG_VARIABLE
from tests.acceptance.command_line import FEEDBACK, environment
from tests.ports import free_ports

ROOT = Path(__file__).parents[1]
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
_SECRETS = ROOT / "deploy/compose/make_secrets.py"
_PROBE_TIMEOUT_S = 1
_CLI = Path(__file__).with_name("valkey_cli.py")


class Composed:
    """Starts services one by one; `stop` ends them all."""

    def __init__(self, home: Path) -> None:
        """Make the secrets, by the script that makes them."""
        self.home = home
        self.secrets = home / "secrets"
        self.running: dict[str, Child] = {}
        # All at once: one that is not used yet could be given out again.
        self._free = free_ports(16)
        self._ports: dict[str, int] = {}
        self._more: dict[str, str] = {}
        subprocess.run([sys.executable, "-I", _SECRETS, self.secrets], check=True, capture_output=True)
        programs = home / "bin"
        programs.mkdir()
        for name in ("valkey-server", "valkey-sentinel"):
            (programs / name).symlink_to(server_binary())
        (programs / "python").symlink_to(sys.executable)
        if shutil.which("valkey-cli") is None:
            cli = programs / "valkey-cli"
            cli.write_text(f'#!/bin/sh\nexec {sys.executable} {_CLI} "$@"\n')
            cli.chmod(stat.S_IRWXU)
        self._path = f"{programs}:{os.environ['PATH']}"

    def port(self, service: str) -> int:
        """The port that stands for the one that the service's processes listen on in their container."""
        if service not in self._ports:
            self._ports[service] = self._free.pop()
        return self._ports[service]

    def substitute(self, text: str, by: str) -> None:
        """Write `by` wherever a secret or a variable has `text`."""
        self._more[text] = by

    def start(self, service: str, name: str = "", wrap: tuple[str, ...] = ()) -> Child:
        """One process of a service, under a name of its own when there are several. `wrap` goes before its command."""
        name = name or service
        directory = self.home / name
        directory.mkdir(exist_ok=True)
        written = SERVICES[service]
        for secret in written.get("secrets", ()):
            found = next(path for path in self.secrets.iterdir() if path.stem == secret)
            (directory / secret).write_text(self._here(found.read_text(), name, directory))
        command = [self._here(word, name, directory) for word in written["command"]]
        if command[0] != "sh":
            command = [FEEDBACK, *command]
        child = Child(
            name,
            [*wrap, shutil.which(command[0], path=self._path) or command[0], *command[1:]],
            log=directory / "log",
            environ=environment(self.variables(service, name) | {"PATH": self._path}),
        )
        child.start()
        self.running[name] = child
        return child

    def variables(self, service: str, name: str = "") -> dict[str, str]:
        """The service's environment."""
        name = name or service
        directory = self.home / name
        written: Mapping[str, str] = SERVICES[service].get("environment", {})
        found = {variable: self._here(value, name, directory) for variable, value in written.items()}
        if "FEEDBACK_METRICS_PORT" in found:
            found |= {"FEEDBACK_METRICS_PORT": str(self.port(name)), "FEEDBACK_METRICS_HOST": "127.0.0.1"}
        if CONFIG_VARIABLE in found:
            found[CONFIG_VARIABLE] = str(directory / Path(written[CONFIG_VARIABLE]).name)
        return found

    def is_healthy(self, service: str, name: str = "") -> bool:
        """What the service's health check says of one of its processes."""
        name = name or service
        kind, *command = SERVICES[service]["healthcheck"]["test"]
        if kind == "CMD-SHELL":
            command = ["sh", "-c", *command]
        port = str(self.port(name))
        words = [
            word.replace("9464", port)
            .replace("timeout=4", f"timeout={_PROBE_TIMEOUT_S}")
            .replace("-p 26379", f"-p {port}")
            .replace("valkey-cli --user", f"valkey-cli -p {port} --user")
            for word in command
        ]
        program = shutil.which(words[0], path=self._path)
        assert program is not None, words
        done = subprocess.run(
            [program, *words[1:]], env={"PATH": self._path}, capture_output=True, check=False, timeout=30
        )
        return done.returncode == 0

    def stop(self) -> None:
        """End everything; what is frozen is thawed first."""
        for child in reversed(self.running.values()):
            if child.pid is not None and child.poll() is None:
                os.kill(child.pid, signal.SIGCONT)
            child.stop(20)

    def _here(self, text: str, name: str, directory: Path) -> str:
        text = re.sub(r"(?<![\w.])(/data|/run/secrets)\b", str(directory), text)
        text = text.replace("port 6379", f"bind 127.0.0.1\nport {self.port(name)}")
        text = text.replace("port 26379", f"bind 127.0.0.1\nport {self.port(name)}")
        for server in ("valkey-1", "valkey-2"):
            text = text.replace(f"{server} 6379", f"127.0.0.1 {self.port(server)}")
            text = text.replace(f"replica-announce-ip {server}", "replica-announce-ip 127.0.0.1")
        for number in (1, 2, 3):
            text = text.replace(f"sentinel-{number}:26379", f"127.0.0.1:{self.port(f'sentinel-{number}')}")
        for old, new in self._more.items():
            text = text.replace(old, new)
        return text
