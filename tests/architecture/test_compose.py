"""Container files that no engine runs here: their commands and variables are checked against the real program.

`tests/acceptance/test_compose_services.py` runs them, health checks included.
"""

import re
import shlex
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from app.cli.dispatch import parser_for
from app.cli.serving import HARD_EXIT_MARGIN_S
from app.embedded import DURABLE
from feedback.settings import CONFIG_VARIABLE, ENV_PREFIX, load_settings

ROOT = Path(__file__).parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
ONE = ("worker", "projector")
MANY = ("workers", "projectors", "agent", "gateway")
IMAGE_ROOT = "/var/lib/feedback"


@pytest.mark.parametrize("name", [*ONE, *MANY])
def test_the_commands_are_ones_that_the_program_knows(name: str) -> None:
    """The parser takes them, and the variables make settings that are valid and complete."""
    service = SERVICES[name]
    parser, _ = parser_for(service["command"])
    arguments = parser.parse_args(service["command"])
    assert name.startswith(arguments.command)
    environment = dict(service["environment"])
    secret = environment.pop(CONFIG_VARIABLE, None)
    assert secret is None or service["secrets"] == [secret.removeprefix("/run/secrets/")]
    settings = load_settings({"max_note_bytes": 1}, environment)
    for variable in environment:
        assert variable.startswith(ENV_PREFIX)
        assert hasattr(settings, variable.removeprefix(ENV_PREFIX).lower())
    assert settings.metrics_port == 9464, "where the health check asks"
    assert name == "agent" or "FEEDBACK_MAX_NOTE_BYTES" in environment


def test_worker_and_projector_share_server_store_and_logs() -> None:
    """Same variables, same volumes, the server is theirs, and they wait until it is healthy."""
    worker, projector = (SERVICES[name] for name in ONE)
    assert worker["environment"] == projector["environment"]
    assert worker["volumes"] == projector["volumes"]
    settings = load_settings({}, worker["environment"])
    mounts = [volume.rsplit(":", 2 if volume.endswith(":ro") else 1)[1] for volume in worker["volumes"]]
    assert settings.sessions in mounts
    assert str(Path(settings.sidecar_url.removeprefix("sqlite:///")).parent) in mounts
    assert settings.redis_url == "redis://valkey:6379/0"
    for service in (worker, projector):
        assert service["depends_on"] == {"valkey": {"condition": "service_healthy"}}


def test_one_machine_is_what_runs_when_nobody_says() -> None:
    """Each service is of one profile and waits for services of its own; `.env` names the default."""
    assert (ROOT / ".env").read_text().splitlines()[-1] == "COMPOSE_PROFILES=one"
    profiles = {name: service["profiles"] for name, service in SERVICES.items()}
    assert {name for name, profile in profiles.items() if profile == ["one"]} == {"valkey", *ONE}
    assert {tuple(profile) for profile in profiles.values()} == {("one",), ("many",)}
    for name, service in SERVICES.items():
        for other, condition in service.get("depends_on", {}).items():
            assert profiles[other] == profiles[name]
            assert condition == {"condition": "service_healthy"}
            assert "healthcheck" in SERVICES[other]
    assert SERVICES["projectors"]["deploy"] == {"replicas": 2}


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_may_do_no_more_than_it_needs(name: str) -> None:
    """Nobody is root, gains rights, or writes elsewhere than to volumes and /tmp; nothing is open to the world."""
    service = SERVICES[name]
    assert service["user"] not in ("", "root", "0", "0:0")
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert "/tmp:mode=1777" in service["tmpfs"]
    assert service.keys().isdisjoint({"privileged", "cap_add", "network_mode", "pid", "container_name", "env_file"})
    assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))
    assert service["healthcheck"]["test"][0] in ("CMD", "CMD-SHELL")
    volumes = {volume.partition(":")[0] for volume in service.get("volumes", ())}
    assert {volume for volume in volumes if not volume.startswith("${SESSIONS_ROOT")} <= COMPOSE["volumes"].keys()


@pytest.mark.parametrize("name", ["worker", "workers", "projectors"])
def test_what_is_scaled_has_no_fixed_port_and_time_to_drain(name: str) -> None:
    """`--scale worker=3` needs a service without a fixed name or port."""
    service = SERVICES[name]
    assert service.keys().isdisjoint({"container_name", "ports"})
    grace = float(service["stop_grace_period"].removesuffix("s"))
    settings = load_settings({"max_note_bytes": 1}, service["environment"] | {CONFIG_VARIABLE: ""})
    assert grace > settings.shutdown_grace + HARD_EXIT_MARGIN_S


def test_the_server_keeps_what_it_accepted() -> None:
    """The same directives as the embedded one, a data volume."""
    valkey = SERVICES["valkey"]
    words = valkey["command"][1:]
    directives = dict(zip(words[::2], words[1::2], strict=True))
    assert directives["--maxmemory-policy"] == "noeviction"
    for name, value in DURABLE.items():
        assert directives[f"--{name}"] == value
    assert "valkey:/data" in valkey["volumes"]


