"""`feedback gateway`, `feedback token` and `feedback audit`, as their users run them."""

import json
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import msgspec
import pytest
from redis import Redis

from app.embedded import VOLATILE, EmbeddedServer
from feedback.connection import connect
from feedback.settings import Settings
from tests.acceptance.command_line import FEEDBACK, Up, environment, feedback
from tests.acceptance.test_acl import RULES
from tests.harness import serving, settings_for, wait_until, write_session
from tests.integration.gateway_serving import caller, gateway_serving, item_path, listening

pytestmark = [pytest.mark.server, pytest.mark.process]

TLS = Path(__file__).parent / "tls"
NEW = {"If-None-Match": "*"}


@pytest.fixture
def settings(valkey_url: str, redis_client: Redis, tmp_path: Path) -> Iterator[Settings]:
    settings = settings_for(valkey_url, tmp_path)
    write_session(settings, "s", "m1", "m2")
    with serving(settings):
        yield settings


def words(settings: Settings, home: Path) -> tuple[str, ...]:
    return ("--data", str(home), "--redis-url", settings.redis_url, "--max-note-bytes", "8192", "--port", "0")


@contextmanager
def running(*more: str, log: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """A gateway's process, and the URL that it says."""
    with log.open("wb") as errors:
        command = (FEEDBACK, "gateway", "--json", *more)
        process = subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, stderr=errors)
    with process:
        try:
            assert process.stdout is not None
            yield json.loads(process.stdout.readline() or b'{"url": ""}')["url"], process
        finally:
            process.terminate()


def test_tokens_are_made_listed_and_taken_back(tmp_path: Path) -> None:
    """The secret is shown once; what programs get is documented; an unknown id is exit code 1."""
    at = ("--data", tmp_path, "--json")
    made = feedback("token", "create", "ada", "--days", "2", *at).document
    reader = feedback("token", "create", "bob", "--read-only", *at).document
    assert made.keys() == {"id", "label", "lastFour", "scopes", "createdAt", "expiresAt", "isExpired", "token"}
    assert (made["label"], made["scopes"], made["isExpired"]) == ("ada", ["read", "rate"], False)
    assert made["expiresAt"] == made["createdAt"] + 2 * 24 * 3600 * 1000
    assert (reader["scopes"], reader["expiresAt"]) == (["read"], None)
    listed = feedback("token", "list", *at)
    assert listed.document["tokens"] == [{k: v for k, v in one.items() if k != "token"} for one in (made, reader)]
    shown = feedback("token", "list", "--data", tmp_path).out
    assert made["token"] not in shown
    assert f"{made['id']}  ada  read+rate" in shown
    assert feedback("token", "revoke", made["id"], *at).document == {"revoked": True}
    again = feedback("token", "revoke", made["id"], *at)
    assert (again.code, again.document) == (1, {"revoked": False})


def test_serves_over_tls_names_the_actor_and_ends_in_order(settings: Settings, tmp_path: Path) -> None:
    """SIGTERM ends streams at once, and the process with exit code 0; the log is structured and holds no secret."""
    token = feedback("token", "create", "ada", "--data", tmp_path, "--json").document["token"]
    log = tmp_path / "gateway.log"
    more = ("--host", "localhost", "--certificate", str(TLS / "certificate.pem"), "--key", str(TLS / "key.pem"))
    with running(*words(settings, tmp_path), *more, log=log) as (url, process):
        assert url.startswith("https://localhost:")
        trust = ssl.create_default_context(cafile=str(TLS / "certificate.pem"))
        with httpx.Client(base_url=url, verify=trust, trust_env=False, timeout=30) as client:
            wait_until(lambda: client.get("/readyz").status_code == 200, "a worker has set the server up")
            assert client.put(item_path("s", "m1"), json={"rating": "positive"}, headers=NEW).status_code == 401
            client.headers["Authorization"] = f"Bearer {token}"
            put = client.put(item_path("s", "m1"), json={"rating": "negative", "note": "ß"}, headers=NEW)
            assert put.status_code == 201
            client.put(item_path("s", "m1"), json={"rating": "positive"}, headers=NEW)
            with listening(client, "/sessions/s/events") as events:
                next(events)
                process.send_signal(signal.SIGTERM)
                assert list(events) == []
        assert process.wait(30) == 0
    logged = log.read_text()
    assert token not in logged
    requests = [one for line in logged.splitlines() if (one := json.loads(line))["event"] == "request"]
    puts = [(one["path"], one["status"], one["actor"]) for one in requests if one["method"] == "PUT"]
    assert puts == [("/sessions/s/feedback/m1", *rest) for rest in ((401, None), (201, "ada"), (412, "ada"))]
    audit_shows(settings, put.json()["version"])


