"""The chart as tests use it: Helm with a cluster's rights, accounts with tokens of their own."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from fairlead.kube.dev.assets import Programs, explain_missing
from fairlead.kube.dev.cluster import Cluster
from fairlead.kube.dev.components import ClusterOptions
from fairlead.kube.dev.pins import AssetSet

ROOT = Path(__file__).parents[2]
CHART, BASE = ROOT / "deploy" / "chart" / "fairlead", ROOT / "deploy" / "kube" / "base"
NAMESPACE, CONTROLLER = "fairlead", "fairlead-controller"
USERS, GROUP = f"system:serviceaccount:{NAMESPACE}:", f"system:serviceaccounts:{NAMESPACE}"
Right = tuple[str, str, str]
"""API group, resource and verb."""


class Deployed:
    """A cluster for the chart, which writes down what the chart's accounts do."""

    def __init__(self, cluster: Cluster, log: Path) -> None:
        self.cluster, self._log = cluster, log

    def audit(self) -> "Audit":
        """From now on."""
        return Audit(self._log)


class Audit:
    """What accounts did since this was made."""

    def __init__(self, log: Path) -> None:
        self._log, self._from = log, log.stat().st_size if log.exists() else 0

    def of(self, account: str) -> tuple[set[Right], list[str]]:
        """What one did, and what was refused."""
        rights, refused = set(), []
        with self._log.open() as lines:
            lines.seek(self._from)
            events = [json.loads(line) for line in lines]
        for event in events:
            if event["user"]["username"] != f"{USERS}{account}" or "objectRef" not in event:
                continue
            about = event["objectRef"]
            resource = "/".join(filter(None, (about["resource"], about.get("subresource"))))
            right = (about.get("apiGroup", ""), resource, event["verb"])
            rights.add(right)
            if event["responseStatus"]["code"] in (401, 403):
                refused.append(f"{right}: {event['responseStatus'].get('message')}")
        return rights, refused


def start(programs: Programs, folder: Path) -> Iterator[Deployed]:
    log, policy = folder / "audit.log", folder / "policy.json"
    rule = {"level": "Metadata", "userGroups": [GROUP], "omitStages": ["RequestReceived"]}
    document = {
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "rules": [rule, {"level": "None"}],
    }
    policy.write_text(json.dumps(document))
    flags = (
        f"--audit-policy-file={policy}",
        f"--audit-log-path={log}",
        "--feature-gates=DRAExtendedResource=true",
    )
    options = ClusterOptions(nodes=1, gpus=0, api_flags=flags)
    with Cluster(programs, folder / "cluster", options) as cluster:
        yield Deployed(cluster, log)


def missing_tools() -> str | None:
    """Helm and kustomize, beside the programs of a cluster."""
    return explain_missing(frozenset({AssetSet.TOOLS}))


def run(programs: Programs, *command: str, config: Path | None = None) -> str:
    """Run Helm or kustomize; its output."""
    environment = {**os.environ, "KUBECONFIG": str(config or os.devnull)}
    done = subprocess.run(
        [programs.path(command[0]), *command[1:]],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
    return done.stdout


def rendered(programs: Programs, **values: Any) -> list[dict[str, Any]]:
    """The objects of the chart with these values, `a_b` for `a.b`."""
    text = run(
        programs, "helm", "template", "fairlead", str(CHART), "-n", NAMESPACE, *given(values)
    )
    return [row for row in yaml.safe_load_all(text) if row]


def granted(programs: Programs, account: str, **values: Any) -> set[Right]:
    """What the chart's roles of this name allow."""
    return {
        (group, resource, verb)
        for row in rendered(programs, **values)
        if row["kind"] in ("ClusterRole", "Role") and row["metadata"]["name"] == account
        for rule in row["rules"]
        for group in rule.get("apiGroups", ())  # a path of an HTTP server has none
        for resource in rule.get("resources", ())
        for verb in rule["verbs"]
    }


def given(values: dict[str, Any]) -> list[str]:
    """Values as options of Helm."""
    rows = {name.replace("_", "."): json.dumps(value) for name, value in values.items()}
    return [part for row in rows.items() for part in ("--set-json", "=".join(row))]


def install(cluster: Cluster, **values: Any) -> None:
    """Install the chart, or upgrade it to these values."""
    command = ("helm", "upgrade", "--install", "fairlead", str(CHART), "-n", NAMESPACE)
    arguments = [*command, "--create-namespace", *given(values)]
    run(cluster.programs, *arguments, config=cluster.kubeconfig)


def uninstall(cluster: Cluster) -> None:
    run(
        cluster.programs,
        "helm",
        "uninstall",
        "fairlead",
        "-n",
        NAMESPACE,
        config=cluster.kubeconfig,
    )


def account(cluster: Cluster, namespace: str, name: str, folder: Path, *bound: str) -> Path:
    """A kubeconfig with a token of a service account."""
    token = cluster.kubectl("-n", namespace, "create", "token", name, *bound).strip()
    config = yaml.safe_load(cluster.kubeconfig.read_text())
    (user,) = config["users"]
    user["user"] = {"token": token}
    path = folder / f"{namespace}-{name}.yaml"
    path.write_text(yaml.safe_dump(config))
    path.chmod(0o600)
    return path


def page(name: str) -> str:
    """The commands of docs/kubernetes-operate.md under this mark."""
    text = (ROOT / "docs" / "kubernetes-operate.md").read_text()
    (found,) = re.findall(rf"<!-- proven: {re.escape(name)} -->\n```sh\n(.*?)```", text, re.DOTALL)
    return str(found)


def follow(cluster: Cluster, name: str, *, folder: Path = ROOT) -> str:
    """Run them as an admin does; what they printed."""
    path = f"{cluster.programs.directory}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", page(name)],
        cwd=folder,
        env={**os.environ, "PATH": path, "KUBECONFIG": str(cluster.kubeconfig)},
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert done.returncode == 0, f"{name}: {done.stdout}{done.stderr}"
    return done.stdout