def test_no_secret_is_in_the_repository() -> None:
    """Passwords come from files that a script makes, that git and the image leave out."""
    used = {secret for service in SERVICES.values() for secret in service.get("secrets", ())}
    assert used == COMPOSE["secrets"].keys()
    for secret in COMPOSE["secrets"].values():
        assert secret["file"].startswith("deploy/compose/secrets/")
    assert "deploy/compose/secrets/" in (ROOT / ".gitignore").read_text().splitlines()
    for service in SERVICES.values():
        for variable, value in service.get("environment", {}).items():
            assert "PASSWORD" not in variable or variable.endswith("_FILE")
            assert "@" not in value


def test_the_image_installs_the_lock_and_runs_the_console_script_as_nobody_special() -> None:
    """Hashes are required, every package of the project is copied, the entry point is exec form."""
    build, last = re.split(r"^FROM python:3\.11-slim$", DOCKERFILE.replace(" AS build", ""), flags=re.MULTILINE)[1:]
    assert "--require-hashes -r requirements.lock" in build
    installs = re.findall(r"pip [^&]*? ?install .*", build)
    assert installs
    assert all("--no-index" in install for install in installs), "after the lock nothing is fetched"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert ignored[1] == "*"
    for package in packages:
        assert f"COPY {package} {package}\n" in build
        assert f"!{package}" in ignored
    extras = re.search(r"'session-feedback\[(.*)\]'", build)
    assert extras is not None
    assert set(extras[1].split(",")) == project["project"]["optional-dependencies"].keys() - {"testing", "dev"}
    assert re.findall(r"^USER (.*)$", last, re.MULTILINE) == ["10001:10001"]
    assert re.findall(r"^COPY (.*)$", last, re.MULTILINE) == ["--from=build /venv /venv"]
    assert re.findall(r"^ENTRYPOINT (.*)$", last, re.MULTILINE) == ['["feedback"]']
    assert not re.search(r"apt-get|gcc|pip install", last)
    assert f"WORKDIR {IMAGE_ROOT}\n" in last


def test_volumes_lie_where_the_image_has_directories_of_its_user() -> None:
    """A named volume begins with the owner of the directory that it is mounted on."""
    made = re.search(r"install -d -o 10001 -g 10001 (.*?) \\", DOCKERFILE)
    assert made is not None
    for name in (*ONE, *MANY):
        for volume in SERVICES[name].get("volumes", ()):
            assert volume.removesuffix(":ro").rpartition(":")[2] in made[1].split()


def test_the_scripts_of_shells_are_well_formed() -> None:
    """`sh -n` reads each."""
    scripts = [service["command"][2] for service in SERVICES.values() if service.get("command", [""])[0] == "sh"]
    checks = [service["healthcheck"]["test"] for service in SERVICES.values()]
    scripts += [check[1] for check in checks if check[0] == "CMD-SHELL"]
    assert len(scripts) > 5
    for script in scripts:
        subprocess.run(["sh", "-n", "-c", script], check=True)


@pytest.mark.parametrize("service", ["valkey-1", "valkey-2", "sentinel-1"])
def test_no_server_starts_on_half_of_its_configuration(tmp_path: Path, service: str) -> None:
    """Without its users it would take commands from everybody; and the next start would take the half for the whole."""
    script = SERVICES[service]["command"][2].replace("exec ", "echo starting ").replace("/data", str(tmp_path))

    def start(secrets: Path) -> subprocess.CompletedProcess[str]:
        words = ["sh", "-c", script.replace("/run/secrets", str(secrets))]
        return subprocess.run(words, capture_output=True, text=True, check=False)

    without = start(tmp_path / "nowhere")
    assert (without.returncode != 0, without.stdout) == (True, "")
    assert {path.name for path in tmp_path.iterdir()} <= {"new.conf"}
    for secret in ("valkey", "sentinel"):
        (tmp_path / secret).write_text("first line\n")
    started = start(tmp_path)
    (made,) = tmp_path.glob("*.conf")
    assert started.stdout.startswith("starting ")
    assert started.stdout.endswith(f"{made}\n")
    assert made.read_text().startswith("first line\n")
    assert ("replicaof" in made.read_text()) == (service == "valkey-2")


def test_the_makefile_builds_what_the_lock_says() -> None:
    """`make up` and `make test` install the exact versions, then the project without dependencies."""
    makefile = (ROOT / "Makefile").read_text()
    installs = [shlex.split(line) for line in makefile.splitlines() if " pip install " in line]
    assert installs[0][-3:] == ["--require-hashes", "-r", "requirements.lock"]
    assert installs[1][-4:] == ["--no-deps", "--no-build-isolation", "-e", "."]