def audit_shows(settings: Settings, version: str) -> None:
    """The two outcomes of that, page by page."""
    named = ("audit", "s", "--sidecar-url", settings.sidecar_url)
    first = feedback(*named, "--limit", "1", "--json").document
    assert [(one["type"], one["actor"]) for one in first["events"]] == [("feedback.put", "ada")]
    second = feedback(*named, "--after", first["next"], "--json").document
    assert second.keys() == {"events"}
    assert [(one["type"], one["error"]["code"]) for one in second["events"]] == [
        ("feedback.rejected", "version-conflict")
    ]
    lines = feedback(*named).out.splitlines()
    assert lines[0].endswith(f'ada  m1  negative  "ß"  version {version}')
    assert lines[1].endswith("ada  m1  refused: version-conflict")
    nothing = feedback("audit", "nobody", "--sidecar-url", settings.sidecar_url)
    assert (nothing.code, nothing.out) == (0, "nothing is recorded about nobody\n")
    assert feedback(*named, "--after", "x").code == 2


def test_refuses_to_start_where_it_could_not_be_safe(settings: Settings, tmp_path: Path) -> None:
    """A typed error that says what to do, exit code 2, and nothing listens."""
    usual = words(settings, tmp_path)
    for more, reason in (
        (("--host", "0.0.0.0"), "gateway_host: 0.0.0.0 is not the loopback"),
        (("--certificate", str(tmp_path)), f"gateway_certificate: {tmp_path}: Is a directory"),
        (("--key", str(TLS / "key.pem")), "gateway_key: needs gateway_certificate\n"),
    ):
        refused = feedback("gateway", *usual, *more)
        assert (refused.code, refused.out) == (2, ""), refused.err
        assert f"SettingsInvalid: {reason}" in refused.err
    without = "import sys; sys.modules['uvloop'] = None; from app.cli import main; sys.exit(main())"
    command = (sys.executable, "-c", without, "gateway", *usual)
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "pip install 'session-feedback[gateway]'" in done.stderr


def test_needs_no_more_rights_than_the_page_says(tmp_path: Path) -> None:
    """Put, list, events and readiness as the user of `docs/acl.md`: nothing is refused."""
    server = EmbeddedServer(tmp_path / "valkey", VOLATILE)
    server.start()
    try:
        settings = settings_for(server.url, tmp_path, gateway_port=0)
        write_session(settings, "s", "m1")
        with connect(server.url) as admin:
            admin.execute_command("ACL", "SETUSER", "gateway", *RULES["gateway"])
            port = admin.connection_pool.connection_kwargs["port"]
            guest = msgspec.structs.replace(settings, redis_url=f"redis://gateway:gateway-password@127.0.0.1:{port}/0")
            with serving(settings), gateway_serving(guest) as url, caller(url) as client:
                wait_until(lambda: client.get("/readyz").status_code == 200, "a worker has set the server up")
                with listening(client, "/events", "1:0.0.0.0") as events:
                    put = client.put(item_path("s", "m1"), json={"rating": "positive"}, headers=NEW)
                    assert put.status_code == 201
                    assert next(one for one in events if one.name == "feedback.put").data["item"] == put.json()
                with listening(client, "/events", "1:0.0.0.0") as events:
                    assert next(events).data["item"] == put.json()
                assert client.get("/sessions/s/feedback").json() == {"items": [put.json()]}
            assert admin.execute_command("ACL", "LOG") == []
    finally:
        server.stop()


def test_up_runs_one_beside_the_others(tmp_path: Path) -> None:
    """On the port that it is told; one that is taken is refused before anything runs."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        refused = feedback("up", "--data", tmp_path / "refused", "--gateway", port)
        assert (refused.code, refused.out) == (2, "")
        assert f"gateway_host, gateway_port: 127.0.0.1:{port}: Address already in use" in refused.err
    with Up(tmp_path / "data", "--gateway", port) as up, httpx.Client(trust_env=False) as client:
        assert up.ready["gatewayUrl"] == f"http://127.0.0.1:{port}"
        path = up.ready["gatewayUrl"] + item_path("demo-flaky-test", "answer-1")
        assert client.put(path, json={"rating": "positive"}, headers=NEW).status_code == 201
        assert up.feedback("token", "create", "ada").code == 0
        assert client.get(path).status_code == 401
        assert set(up.pids) == {"gateway", "worker", "projector", "server"}
        assert up.stop() == 0


def test_no_other_command_loads_the_web_server() -> None:
    program = (
        "import sys, feedback, app.cli.worker, app.cli.token, app.cli.audit; print({*sys.modules} & {*sys.argv[1:]})"
    )
    command = (sys.executable, "-c", program, "starlette", "uvicorn", "uvloop", "jwt", "httptools")
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "set()\n"
