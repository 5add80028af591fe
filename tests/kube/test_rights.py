"""The controller with the rights of the shipped role: none is missing, and each is used."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from fairlead.api.cluster_server import ClusterListen
from fairlead.kube import queries
from fairlead.kube.dev.assets import Programs
from fairlead.kube.dev.cluster import Cluster
from fairlead.kube.dev.components import ClusterOptions
from fairlead.kube.kinds import crds
from tests.kube.test_api_server import get, port_of
from tests.kube.world import World, made, node, run, team, until

BASE = Path(__file__).parents[2] / "deploy" / "kube" / "base"
ACCOUNT = "system:serviceaccount:fairlead:fairlead-controller"
Right = tuple[str, str, str]
"""API group, resource and verb."""


@pytest.fixture
def audited(programs: Programs, tmp_path: Path) -> Iterator[tuple[World, Path]]:
    """A cluster that writes down who did what."""
    log, policy = tmp_path / "audit.log", tmp_path / "policy.json"
    rule = {"level": "Metadata", "users": [ACCOUNT], "omitStages": ["RequestReceived"]}
    document = {
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "rules": [rule, {"level": "None"}],
    }
    policy.write_text(json.dumps(document))
    flags = (f"--audit-policy-file={policy}", f"--audit-log-path={log}")
    options = ClusterOptions(nodes=1, gpus=0, api_flags=flags)
    with Cluster(programs, tmp_path / "cluster", options) as cluster:
        cluster.apply(crds())
        cluster.kubectl("create", "namespace", "fairlead")
        for row in _documents():
            row["metadata"].setdefault("namespace", "fairlead")
            cluster.apply([row])
        yield World(cluster, tmp_path), log


def _documents() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((BASE / "rbac.yaml").read_text()))


def granted() -> set[Right]:
    return {
        (group, resource, verb)
        for row in _documents()
        if row["kind"] in ("ClusterRole", "Role")
        and row["metadata"]["name"] == "fairlead-controller"
        for rule in row["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def used(log: Path) -> tuple[set[Right], list[str]]:
    """What was done, and what was refused."""
    rights, refused = set(), []
    for line in log.read_text().splitlines():
        event = json.loads(line)
        about = event["objectRef"]
        resource = "/".join(filter(None, (about["resource"], about.get("subresource"))))
        right = (about.get("apiGroup", ""), resource, event["verb"])
        rights.add(right)
        if event["responseStatus"]["code"] in (401, 403):
            refused.append(f"{right}: {event['responseStatus'].get('message')}")
    return rights, refused


def test_the_shipped_role_is_what_the_controller_needs(
    audited: tuple[World, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    world, log = audited
    monkeypatch.setattr(queries, "KEEP_S", 1.0)
    account = world.cluster.kubeconfig_for(ACCOUNT, ("system:serviceaccounts",))
    world.apply(node("n1"), node("n2"), *team("team-a"), *team("team-b"))
    world.apply(run("gang", 16, groupGPUs=8))
    with world.controlled(kubeconfig=account, namespace="fairlead"):
        world.reach("gang", "Running")
    listen = ClusterListen("127.0.0.1", 0)
    # It finds its pods again.
    with world.controlled(kubeconfig=account, namespace="fairlead", listen=listen):
        token = world.kubectl("-n", "team-a", "create", "token", "default").strip()
        assert get(port_of(world), "/metrics", token)[0] == 403
        world.apply(made("Query", "ask", {"method": "GET", "path": "/v1/budgets"}, "team-b"))
        reserve = {"run": "first", "earliestStart": "2026-01-01T00:00:00Z"}
        world.apply(run("first", 8, "team-b"), made("Reservation", "now", reserve, "team-b"))
        world.reach("first", "Running", "team-b")
        for name in ("resolveroutcomes", "gpuleases"):
            until(lambda name=name: world.names(name), f"{name} are shown")
        world.exit("first-0", 0, "team-b")
        world.reach("first", "Completed", "team-b")
        world.reach("gang", "Running")
        world.kubectl("delete", "node", "n2")
        until(lambda: world.phase("gang") != "Running", "the gang lost a node")
        world.kubectl("-n", "team-a", "delete", "run", "gang")
        world.kubectl("delete", "budget", "team-a")
        until(lambda: not world.names("queries"), "the Query is removed")
    rights, refused = used(log)
    assert refused == []
    assert rights - granted() == set(), "allowed by something else than the shipped role"
    assert granted() - rights == set(), "never used"


def test_the_shipped_crds_are_generated() -> None:
    shipped = list(yaml.safe_load_all((BASE / "crds.yaml").read_text()))
    assert shipped == crds(), "run: fairlead kube crds > deploy/kube/base/crds.yaml"


def test_no_role_has_a_wildcard() -> None:
    assert "*" not in (BASE / "rbac.yaml").read_text()
