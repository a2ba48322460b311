"""A root file system that is read only suffices for every process, and so does having no capability at all.

In a mount namespace of its own (Linux, as root): everything is read only but the directory of the store.
"""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis

from feedback import FeedbackClient, Ok
from tests.acceptance.command_line import feedback
from tests.composed import Composed
from tests.harness import HOST, settings_for, wait_until, write_session
from tests.integration.gateway_serving import caller, item_path

pytestmark = [pytest.mark.server, pytest.mark.process]

_CONFINE = """
mount --make-rprivate / || exit
mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && mount -o remount,bind,ro / || exit
mount --bind "$0/store" "$0/store" && mount -o remount,bind,rw "$0/store" || exit
cd "$0" && exec setpriv --pdeathsig=KILL --no-new-privs --bounding-set=-all --inh-caps=-all "$@"
"""


def confined(home: Path) -> tuple[str, ...]:
    """Words before a command, which may then write to `home/store` and nowhere else."""
    return ("/usr/bin/env", "unshare", "--mount", "sh", "-c", _CONFINE, str(home))


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "store").mkdir()
    attempt = ("sh", "-c", f"echo > {tmp_path}/store/x && ! echo > {tmp_path}/x && ! echo > /tmp/x")
    tried = subprocess.run([*confined(tmp_path), *attempt], capture_output=True, text=True, check=False)
    if os.geteuid() != 0 or "unshare failed" in tried.stderr or "permission denied" in tried.stderr:
        pytest.skip(f"no mount namespace here: {tried.stderr.strip() or 'not root'}")
    assert tried.returncode == 0, tried.stderr
    return tmp_path


@pytest.fixture
def composed(home: Path, valkey_url: str, redis_client: Redis) -> Iterator[Composed]:
    """Worker and projector of one machine, and the gateway and agent of many."""
    settings = settings_for(valkey_url, home)
    write_session(settings, "s", "m1")
    composed = Composed(home)
    composed.substitute("redis://valkey:6379/0", valkey_url)
    composed.substitute("/var/lib/feedback/store", str(home / "store"))
    composed.substitute("/var/lib/feedback/tokens", str(home))
    composed.substitute("/var/lib/feedback/sessions", settings.sessions)
    composed.substitute("8080", str(composed.port("http")))
    for role in ("agent", "gateway"):
        (composed.secrets / f"{role}.toml").chmod(0o600)
        (composed.secrets / f"{role}.toml").write_text(f'redis_url = "{valkey_url}"\n')
    try:
        yield composed
    finally:
        composed.stop()


def test_every_process_works_without_writing_anywhere_else(composed: Composed, home: Path, valkey_url: str) -> None:
    tokens = {"FEEDBACK_GATEWAY_TOKENS": str(home / "tokens.json")}
    token = feedback("token", "create", "me", "--json", env=tokens).document["token"]
    services = ("worker", "projector", "agent", "gateway")
    for service in services:
        composed.start(service, wrap=confined(home))
    for service in services:
        wait_until(lambda service=service: composed.is_healthy(service), f"{service} is healthy", 60)  # type: ignore[misc]
        process = Path(f"/proc/{composed.running[service].pid}")
        assert "CapEff:\t0000000000000000\n" in (process / "status").read_text()
        assert " / / ro," in (process / "mountinfo").read_text()
    with caller(f"http://127.0.0.1:{composed.port('http')}", token) as client:
        said = client.put(item_path("s", "m1"), json={"rating": "positive"}, headers={"If-None-Match": "*"})
        assert said.status_code == 201, said.text
        assert client.get(item_path("s", "m1")).status_code == 200
    with FeedbackClient.from_url(valkey_url, host=HOST) as elsewhere:
        assert isinstance(elsewhere.list("s"), Ok)
    for service in services:
        assert composed.running[service].stop(30), composed.running[service].log_tail()
