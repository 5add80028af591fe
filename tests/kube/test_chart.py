"""The Helm chart and the kustomize base, which is derived from it."""

import importlib.util
import json
import os
import subprocess
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from fairlead.kube.dev.assets import Programs
from fairlead.kube.kinds import KINDS
from tests.kube import charts
from tests.kube.charts import BASE, CHART, NAMESPACE, ROOT
from tests.kube.world import made, until

pytestmark = pytest.mark.component("helm")


def find(rows: list[dict[str, Any]], kind: str, name: str) -> dict[str, Any]:
    (found,) = [row for row in rows if (row["kind"], row["metadata"]["name"]) == (kind, name)]
    return found


def refusal(programs: Programs, **values: Any) -> str:
    command = [programs.path("helm"), "template", str(CHART), *charts.given(values)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode != 0, f"{values} was taken"
    return done.stderr


def test_the_base_is_derived_from_the_chart(programs: Programs) -> None:
    shipped = list(yaml.safe_load_all((BASE / "fairlead.yaml").read_text()))
    assert shipped == charts.rendered(programs, crds_enabled=False), "run: make kube-base"
    built = charts.run(programs, "kustomize", "build", str(BASE))
    objects = {(row["kind"], row["metadata"]["name"]) for row in yaml.safe_load_all(built)}
    expected = {(row["kind"], row["metadata"]["name"]) for row in charts.rendered(programs)}
    assert objects == expected | {("Namespace", NAMESPACE)}


def test_the_api_server_takes_the_base(deployed: charts.Deployed) -> None:
    charts.install(deployed.cluster, controller_replicas=0)  # its namespace and kinds are there
    apply = ("apply", "-k", str(BASE), "--server-side", "--force-conflicts", "--dry-run=server")
    said = deployed.cluster.kubectl(*apply).splitlines()
    rows = charts.rendered(deployed.cluster.programs)
    assert len(said) == len(rows) + 1, "and the namespace"


def test_an_overlay_of_the_base_names_the_image(programs: Programs, tmp_path: Path) -> None:
    image = {"name": "fairlead", "newName": "mine", "newTag": "1"}
    where = os.path.relpath(BASE, tmp_path)
    overlay = {"resources": [where], "images": [image]}
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(overlay))
    rows = list(yaml.safe_load_all(charts.run(programs, "kustomize", "build", str(tmp_path))))
    spec = find(rows, "Deployment", "fairlead-controller")["spec"]["template"]["spec"]
    assert spec["containers"][0]["image"] == "mine:1"


def test_the_policy_covers_every_kind(programs: Programs) -> None:
    """What only we write is refused to others, and so is what we add to what people write."""
    rows = charts.rendered(programs, admissionPolicy_enabled=True)
    kind = "ValidatingAdmissionPolicy"

    def covered(name: str) -> set[str]:
        rules = find(rows, kind, name)["spec"]["matchConstraints"]["resourceRules"]
        ours = [rule for rule in rules if rule["apiGroups"] == ["fairlead.dev"]]
        return {resource for rule in ours for resource in rule["resources"]}

    shown = covered("fairlead-objects") | covered("fairlead-allocations")
    assert shown - {"*/status"} == {made.plural for made in KINDS.values() if not made.written}
    written = {made.plural for made in KINDS.values() if made.written}
    assert covered("fairlead-fields") == written - {"queries"}  # they live for a minute


def test_helm_finds_no_fault_in_the_chart(programs: Programs) -> None:
    said = charts.run(programs, "helm", "lint", "--strict", str(CHART))
    assert "1 chart(s) linted, 0 chart(s) failed" in said


def test_every_value_is_documented_and_checked(programs: Programs) -> None:
    """In values.yaml, in the schema and on the page; what is not known is refused."""
    spec = importlib.util.spec_from_file_location("make_chart", ROOT / "docs" / "make_chart.py")
    assert spec is not None
    assert spec.loader is not None
    pages: ModuleType = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(pages)
    assert pages.PAGE.read_text() == pages.page(), "run `make docs` and commit chart.md"
    documented = {path for path, _, _ in pages.rows(pages.VALUES.read_text())}
    schema = json.loads((CHART / "values.schema.json").read_text())
    assert documented == set(leaves(schema)) - {"global"}
    for values, field in (
        ({"controller_replica": 1}, "replica"),
        ({"controller_resolver": "maybe"}, "resolver"),
        ({"controller_qps": -1}, "qps"),
        ({"ledger_storage_size": "much"}, "size"),
        ({"admissionPolicy_deviceResources": []}, "deviceResources"),
        ({"controller_replicas": 2}, "needs ledger.postgres.secretName"),
        ({"controller_replicas": 2, "ledger_postgres_secretName": "pg"}, "ReadWriteMany"),
        ({"traffic_enabled": True, "traffic_config": {"plane": "haproxy"}}, "has ebpf alone"),
    ):
        assert field in refusal(programs, **values)


