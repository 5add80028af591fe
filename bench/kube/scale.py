"""Runs with pods on simulated nodes: how long until everything that fits runs, and what it costs.

KWOK plays the kubelets; API server, etcd, controllers and scheduler are real, and so is our
controller with its pods, without a client limit.
"""

import json
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

from bench.kube.arms import PREFIX, RAM, Line, await_ready, end, is_ready
from bench.kube.load import CLASS, Load, WorkloadClass, run
from bench.kube.observer import Observer
from bench.kube.server import CONTROLLER, Server, before_others, started
from bench.timing import ROOT
from fairlead.host.process import spawn
from fairlead.kube.client import connection
from fairlead.kube.dev.components import ClusterOptions
from fairlead.kube.kinds import KINDS, crds

GPUS, OWNERS, CREATORS = 8, 10, 8
ONE = WorkloadClass("one", 1, 0, 0, 0)
_PARALLEL = """\
kind: KwokConfiguration
apiVersion: config.kwok.x-k8s.io/v1alpha1
options:
  podPlayStageParallelism: 32
  nodePlayStageParallelism: 16
  nodeLeaseParallelism: 16
"""


def measure(nodes: int, runs: int, limit_s: float) -> Line:
    """`runs` of one GPU each, created as fast as the server takes them; they do not end. It is over
    when all that fit run, or after a while."""
    with (
        tempfile.TemporaryDirectory(prefix=PREFIX) as folder,
        started(_fleet(nodes, Path(folder))) as server,
        tempfile.TemporaryDirectory(prefix=PREFIX, dir=RAM) as data,
    ):
        server.cluster.apply(crds())
        server.cluster.kubectl("wait", "--for=condition=Established", "crd", "--all")
        load = Load(1, OWNERS, 1)
        quota = -(-nodes * GPUS // OWNERS)
        server.cluster.apply(load.for_fairlead(quota=quota))
        observer = Observer(connection(server.harness), KINDS["Run"].path(), CLASS, "Running")
        observer.start()
        timings = Path(data) / "timings.json"
        command = [sys.executable, "-m", "bench.kube.controller", "--data", data, "--pods"]
        command += ["--kubeconfig", str(server.controller), "--timings", str(timings)]
        with open(Path(data) / "log", "wb") as log:
            process = spawn(command, output=log, cwd=str(ROOT), ends_with_us=signal.SIGKILL)
            before_others(process.pid)
            try:
                await_ready(lambda: is_ready(server.client(), load), process)
                server.watch_processes(controller=process.pid)
                before = server.used()
                began = time.monotonic()
                _create(server, load, runs)
                created_s = time.monotonic() - began
                wanted = min(runs, nodes * GPUS)
                admitted_s, running_s, running = _follow(server, observer, wanted, began, limit_s)
                used, calls = server.used(), server.calls()[CONTROLLER]
            finally:
                observer.stop()
                end(process, within_s=90)  # it finishes its turn first
        spans = sorted(json.loads(timings.read_text())) if timings.exists() else [0.0]
    return {
        "nodes": nodes,
        "runs": runs,
        "runs_that_fit": wanted,
        "created_s": created_s,
        "admitted_runs": observer.counts()[1],
        "all_that_fit_admitted_s": admitted_s or f"not within {limit_s:.0f} s",
        "running_pods": running,
        "steady_state_s": running_s or f"not within {limit_s:.0f} s",
        "decisions": len(spans),
        "decision_p50_ms": spans[len(spans) // 2] * 1000,
        "decision_p99_ms": spans[len(spans) * 99 // 100] * 1000,
        "controller_peak_mib": used["controller"]["peak_mib"],
        "controller_cpu_s": used["controller"]["cpu_s"] - before["controller"]["cpu_s"],
        "api_server_cpu_s": used["api_server"]["cpu_s"] - before["api_server"]["cpu_s"],
        "api_calls_per_run": sum(calls.values()) / runs,
    }


def _fleet(nodes: int, folder: Path) -> ClusterOptions:
    """So many nodes. By default KWOK starts four pods at a time, which would be the limit here."""
    base = ClusterOptions(nodes=nodes, gpus=GPUS)
    stages = folder / "stages.yaml"
    stages.write_text(f"{Path(base.stages).read_text()}\n---\n{_PARALLEL}")
    return ClusterOptions(nodes=nodes, gpus=GPUS, stages=stages)


def _create(server: Server, load: Load, runs: int) -> None:
    queues = [queue for _, queue in load.names()]

    def some(lane: int) -> None:
        client = server.client()
        for number in range(lane, runs, CREATORS):
            queue = queues[number % len(queues)]
            client.create(KINDS["Run"].path(queue), run(f"run-{number}", queue, ONE))

    threads = [threading.Thread(target=some, args=(lane,)) for lane in range(CREATORS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _follow(
    server: Server, observer: Observer, wanted: int, began: float, limit_s: float
) -> tuple[float | None, float | None, int]:
    """When all that fit are admitted, and when all of their pods run, None: not in time; and how
    many pods run at the end."""
    admitted_s: float | None = None
    running = 0
    while time.monotonic() - began < limit_s:
        _, admitted, _ = observer.counts()
        if admitted_s is None and admitted >= wanted:
            admitted_s = time.monotonic() - began
        running = _running(server)
        print(f"    admitted {admitted}, pods that run {running}", flush=True)
        if running >= wanted and admitted_s is not None:
            return admitted_s, time.monotonic() - began, running
        time.sleep(max(1.0, wanted / 500))  # a list of thousands of pods is work for the server
    return admitted_s, None, running


def _running(server: Server) -> int:
    found, _ = server.client().list("/api/v1/pods", fieldSelector="status.phase=Running")
    return len(found)
