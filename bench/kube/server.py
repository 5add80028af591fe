"""One API server with its etcd for one arm, what it and a controller used, and who called it."""

import contextlib
import json
import os
import shutil
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from fairlead.kube.client import KubeClient, connection
from fairlead.kube.dev.assets import Programs, ensure
from fairlead.kube.dev.cluster import Cluster
from fairlead.kube.dev.components import ClusterOptions
from fairlead.kube.dev.pins import AssetSet

MASTERS = ("system:masters",)
CONTROLLER, HARNESS = "bench:controller", "bench:harness"
"""Who the two clients are, on either side: the audit log counts by user."""
NICE = -10
_TICKS = os.sysconf("SC_CLK_TCK")
_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived", "ResponseStarted"],
    "omitManagedFields": True,
    "rules": [{"level": "Metadata"}],
}


def before_others(pid: int) -> None:
    """Before other work of a shared machine. A process with a session of its own is scheduled with
    that session, which has a niceness of its own; without the right to set it, nothing changes."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, pid, NICE)
        Path(f"/proc/{pid}/autogroup").write_text(str(NICE))


@dataclass(slots=True)
class Server:
    """A started API server."""

    cluster: Cluster
    controller: Path
    """The kubeconfig of the controller that is measured."""
    harness: Path
    audit: Path
    pids: dict[str, int] = field(default_factory=dict)

    def client(self) -> KubeClient:
        return KubeClient(connection(self.harness))

    def watch_processes(self, **pids: int) -> None:
        known = self.cluster.pids()
        names = {"api_server": "kube-apiserver", "etcd": "etcd"}
        self.pids = {name: known[program] for name, program in names.items()} | pids

    def used(self) -> dict[str, dict[str, float]]:
        """CPU seconds and the largest memory of each process so far."""
        return {name: _used(pid) for name, pid in self.pids.items()}

    def calls(self) -> dict[str, dict[str, int]]:
        """Requests by user, and for each by verb and kind; watches are one request each."""
        time.sleep(3)  # the log is written in batches
        counted: dict[str, Counter[str]] = {CONTROLLER: Counter(), HARNESS: Counter()}
        with self.audit.open("rb") as log:
            for line in log:
                row = json.loads(line)
                user = row["user"].get("username", "")
                if user not in counted:
                    continue
                about = row.get("objectRef", {})
                parts = (about.get("resource", row["requestURI"]), about.get("subresource"))
                counted[user][f"{row['verb']} {'/'.join(filter(None, parts))}"] += 1
        return {user: dict(count.most_common()) for user, count in counted.items()}


@contextlib.contextmanager
def started(options: ClusterOptions | None = None, *, peers: bool = False) -> Iterator[Server]:
    """A fresh server; everything of it goes with the block. `peers`: Kueue's programs too."""
    programs: Programs = ensure(frozenset({AssetSet.PEERS} if peers else ()), print)
    folder = Path(tempfile.mkdtemp(prefix="fairlead-bench-"))
    policy, audit = folder / "policy.json", folder / "audit.log"
    policy.write_text(json.dumps(_POLICY))
    flags = (f"--audit-policy-file={policy}", f"--audit-log-path={audit}", "--audit-log-mode=batch")
    base = options or ClusterOptions(controllers=False, scheduler=False)
    chosen = ClusterOptions(
        nodes=base.nodes,
        gpus=base.gpus,
        scheduler=base.scheduler,
        controllers=base.controllers,
        stages=base.stages,
        api_flags=flags,
    )
    cluster, over = Cluster(programs, folder / "cluster", chosen), threading.Event()
    threading.Thread(target=_hurry, args=(cluster, over), daemon=True).start()
    try:
        with cluster:
            over.set()
            for pid in cluster.pids().values():
                before_others(pid)
            yield Server(
                cluster,
                cluster.kubeconfig_for(CONTROLLER, MASTERS),
                cluster.kubeconfig_for(HARNESS, MASTERS),
                audit,
            )
    finally:
        over.set()
        shutil.rmtree(folder, ignore_errors=True)


def _hurry(cluster: Cluster, over: threading.Event) -> None:
    """Before other work also while it starts."""
    while not over.wait(0.5):
        for pid in list(cluster.pids().values()):
            before_others(pid)


def _used(pid: int) -> dict[str, float]:
    """Of a process that is alive."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    (peak,) = (line.split()[1] for line in status if line.startswith("VmHWM"))
    return {"cpu_s": (int(fields[11]) + int(fields[12])) / _TICKS, "peak_mib": int(peak) / 1024}