def leaves(schema: dict[str, Any], path: tuple[str, ...] = ()) -> list[str]:
    parts = schema.get("properties")
    if not parts:
        return [".".join(path)]
    return [leaf for name, part in parts.items() for leaf in leaves(part, (*path, name))]


def test_a_database_instead_of_a_file(programs: Programs) -> None:
    """Its address comes from a Secret; several replicas, and an upgrade takes turns."""
    rows = charts.rendered(
        programs,
        controller_replicas=2,
        ledger_postgres_secretName="pg",
        ledger_storage_accessMode="ReadWriteMany",
    )
    spec = find(rows, "Deployment", "fairlead-controller")["spec"]
    assert spec["strategy"] == {"type": "RollingUpdate"}
    (container,) = spec["template"]["spec"]["containers"]
    reference = {"secretKeyRef": {"name": "pg", "key": "url"}}
    assert container["env"] == [{"name": "FAIRLEAD_LEDGER", "valueFrom": reference}]
    assert find(rows, "PodDisruptionBudget", "fairlead-controller")["spec"]["maxUnavailable"] == 1


def test_pods_are_hardened(programs: Programs) -> None:
    """The controller satisfies Pod Security `restricted`, and mounts nothing writable but its
    volume and /tmp."""
    spec = find(charts.rendered(programs), "Deployment", "fairlead-controller")["spec"]
    pod = spec["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    (container,) = pod["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert {row["mountPath"] for row in container["volumeMounts"]} == {"/var/lib/fairlead", "/tmp"}


def test_egress_is_limited_on_request(programs: Programs) -> None:
    rows = charts.rendered(programs, networkPolicy_egressPorts=[6443])
    spec = find(rows, "NetworkPolicy", "fairlead-controller")["spec"]
    assert spec["policyTypes"] == ["Ingress", "Egress"]
    assert [row["port"] for row in spec["egress"][0]["ports"]] == [53, 53, 6443]


def claim(name: str) -> list[dict[str, Any]]:
    """A claim, and the volume that it is bound to."""
    size = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    volume = size | {"capacity": {"storage": "1Gi"}, "hostPath": {"path": "/nowhere"}}
    asked = size | {"volumeName": name, "resources": {"requests": {"storage": "1Gi"}}}
    meta = {"name": name, "namespace": NAMESPACE}
    return [
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": name},
            "spec": volume,
        },
        {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": meta, "spec": asked},
    ]


def test_one_controller_is_evicted_at_a_time(deployed: charts.Deployed) -> None:
    """A drained node leaves one of two replicas; a single one does not hold up the drain."""
    cluster, name = deployed.cluster, "fairlead-controller"
    several = {"controller_replicas": 2, "ledger_postgres_secretName": "pg"}
    charts.install(cluster, **several, ledger_storage_existingClaim="keys")
    cluster.apply(claim("keys"))
    pods = f"/api/v1/namespaces/{NAMESPACE}/pods?labelSelector=app.kubernetes.io/name={name}"
    budget = f"/apis/policy/v1/namespaces/{NAMESPACE}/poddisruptionbudgets/{name}"

    def ready(replicas: int) -> bool:
        """And the budget has seen it."""
        rows = [
            row for row in cluster.get(pods)["items"] if "deletionTimestamp" not in row["metadata"]
        ]
        status = (cluster.get(budget) or {}).get("status", {})
        return len(rows) == status.get("currentHealthy") == replicas

    until(lambda: ready(2), "both run")
    status = cluster.get(budget)["status"]
    assert (status["expectedPods"], status["disruptionsAllowed"]) == (2, 1)
    charts.install(cluster, controller_replicas=1, ledger_storage_existingClaim="keys")
    until(lambda: ready(1), "one runs")
    assert cluster.get(budget)["status"]["disruptionsAllowed"] == 1
    charts.install(cluster, controller_replicas=0)


def test_prometheus_finds_the_controller_on_request(programs: Programs) -> None:
    """By the operator's kind; it trusts the authorities that the controller publishes."""
    kinds = [row["kind"] for row in charts.rendered(programs)]
    assert "ServiceMonitor" not in kinds
    values = {"serviceMonitor_enabled": True, "serviceMonitor_labels": {"team": "ops"}}
    rows = charts.rendered(programs, **values)
    found = find(rows, "ServiceMonitor", "fairlead-controller")
    assert found["metadata"]["labels"]["team"] == "ops"
    (endpoint,) = found["spec"]["endpoints"]
    service = find(rows, "Service", "fairlead-controller")
    assert endpoint["port"] in [port["name"] for port in service["spec"]["ports"]]
    assert found["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert endpoint["tlsConfig"]["serverName"] == f"fairlead-controller.{NAMESPACE}.svc"
    assert endpoint["tlsConfig"]["ca"]["configMap"]["name"] == "fairlead-controller-ca"


def test_alerts_and_dashboards_are_installed_on_request(programs: Programs) -> None:
    """As the files beside the chart have them, unchanged by Helm; node agents are scraped, too."""
    kinds = {row["kind"] for row in charts.rendered(programs)}
    assert not kinds & {"PrometheusRule", "PodMonitor", "ConfigMap"}
    values = {"prometheusRule_enabled": True, "prometheusRule_labels": {"team": "ops"}}
    values |= {"dashboards_enabled": True, "serviceMonitor_enabled": True, "cpu_enabled": True}
    rows = charts.rendered(programs, **values)
    rule = find(rows, "PrometheusRule", "fairlead")
    assert rule["metadata"]["labels"]["team"] == "ops"
    files = CHART / "files"
    assert rule["spec"] == yaml.safe_load((files / "alerts.yaml").read_text())
    boards = find(rows, "ConfigMap", "fairlead-dashboards")
    assert boards["metadata"]["labels"]["grafana_dashboard"] == "1"
    shipped = {f"fairlead-{path.name}": path.read_text() for path in files.glob("dashboards/*")}
    assert len(shipped) == 3
    found = {name: json.loads(text) for name, text in boards["data"].items()}
    assert found == {name: json.loads(text) for name, text in shipped.items()}
    monitor = find(rows, "PodMonitor", "fairlead-node")["spec"]
    pods = find(rows, "DaemonSet", "fairlead-node")["spec"]["template"]
    labels = pods["metadata"]["labels"]
    assert monitor["selector"]["matchLabels"].items() <= labels.items()
    assert labels[monitor["jobLabel"]].startswith("fairlead-"), "the job of the alert rules"
    (container,) = pods["spec"]["containers"]
    (endpoint,) = monitor["podMetricsEndpoints"]
    assert endpoint["port"] in [port["name"] for port in container["ports"]]


def object_of(required: list[str] | None = None, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required or []}


TEXT = {"type": "string"}
KEY = object_of(["key"], key=TEXT, name=TEXT, optional={"type": "boolean"})
LABELS = {"type": "object", "additionalProperties": TEXT}
ENDPOINT = object_of(
    port=TEXT,
    scheme={"type": "string", "enum": ["http", "https"]},
    interval={"type": "string", "pattern": r"^(0|([0-9]+(ms|[smhdwy]))+)$"},
    bearerTokenFile=TEXT,
    tlsConfig=object_of(serverName=TEXT, ca=object_of(configMap=KEY, secret=KEY)),
)
MONITOR = object_of(
    ["endpoints", "selector"],
    endpoints={"type": "array", "items": ENDPOINT},
    selector=object_of(matchLabels=LABELS),
)
POD_ENDPOINT = object_of(port=TEXT, interval=ENDPOINT["properties"]["interval"])
POD_MONITOR = object_of(
    ["podMetricsEndpoints", "selector"],
    jobLabel=TEXT,
    podMetricsEndpoints={"type": "array", "items": POD_ENDPOINT},
    selector=object_of(matchLabels=LABELS),
)
RULE = object_of(["alert", "expr"], alert=TEXT, expr=TEXT, labels=LABELS, annotations=LABELS)
RULE["properties"]["for"] = TEXT
GROUP = object_of(["name"], name=TEXT, rules={"type": "array", "items": RULE})
RULES = object_of(groups={"type": "array", "items": GROUP})


def operators_kind(kind: str, spec: dict[str, Any]) -> dict[str, Any]:
    """A kind of the Prometheus operator, as far as its documentation describes what we write of it;
    what it does not know is pruned."""
    single = kind.lower()
    names = {"kind": kind, "plural": f"{single}s", "singular": single, "listKind": f"{kind}List"}
    version = {
        "name": "v1",
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": object_of(["spec"], spec=spec)},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{single}s.monitoring.coreos.com"},
        "spec": {
            "group": "monitoring.coreos.com",
            "scope": "Namespaced",
            "names": names,
            "versions": [version],
        },
    }


OPERATORS = [
    operators_kind("ServiceMonitor", MONITOR),
    operators_kind("PodMonitor", POD_MONITOR),
    operators_kind("PrometheusRule", RULES),
]


def test_network_policy_and_service_monitor_are_taken_and_are_about_the_controller(
    programs: Programs, deployed: charts.Deployed
) -> None:
    """The API server stores all that the chart says; their selectors find the controller's pods and
    Service, and nothing of the agents."""
    cluster = deployed.cluster
    cluster.apply(OPERATORS)
    kinds = [f"crd/{kind['metadata']['name']}" for kind in OPERATORS]
    cluster.kubectl("wait", "--for=condition=Established", *kinds, "--timeout=30s")
    values: dict[str, Any] = {"serviceMonitor_enabled": True, "prometheusRule_enabled": True}
    values |= {"networkPolicy_egressPorts": [6443]}
    values |= {"cpu_enabled": True, "traffic_enabled": True}
    charts.install(cluster, **values)
    rows, name = charts.rendered(programs, **values), "fairlead-controller"
    stored: dict[str, Any] = {}
    for kind, plural, called in (
        ("ServiceMonitor", "monitoring.coreos.com/v1/{}/servicemonitors", name),
        ("PodMonitor", "monitoring.coreos.com/v1/{}/podmonitors", "fairlead-node"),
        ("PrometheusRule", "monitoring.coreos.com/v1/{}/prometheusrules", "fairlead"),
        ("NetworkPolicy", "networking.k8s.io/v1/{}/networkpolicies", name),
    ):
        path = plural.format(f"namespaces/{NAMESPACE}")
        stored[kind] = cluster.get(f"/apis/{path}/{called}")["spec"]
        assert stored[kind] == find(rows, kind, called)["spec"]

    def found(plural: str, labels: dict[str, str]) -> list[dict[str, Any]]:
        listed = cluster.get(f"/api/v1/namespaces/{NAMESPACE}/{plural}")["items"]
        chosen = [row for row in listed if labels.items() <= row["metadata"]["labels"].items()]
        return [row for row in chosen if "deletionTimestamp" not in row["metadata"]]

    agents = ("fairlead-node", "fairlead-traffic", name)
    until(
        lambda: all(found("pods", {"app.kubernetes.io/name": agent}) for agent in agents),
        "the controller and the agents have pods",
    )
    (pod,) = found("pods", stored["NetworkPolicy"]["podSelector"]["matchLabels"])
    (container,) = pod["spec"]["containers"]
    (rule,) = stored["NetworkPolicy"]["ingress"]
    assert [row["port"] for row in rule["ports"]] == [container["ports"][0]["containerPort"]]
    (service,) = found("services", stored["ServiceMonitor"]["selector"]["matchLabels"])
    assert service["spec"]["ports"][0]["name"] == stored["ServiceMonitor"]["endpoints"][0]["port"]
    charts.install(cluster, controller_replicas=0)


def test_the_policy_is_off_until_it_is_asked_for(programs: Programs) -> None:
    kind = "ValidatingAdmissionPolicy"
    assert not [row for row in charts.rendered(programs) if row["kind"].startswith(kind)]
    assert kind not in charts.run(programs, "kustomize", "build", str(BASE))
    rows = charts.rendered(programs, admissionPolicy_enabled=True)
    names = [row["metadata"]["name"] for row in rows if row["kind"] == kind]
    bound = [row["spec"]["policyName"] for row in rows if row["kind"] == f"{kind}Binding"]
    assert len(names) == 5
    assert sorted(names) == sorted(bound)


def test_the_chart_is_installed_upgraded_and_uninstalled(
    deployed: charts.Deployed, tmp_path: Path
) -> None:
    """On a real server: values change what runs; the kinds, their objects and the ledger stay."""
    cluster = deployed.cluster
    charts.install(cluster, controller_replicas=0)
    cluster.apply([made("Budget", "kept", {"owner": "kept", "envelopes": []})])
    charts.install(cluster, controller_replicas=0, controller_resolver="enforce")
    path = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/fairlead-controller"
    (container,) = cluster.get(path)["spec"]["template"]["spec"]["containers"]
    assert "--resolver=enforce" in container["args"]
    charts.uninstall(cluster)
    assert cluster.get(path) is None
    assert cluster.get("/apis/fairlead.dev/v1alpha1/budgets/kept") is not None
    claims = f"/api/v1/namespaces/{NAMESPACE}/persistentvolumeclaims/fairlead-ledger"
    assert cluster.get(claims) is not None
    charts.install(cluster, controller_replicas=0)  # and what stayed is taken up again
    cluster.kubectl("delete", "budget", "kept")
