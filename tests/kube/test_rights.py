"""Controller and node agent with the rights of their shipped roles: none is missing, and each is
used."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from fairlead.api.cluster_server import ClusterListen
from fairlead.kube import queries
from fairlead.kube.cpu.pods import SWITCH
from fairlead.kube.dev.assets import Programs
from fairlead.kube.dev.cluster import Cluster
from fairlead.kube.dev.components import ClusterOptions
from fairlead.kube.kinds import crds
from tests.kube.cpu_world import HOLD, NODE, SPACE, Pods, pod
from tests.kube.test_api_server import get, port_of
from tests.kube.world import World, made, node, run, team, until
from tests.node.cgroup_worlds import PlainTree

BASE = Path(__file__).parents[2] / "deploy" / "kube" / "base"
ACCOUNT = "system:serviceaccount:fairlead:fairlead-controller"
NODE_ACCOUNT = "system:serviceaccount:fairlead:fairlead-node"
Right = tuple[str, str, str]
"""API group, resource and verb."""


@pytest.fixture
def audited(programs: Programs, tmp_path: Path) -> Iterator[tuple[World, Path]]:
    """A cluster that writes down who did what."""
    log, policy = tmp_path / "audit.log", tmp_path / "policy.json"
    users = [ACCOUNT, NODE_ACCOUNT]
    rule = {"level": "Metadata", "users": users, "omitStages": ["RequestReceived"]}
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


def granted(role: str = "fairlead-controller") -> set[Right]:
    return {
        (group, resource, verb)
        for row in _documents()
        if row["kind"] in ("ClusterRole", "Role") and row["metadata"]["name"] == role
        for rule in row["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def used(log: Path, account: str = ACCOUNT) -> tuple[set[Right], list[str]]:
    """What was done, and what was refused."""
    rights, refused = set(), []
    for line in log.read_text().splitlines():
        event = json.loads(line)
        if event["user"]["username"] != account:
            continue
        about = event["objectRef"]
        resource = "/".join(filter(None, (about["resource"], about.get("subresource"))))
        right = (about.get("apiGroup", ""), resource, event["verb"])
        rights.add(right)
        if event["responseStatus"]["code"] in (401, 403):
            refused.append(f"{right}: {event['responseStatus'].get('message')}")
    return rights, refused


def test_the_shipped_roles_are_what_controller_and_node_agent_need(
    audited: tuple[World, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
        _limit_a_pod(world, tmp_path)
    for who, role in ((ACCOUNT, "fairlead-controller"), (NODE_ACCOUNT, "fairlead-node")):
        rights, refused = used(log, who)
        assert refused == []
        assert rights - granted(role) == set(), "allowed by something else than the shipped role"
        assert granted(role) - rights == set(), "never used"


def _limit_a_pod(world: World, folder: Path) -> None:
    """The node agent as the DaemonSet starts it, on files that stand for the node's cgroups."""
    pods, tree = Pods(world), PlainTree(2, folder / "cgroups")
    (tree.root / "cgroup.controllers").write_text("cpu\n")
    world.apply(pod("web", 800, annotations=HOLD))
    pods.running("web")
    pods.acknowledge("web", containerID="kwok://c1")
    quota = tree.root / "kubepods" / "burstable" / f"pod{pods.uid('web')}" / "c1" / "cpu.max"
    tree.create(str(quota.parent.relative_to(tree.root)))
    quota.write_text("80000 100000\n")
    with _node_agent(world, folder):

        def asked() -> int:
            found = world.get("podallocations")["items"]
            return found[0]["spec"]["containers"][0]["limitMillicores"] if found else 0

        first = until(asked, "a PodAllocation")
        quota.write_text(f"{first * 100} 100000\n")
        until(lambda: asked() not in (0, first), "another limit")
        until(lambda: pods.limit("web") < 800, "the pod is resized")
        world.kubectl("-n", SPACE, "annotate", "pod", "web", f"{SWITCH}=off")
        until(lambda: not asked(), "the PodAllocation is removed")


@contextmanager
def _node_agent(world: World, folder: Path) -> Iterator[None]:
    (manifest,) = yaml.safe_load_all((BASE / "node.yaml").read_text())
    (container,) = manifest["spec"]["template"]["spec"]["containers"]
    here = {"--cgroups": folder / "cgroups", "--state-dir": folder / "node", "--metrics-port": 0}
    names = [text.partition("=")[0] for text in container["args"]]
    args = [
        f"{name}={here[name]}" if name in here else text
        for name, text in zip(names, container["args"], strict=True)
    ]
    account = world.cluster.kubeconfig_for(NODE_ACCOUNT, ("system:serviceaccounts",))
    settings = folder / "fast.yaml"
    settings.write_text(
        json.dumps({"clear_ms": 1000, "guardrails": {"cooldown_ms": 0, "grace_ms": 0}})
    )
    command = [sys.executable, "-m", "fairlead", *args, "--config", str(settings)]
    env = {**os.environ, "NODE_NAME": NODE, "KUBECONFIG": str(account)}
    process = subprocess.Popen(command, env=env)
    try:
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


def test_the_shipped_crds_are_generated() -> None:
    shipped = list(yaml.safe_load_all((BASE / "crds.yaml").read_text()))
    assert shipped == crds(), "run: fairlead kube crds > deploy/kube/base/crds.yaml"


def test_no_role_has_a_wildcard() -> None:
    assert "*" not in (BASE / "rbac.yaml").read_text()
