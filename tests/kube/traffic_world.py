"""RouteGroups on a real API server: Services and EndpointSlices by hand, backends on this machine.

The API server refuses endpoints on loopback, so backends listen at an address of this machine.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fairlead.dataplane.haproxy.config import HaproxyFiles
from fairlead.dataplane.haproxy.runtime import ask
from fairlead.dataplane.proxy import escape
from fairlead.kube.client import KubeClient, connection
from fairlead.kube.dev.cluster import Cluster
from fairlead.kube.kinds import KINDS
from fairlead.ports.dataplane import Backend
from tests.kube.world import Document, made

GROUPS = KINDS["RouteGroup"]
SLICES = "/apis/discovery.k8s.io/v1/namespaces"


def own_address() -> str:
    """An IPv4 address of this machine that is not loopback; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("198.51.100.1", 9))
        return str(probe.getsockname()[0])


def route_group(namespace: str, name: str = "web", **spec: Any) -> Document:
    fields = {"service": {"name": "web", "port": 80}, "dataplane": "haproxy", **spec}
    return made("RouteGroup", name, fields, namespace)


def service(namespace: str, name: str = "web", **spec: Any) -> Document:
    """Without a selector: its endpoints are written by the test."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"ports": [{"name": "http", "port": 80, "protocol": "TCP"}], **spec},
    }


class TrafficWorld:
    """One namespace of a cluster, and what is in it."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self.cluster, self.namespace = cluster, namespace
        self.client = KubeClient(connection(cluster.kubeconfig))

    def apply(self, *documents: Document) -> None:
        self.cluster.apply(documents)

    def endpoints(
        self, backends: Sequence[Backend], *, service: str = "web", **states: Document
    ) -> None:
        """A slice for each backend, since their ports differ; states are conditions by id."""
        wanted = {}
        for backend in backends:
            conditions = {"ready": True, "serving": True, "terminating": False}
            endpoint = {
                "addresses": [backend.host],
                "nodeName": "n7",
                "conditions": {**conditions, **states.get(backend.id, {})},
            }
            wanted[f"{service}-{backend.id}"] = {
                "apiVersion": "discovery.k8s.io/v1",
                "kind": "EndpointSlice",
                "metadata": {
                    "name": f"{service}-{backend.id}",
                    "namespace": self.namespace,
                    "labels": {"kubernetes.io/service-name": service},
                },
                "addressType": "IPv4",
                "ports": [{"name": "http", "port": backend.port, "protocol": "TCP"}],
                "endpoints": [endpoint],
            }
        path = f"{SLICES}/{self.namespace}/endpointslices"
        found, _ = self.client.list(path, labelSelector=f"kubernetes.io/service-name={service}")
        for item in found:
            if item["metadata"]["name"] not in wanted:
                self.client.delete(f"{path}/{item['metadata']['name']}")
        self.apply(*wanted.values())

    def status(self, name: str = "web") -> Document:
        found = self.client.get(GROUPS.path(self.namespace, name))
        assert found is not None
        return dict(found.get("status", {}))

    def condition(self, type: str, name: str = "web") -> Document:
        rows = self.status(name).get("conditions") or ()
        return next((row for row in rows if row["type"] == type), {})

    def entry(self, name: str = "web") -> Document:
        """What the one agent says."""
        entries = self.status(name).get("nodes") or [{}]
        return dict(entries[0])

    def address(self, name: str) -> str:
        """That the API server gave a Service."""
        found = self.client.get(f"/api/v1/namespaces/{self.namespace}/services/{name}")
        assert found is not None
        return str(found["spec"]["clusterIP"])

    def events(self) -> list[Document]:
        items, _ = self.client.list(f"/api/v1/namespaces/{self.namespace}/events")
        return items


class KubeTrafficProcess:
    """`fairlead traffic run --kube` as a process of its own, with the rights of its account."""

    def __init__(
        self,
        folder: Path,
        kubeconfig: Path,
        listen: str,
        *,
        namespace: str = "fairlead",
        node_name: str = "here",
        **settings: Any,
    ) -> None:
        self.state, self.file = folder / "state", folder / "traffic.yaml"
        self.log_path = folder / "agent.log"
        plane = settings.pop("plane", "haproxy")
        kube = {"kubeconfig": str(kubeconfig), "namespace": namespace, "node": node_name}
        kube["ports"] = "1024-65535"  # a free port is wherever the kernel has one
        if plane in ("haproxy", "envoy"):
            kube["listen"] = listen
        config = {
            "plane": plane,
            "state_dir": str(self.state),
            "node": {"watch": False},  # the machine may well be busy with other tests
            "kube": {**kube, "status_every_ms": 500},
            **settings,
        }
        self.file.write_text(json.dumps(config))
        self.before: Callable[[], None] | None = None
        self.start()

    def start(self) -> None:
        self.started_ms = time.time() * 1000
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "fairlead", "traffic", "run", str(self.file)], stderr=log
            )

    def groups(self) -> dict[str, Document]:
        path = self.state / "status.json"
        if not path.exists():
            return {}
        status = json.loads(path.read_text())
        if status["time_ms"] < self.started_ms:
            return {}
        return {group["group"]: group for group in status["groups"]}

    def slots(self, group: str) -> dict[str, int]:
        rows = self.groups().get(group, {}).get("backends", ())
        return {row["backend"]: row["slots"] for row in rows}

    def until(self, what: str, holds: Callable[[], object], seconds: float = 90) -> Any:
        """Wait for a condition on the world, not for a time."""
        deadline = time.monotonic() + seconds
        while not (found := holds()):
            assert self.process.poll() is None, f"the agent ended: {self.log()[-3000:]}"
            assert time.monotonic() < deadline, f"never {what}: {self.log()[-3000:]}"
            time.sleep(0.05)  # polling interval, not synchronisation
        return found

    def log(self) -> str:
        return self.log_path.read_text()

    def events(self, name: str) -> list[Document]:
        rows = [json.loads(line) for line in self.log().splitlines() if line.startswith("{")]
        return [row for row in rows if row["event"] == name]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=60)

    def decision_in_force(self, group: str) -> int:
        """The number that HAProxy has with the table it goes by."""
        files = HaproxyFiles(self.state / "haproxy")
        answer = ask(files.socket, f"show map {files.states}")
        rows = (line.split() for line in answer.splitlines() if line)
        states = {row[1]: row[2] for row in rows if len(row) == 3}
        head, _, _ = states[escape(group)].partition("|")
        return int(head.split(":")[3])

    def recorded(self, group: str) -> dict[int, str]:
        """Kinds of the recorded decisions, by number."""
        lines = [
            json.loads(line)
            for path in sorted((self.state / "record" / group).glob("segment-*.jsonl"))
            for line in path.read_text().splitlines()
        ]
        return {line["seq"]: line["kind"] for line in lines if "kind" in line and "input" in line}

    def close(self) -> None:
        """Take everything off the machine."""
        code = self.stop()
        done = self.fairlead("traffic", "remove", str(self.file))
        assert done.returncode == 0, done.stderr
        assert code in (0, -signal.SIGKILL, -signal.SIGTERM), self.log()[-3000:]

    def fairlead(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "fairlead", *arguments],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
            env={**os.environ, "FAIRLEAD_TRAFFIC_STATE_DIR": str(self.state)},
        )
