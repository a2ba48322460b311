"""docker-compose.yml's services, run for real: they work together, and their health checks find out who is ill."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from feedback.connection import connect
from tests.acceptance.command_line import feedback
from tests.composed import Composed
from tests.harness import settings_for, wait_until, write_session
from tests.integration.gateway_serving import caller, item_path
from tests.postgres import Databases
from tests.processes import kill
from tests.sentinel import role_if_told

pytestmark = [pytest.mark.server, pytest.mark.process]

PROCESSES = {
    "workers-1": "workers",
    "projectors-1": "projectors",
    "projectors-2": "projectors",
    "agent": "agent",
    "gateway": "gateway",
}
SERVERS = ("valkey-1", "valkey-2")
SENTINELS = ("sentinel-1", "sentinel-2", "sentinel-3")
NEW = {"If-None-Match": "*"}


@pytest.fixture
def many(databases: Databases, tmp_path: Path) -> Iterator[Composed]:
    """Everything of the profile `many` but PostgreSQL, which is another one."""
    settings = settings_for("redis://unused", tmp_path)
    write_session(settings, "s", *(f"m{number}" for number in range(4)))
    composed = Composed(tmp_path)
    composed.substitute("/var/lib/feedback/sessions", settings.sessions)
    composed.substitute("/var/lib/feedback/tokens", str(tmp_path))
    composed.substitute("down-after-milliseconds feedback 2000", "down-after-milliseconds feedback 500")
    try:
        with databases.one() as store:
            secret = (composed.secrets / "postgres").read_text()
            composed.substitute(f"postgresql://feedback:{secret}@postgres:5432/feedback", store)
            for name in (*SERVERS, *SENTINELS):
                composed.start(name)
                wait_until(lambda name=name: composed.is_healthy(name), f"{name} is healthy")  # type: ignore[misc]
            yield composed
            composed.stop()
    finally:
        composed.stop()


def role_of(composed: Composed, server: str) -> str | None:
    """As the operator sees it; None while the server does not answer, as in the moment that it takes over."""
    url = (composed.secrets / "operator.toml").read_text().partition("//")[2].partition("@")[0]
    with connect(f"redis://{url}@127.0.0.1:{composed.port(server)}/0") as redis:
        return role_if_told(redis)


def test_many_machines_serve_fail_over_and_show_who_is_ill(many: Composed, tmp_path: Path) -> None:
    """Ratings through the gateway, before and after the primary dies; a killed and a frozen process are found out."""
    gateway = many.variables("gateway")
    answer = feedback(
        "token", "create", "me", "--json", env={"FEEDBACK_GATEWAY_TOKENS": gateway["FEEDBACK_GATEWAY_TOKENS"]}
    )
    assert answer.code == 0, answer
    many.substitute("8080", str(many.port("http")))
    for name, service in PROCESSES.items():
        many.start(service, name)
    for name, service in PROCESSES.items():
        wait_until(lambda name=name, service=service: many.is_healthy(service, name), f"{name} is healthy", 60)  # type: ignore[misc]
    with caller(f"http://127.0.0.1:{many.port('http')}", answer.document["token"]) as client:

        def put(message_id: str) -> bool:
            said = client.put(item_path("s", message_id), json={"rating": "positive"}, headers=NEW)
            assert said.status_code in (201, 412, 503), said.text
            return said.status_code != 503

        wait_until(lambda: put("m0"), "a rating is taken", 60)
        wait_until(lambda: role_of(many, "valkey-2") == "slave", "there is a replica")
        kill(many.running["valkey-1"])
        wait_until(lambda: role_of(many, "valkey-2") == "master", "the replica takes over", 60)
        wait_until(lambda: put("m1"), "ratings are taken again", 60)
        listed = client.get("/sessions/s/feedback")
        assert [item["messageId"] for item in listed.json()["items"]] == ["m0", "m1"]
    assert not many.is_healthy("valkey-1")
    assert many.is_healthy("valkey-2")
    kill(many.running["workers-1"])
    kill(many.running["projectors-1"], signal.SIGSTOP)
    wait_until(lambda: not many.is_healthy("workers", "workers-1"), "a killed worker is found out")
    assert not many.is_healthy("projectors", "projectors-1"), "a frozen one answers no probe"
    kill(many.running["projectors-1"], signal.SIGCONT)
    wait_until(lambda: many.is_healthy("projectors", "projectors-1"), "it is well again")
    assert many.is_healthy("projectors", "projectors-2")
