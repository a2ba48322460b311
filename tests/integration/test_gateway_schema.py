"""The OpenAPI document against the running server: every operation answers what it says, and nothing else."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given
from hypothesis import settings as effort
from schemathesis.core.result import Ok
from schemathesis.generation.stateful import run_state_machine_as_test

from feedback.connection import connect
from gateway.access.principals import Scope
from gateway.access.tokens import TokenFile
from tests.harness import serving, settings_for, write_session
from tests.integration.gateway_serving import gateway_serving, segment

pytestmark = pytest.mark.server

SESSION, MESSAGES = "a/b ü", ("m/1", "m2")
_VERSION = re.compile('"[0-9a-f-]{36}"')
KNOWN = [segment(message) for message in MESSAGES]
# What OpenAPI cannot say: that one of two headers is required, and that no id is known in advance.
UNSAYABLE = {"positive_data_acceptance"}
SMALL = effort(
    max_examples=10,
    stateful_step_count=10,
    derandomize=True,
    deadline=None,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(scope="module")
def described(
    valkey_url: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[schemathesis.BaseSchema, dict[str, str]]]:
    """The document of a running gateway, and the headers of somebody who may."""
    home = tmp_path_factory.mktemp("home")
    with connect(valkey_url) as redis:
        redis.flushall()
    settings = settings_for(
        valkey_url, home, gateway_port=0, gateway_tokens=str(home / "tokens.json"), gateway_rate=1_000_000
    )
    token, _ = TokenFile(home / "tokens.json").create("tester", tuple(Scope), now_ms=0)
    write_session(settings, SESSION, *MESSAGES)
    with serving(settings), gateway_serving(settings) as url:
        yield schemathesis.openapi.from_url(f"{url}/openapi.json"), {"Authorization": f"Bearer {token}"}


def inapplicable() -> list[Any]:
    return [check for check in schemathesis.checks.CHECKS.get_all() if check.__name__ in UNSAYABLE]


def fuzz(operation: Any, headers: dict[str, str]) -> int:
    """Ask what the document allows, and what it does not; how often."""
    tried = 0

    @SMALL
    @given(case=operation.as_strategy())
    def ask(case: Any) -> None:
        nonlocal tried
        tried += 1
        case.call_and_validate(headers=headers, excluded_checks=inapplicable())

    ask()
    return tried


def test_every_operation_answers_as_described(described: tuple[schemathesis.BaseSchema, dict[str, str]]) -> None:
    """Whatever is asked, well or badly: status, media type, headers and body are those of the document."""
    schema, headers = described
    # A stream of events never ends.
    operations = [one.ok() for one in schema.exclude(path_regex="events$").get_all_operations() if isinstance(one, Ok)]
    assert len(operations) == 9
    assert all(fuzz(operation, headers) for operation in operations)


def test_any_sequence_of_operations_answers_as_described(
    described: tuple[schemathesis.BaseSchema, dict[str, str]],
) -> None:
    """What a put wrote is read, replaced and removed under its version, along the document's links."""
    schema, headers = described[0].exclude(path_regex="(events|z)$").exclude(path_regex="^/api"), described[1]
    seen = set[tuple[str, int]]()

    class Machine(schema.as_state_machine()):  # type: ignore[misc]  # made at run time
        def get_call_kwargs(self, case: Any) -> dict[str, Any]:
            return {"headers": headers}

        def before_call(self, case: Any) -> None:
            (case.query or {}).pop("atLeast", None)  # a revision that never comes is waited for
            if case.path_parameters.get("message", KNOWN[0]) not in KNOWN:
                case.path_parameters |= {"session": segment(SESSION), "message": KNOWN[len(seen) % 2]}
            if _VERSION.fullmatch(str((case.headers or {}).get("If-Match"))):
                case.headers.pop("If-None-Match", None)

        def validate_response(self, response: Any, case: Any, **kwargs: Any) -> None:
            seen.add((case.operation.method, response.status_code))
            case.validate_response(response, excluded_checks=inapplicable(), headers=headers)

    run_state_machine_as_test(Machine, settings=SMALL)
    # Which ones meet which state is the generator's choice; that each kind was asked and did something is not.
    assert {("put", 201), ("get", 200)} <= seen
    assert {"put", "get", "delete"} <= {method for method, _ in seen}
