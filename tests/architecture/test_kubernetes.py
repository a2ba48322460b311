"""The manifests under deploy/kubernetes, held against the program: commands, variables, probes, metrics, grace."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from app.cli.dispatch import parser_for
from app.cli.serving import HARD_EXIT_MARGIN_S
from feedback.settings import Settings, load_settings
from tests.promql import metrics_of

ROOT = Path(__file__).parents[2]
DIRECTORY = ROOT / "deploy/kubernetes"
PAGES = {"/metrics", "/healthz", "/readyz"}
DOCUMENTS: list[dict[str, Any]] = [
    document for path in sorted(DIRECTORY.glob("*.yml")) for document in yaml.safe_load_all(path.read_text())
]
WORKLOADS = {
    document["metadata"]["name"]: document for document in DOCUMENTS if document["kind"] in ("Deployment", "DaemonSet")
}
KINDS = {
    "ConfigMap": "v1",
    "Secret": "v1",
    "Service": "v1",
    "Deployment": "apps/v1",
    "DaemonSet": "apps/v1",
    "PodDisruptionBudget": "policy/v1",
    "ScaledObject": "keda.sh/v1alpha1",
}


def of_kind(kind: str) -> dict[str, dict[str, Any]]:
    return {document["metadata"]["name"]: document for document in DOCUMENTS if document["kind"] == kind}


def variables(container: dict[str, Any]) -> dict[str, str]:
    """The container's environment as Kubernetes puts it together."""
    found: dict[str, str] = {}
    for source in container["envFrom"]:
        if "configMapRef" in source:
            found |= of_kind("ConfigMap")[source["configMapRef"]["name"]]["data"]
        else:
            found |= of_kind("Secret")[source["secretRef"]["name"]]["stringData"]
    return found | {variable["name"]: variable.get("value", "a-node") for variable in container.get("env", ())}


def test_every_kind_has_its_version() -> None:
    assert {document["kind"] for document in DOCUMENTS} == KINDS.keys()
    for document in DOCUMENTS:
        assert document["apiVersion"] == KINDS[document["kind"]]
    assert WORKLOADS.keys() == {"feedback-worker", "feedback-projector", "feedback-agent", "feedback-gateway"}


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_workload_is_a_command_with_settings_probes_and_time_to_drain(name: str) -> None:
    pod = WORKLOADS[name]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    parser, _ = parser_for(container["args"])
    assert parser.parse_args(container["args"]).command == name.removeprefix("feedback-")
    environment = variables(container)
    names = {"FEEDBACK_" + field.upper() for field in Settings.__struct_fields__}
    assert environment.keys() <= names
    settings = load_settings({"max_note_bytes": 8192}, environment)
    assert settings.max_note_bytes == int(environment.get("FEEDBACK_MAX_NOTE_BYTES", 8192))
    assert settings.redis_url.startswith(f"redis+sentinel://{name.removeprefix('feedback-')}:CHANGE-ME@")
    assert pod["terminationGracePeriodSeconds"] > settings.shutdown_grace + HARD_EXIT_MARGIN_S
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports["metrics"] == settings.metrics_port
    assert settings.metrics_host == "0.0.0.0"
    assert ports.get("http", settings.gateway_port) == settings.gateway_port
    for probe, path in (("startupProbe", "/healthz"), ("livenessProbe", "/healthz"), ("readinessProbe", "/readyz")):
        assert container[probe]["httpGet"] == {"path": path, "port": "metrics"}
        assert path in PAGES


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_pod_may_do_no_more_than_it_needs(name: str) -> None:
    """The restricted profile of Kubernetes' pod security standards, and a root file system that is read only."""
    pod = WORKLOADS[name]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    context = pod["securityContext"]
    assert context["runAsNonRoot"] is True
    assert f"USER {context['runAsUser']}:{context['runAsGroup']}\n" in (ROOT / "Dockerfile").read_text()
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert pod["automountServiceAccountToken"] is False
    mounts = {mount["name"] for mount in container["volumeMounts"]}
    assert mounts == {volume["name"] for volume in pod["volumes"]}


def test_selectors_find_their_pods() -> None:
    """Of workloads, budgets and services; everything but a DaemonSet has a budget that leaves one."""
    labels = {name: document["spec"]["template"]["metadata"]["labels"] for name, document in WORKLOADS.items()}
    for name, document in WORKLOADS.items():
        assert document["spec"]["selector"]["matchLabels"] == labels[name]
    budgets = of_kind("PodDisruptionBudget")
    assert budgets.keys() == {name for name, document in WORKLOADS.items() if document["kind"] == "Deployment"}
    for name, budget in budgets.items():
        assert budget["spec"]["selector"]["matchLabels"] == labels[name]
        assert budget["spec"]["minAvailable"] == 1
        # One alone with such a budget could never be moved.
        assert WORKLOADS[name]["spec"].get("replicas", 2) == 2
    service = of_kind("Service")["feedback-gateway"]
    assert service["spec"]["selector"] == labels["feedback-gateway"]


def test_workers_are_scaled_by_metrics_that_exist_and_not_beyond_the_partitions() -> None:
    scaled = of_kind("ScaledObject")["feedback-worker"]["spec"]
    assert scaled["scaleTargetRef"] == {"kind": "Deployment", "name": "feedback-worker"}
    assert "replicas" not in WORKLOADS["feedback-worker"]["spec"], "two would disagree about their number"
    partitions = int(of_kind("ConfigMap")["feedback"]["data"]["FEEDBACK_PARTITIONS"])
    assert 2 <= scaled["minReplicaCount"] < scaled["maxReplicaCount"] <= partitions
    (trigger,) = scaled["triggers"]
    assert trigger["type"] == "prometheus"
    named = {one.metric for one in metrics_of(trigger["metadata"]["query"])}
    assert named == {"feedback_queue_oldest_command_age_seconds", "feedback_queue_commands"}
    collector = (ROOT / "app/metrics/system.py").read_text()
    for metric in named:
        assert f'"{metric}"' in collector


def test_secrets_are_examples_and_say_so() -> None:
    for path in DIRECTORY.glob("*.yml"):
        text = path.read_text()
        if re.search(r"^kind: Secret$", text, re.MULTILINE):
            assert path.name == "secrets.example.yml"
            assert text.startswith("# EXAMPLE")
            assert set(re.findall(r"://\w+:([^@]+)@", text)) == {"CHANGE-ME"}
        else:
            assert "CHANGE-ME" not in text
