"""Container files that no engine runs here: their commands and variables are checked against the real program."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from app.cli.dispatch import parser_for
from app.cli.serving import HARD_EXIT_MARGIN_S
from app.embedded import DURABLE
from feedback.settings import ENV_PREFIX, load_settings

ROOT = Path(__file__).parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
DOCKERFILE = (ROOT / "Dockerfile").read_text()
OURS = ("worker", "projector")


@pytest.mark.parametrize("name", OURS)
def test_the_commands_are_ones_that_the_program_knows(name: str) -> None:
    """The parser takes them, and the variables make settings that are valid and complete."""
    service = COMPOSE["services"][name]
    parser, _ = parser_for(service["command"])
    arguments = parser.parse_args(service["command"])
    assert arguments.command == name
    settings = load_settings({}, service["environment"])
    for variable in service["environment"]:
        assert variable.startswith(ENV_PREFIX)
        assert hasattr(settings, variable.removeprefix(ENV_PREFIX).lower())


def test_worker_and_projector_share_server_store_and_logs() -> None:
    """Same variables, same volumes, the server is theirs, and they wait until it is healthy."""
    worker, projector = (COMPOSE["services"][name] for name in OURS)
    assert worker["environment"] == projector["environment"]
    assert worker["volumes"] == projector["volumes"]
    settings = load_settings({}, worker["environment"])
    mounts = [volume.rsplit(":", 2 if volume.endswith(":ro") else 1)[1] for volume in worker["volumes"]]
    assert settings.sessions in mounts
    assert str(Path(settings.sidecar_url.removeprefix("sqlite:///")).parent) in mounts
    assert settings.redis_url == "redis://valkey:6379/0"
    for service in (worker, projector):
        assert service["depends_on"] == {"valkey": {"condition": "service_healthy"}}


def test_the_worker_can_be_scaled_and_has_time_to_drain() -> None:
    """`--scale worker=3` needs a service without a fixed name or port."""
    worker = COMPOSE["services"]["worker"]
    assert worker.keys().isdisjoint({"container_name", "ports"})
    grace = float(worker["stop_grace_period"].removesuffix("s"))
    assert grace > load_settings({}, worker["environment"]).shutdown_grace + HARD_EXIT_MARGIN_S


def test_the_server_keeps_what_it_accepted() -> None:
    """The same directives as the embedded one, a data volume, a health check, no open port to the world."""
    valkey = COMPOSE["services"]["valkey"]
    words = valkey["command"][1:]
    directives = dict(zip(words[::2], words[1::2], strict=True))
    assert directives["--maxmemory-policy"] == "noeviction"
    for name, value in DURABLE.items():
        assert directives[f"--{name}"] == value
    assert "valkey:/data" in valkey["volumes"]
    assert valkey["healthcheck"]["test"][0] == "CMD"
    assert all(port.startswith("127.0.0.1:") for port in valkey["ports"])
    assert set(COMPOSE["volumes"]) == {"store", "valkey"}


def test_the_image_installs_the_lock_and_runs_the_console_script_as_nobody_special() -> None:
    """Hashes are required, every package of the project is copied, the entry point is exec form."""
    assert "--require-hashes -r requirements.lock" in DOCKERFILE
    packages = re.search(r"^packages = \[(.*)\]$", (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert packages is not None
    for package in re.findall(r'"(\w+)"', packages[1]):
        assert f"COPY {package} {package}\n" in DOCKERFILE
    assert re.search(r"^USER feedback$", DOCKERFILE, re.MULTILINE)
    entry = re.search(r"^ENTRYPOINT (.*)$", DOCKERFILE, re.MULTILINE)
    assert entry is not None
    assert entry[1] == '["feedback"]'


def test_the_makefile_builds_what_the_lock_says() -> None:
    """`make up` and `make test` install the exact versions, then the project without dependencies."""
    makefile = (ROOT / "Makefile").read_text()
    installs = [shlex.split(line) for line in makefile.splitlines() if " pip install " in line]
    assert installs[0][-3:] == ["--require-hashes", "-r", "requirements.lock"]
    assert installs[1][-4:] == ["--no-deps", "--no-build-isolation", "-e", "."]
