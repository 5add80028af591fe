"""One run of one side: Kueue by its own harness, Fairlead by ours, each on a server of its own."""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from bench.kube.load import CLASS, CLASSES, Load, WorkloadSet, run
from bench.kube.minimal_kueue import without_limit
from bench.kube.observer import Observer
from bench.kube.server import CONTROLLER, HARNESS, Server, before_others, started
from bench.timing import ROOT
from fairlead.host.process import spawn
from fairlead.kube.client import KubeClient, connection
from fairlead.kube.dev.components import fake_node
from fairlead.kube.kinds import KINDS, crds

Line = dict[str, Any]
QPS, BURST = 50.0, 100
BEFORE_S = 3.0
"""Before workloads are created: either controller has its whole burst again."""
GPUS = 8
PREFIX = "fairlead-bench-"
RAM = "/dev/shm" if Path("/dev/shm").is_dir() else None
"""Where our ledger is: etcd, which is Kueue's memory, does not sync to disk here either."""
SILENCE_S = 60.0
"""An arm that shows nothing new for so long is over: what is missing is in its figures."""
HARNESS_QPS, HARNESS_BURST = 1000, 2000
"""What Kueue's runner gives its own clients on the server that it starts by itself."""
KUEUE_CLASS = "kueue.x-k8s.io/performance-scheduler-class"
WORKLOADS = "/apis/kueue.x-k8s.io/v1beta2/workloads"


def fairlead(load: Load, *, limited: bool) -> Line:
    """Our controller; our harness creates the Runs."""
    with started() as server, tempfile.TemporaryDirectory(prefix=PREFIX, dir=RAM) as data:
        client = server.client()
        _install(server, client, load)
        observer = Observer(connection(server.harness), KINDS["Run"].path(), CLASS, "Completed")
        observer.start()
        command = [sys.executable, "-m", "bench.kube.controller", "--data", data]
        command += ["--kubeconfig", str(server.controller)]
        command += ["--qps", str(QPS), "--burst", str(BURST)] if limited else []
        with open(Path(data) / "log", "wb") as log:
            process = spawn(command, output=log, cwd=str(ROOT), ends_with_us=signal.SIGKILL)
            before_others(process.pid)
            try:
                await_ready(lambda: b"leads" in (Path(data) / "log").read_bytes(), process)
                await_ready(lambda: is_ready(client, load), process)
                time.sleep(BEFORE_S)  # for the bucket to fill, which shows nowhere
                server.watch_processes(controller=process.pid)
                before = server.used()
                threads = [
                    threading.Thread(target=_create, args=(server, each), daemon=True)
                    for each in load.sets()
                ]
                for thread in threads:
                    thread.start()
                _follow(observer, load.workloads, process)
                return _figures(load, observer, server, before)
            finally:
                observer.stop()
                end(process)


def kueue(load: Load, *, limited: bool) -> Line:
    """Kueue's minimal controller and its own harness, which creates and finishes the workloads."""
    with started(peers=True) as server, tempfile.TemporaryDirectory(prefix=PREFIX) as out:
        folder, programs = Path(out), server.cluster.programs
        bases = programs.data("kueue") / "config" / "components" / "crd" / "bases"
        server.cluster.kubectl("create", "-f", str(bases))
        server.cluster.kubectl("wait", "--for=condition=Established", "crd", "--all")
        (folder / "load.yaml").write_text(yaml.safe_dump(load.for_kueue()))
        observer = Observer(connection(server.harness), WORKLOADS, KUEUE_CLASS, "Finished")
        observer.start()
        minimal = programs.path("minimalkueue") if limited else str(without_limit(programs))
        with open(folder / "log", "wb") as log, open(folder / "runner.log", "wb") as said:
            controller = spawn(
                [minimal, "--kubeconfig", str(server.controller)],
                output=log,
                ends_with_us=signal.SIGKILL,
            )
            before_others(controller.pid)
            time.sleep(BEFORE_S)  # it has no probe; by then it has listed what it watches
            server.watch_processes(controller=controller.pid)
            before = server.used()
            command = [programs.path("kueue-perf-runner"), "--o", out, "--timeout=30m"]
            command += [f"--generatorConfig={folder / 'load.yaml'}"]
            command += [f"--qps={HARNESS_QPS}", f"--burst={HARNESS_BURST}"]
            runner = spawn(
                command,
                output=said,
                env={**os.environ, "KUBECONFIG": str(server.harness)},
                ends_with_us=signal.SIGKILL,
            )
            before_others(runner.pid)
            try:
                _follow(observer, load.workloads, controller)
                figures = _figures(load, observer, server, before)
                await_ready((folder / "summary.yaml").exists, controller)
                return figures | {"own_summary": _summary(folder / "summary.yaml")}
            finally:
                observer.stop()
                end(runner)
                end(controller)


def _summary(path: Path) -> Line:
    """What Kueue's own recorder says of the same run."""
    found = yaml.safe_load(path.read_text())
    queues = found["clusterQueueClasses"]["cq"]
    classes = found["workloadClasses"]
    return {
        "quota_use": queues["cpuAverageUsage"] / queues["nominalQuota"],
        "admission_mean_s": {
            name: row["averageTimeToAdmissionMs"] / 1000 for name, row in classes.items()
        },
        "evictions": sum(row["totalEvictions"] for row in classes.values()),
    }


def _install(server: Server, client: KubeClient, load: Load) -> None:
    """Our kinds, the nodes, and whose everything is."""
    server.cluster.apply(crds())
    server.cluster.kubectl("wait", "--for=condition=Established", "crd", "--all")
    # A run of 20 takes three nodes: a few more than the quota, so that devices are not the limit.
    for number in range(load.quota * 5 // 4 // GPUS + 3):
        client.create("/api/v1/nodes", fake_node(number, GPUS))
    server.cluster.apply(load.for_fairlead())


def is_ready(client: KubeClient, load: Load) -> bool:
    """Whether every budget is accepted: until then there is nothing to admit with."""
    found, _ = client.list(KINDS["Budget"].path())
    held = [row for each in found for row in each.get("status", {}).get("conditions", ())]
    accepted = [row for row in held if row["type"] == "Accepted" and row["status"] == "True"]
    return len(accepted) == load.cohorts * load.queues


def _create(server: Server, workloads: WorkloadSet) -> None:
    """One after the other, each a while after the last, as Kueue's generator does."""
    client, of = server.client(), workloads.of
    path = KINDS["Run"].path(workloads.queue)
    for number in range(workloads.count):
        time.sleep(of.every_ms / 1000)  # the benchmark's own interval
        client.create(path, run(f"{of.name}-{number}", workloads.queue, of))


def _follow(observer: Observer, workloads: int, process: subprocess.Popen[bytes]) -> None:
    """Until all are finished, or nothing happens any more."""
    last, since, said = (0, 0, 0), time.monotonic(), 0.0
    while observer.counts()[2] < workloads:
        counts, now = observer.counts(), time.monotonic()
        if counts != last:
            last, since = counts, now
        if process.poll() is not None or now - since > SILENCE_S:
            print(f"    over with created, admitted, finished: {counts}", flush=True)
            return
        if now - said > 20:
            said = now
            print(f"    created, admitted, finished: {counts}", flush=True)
        time.sleep(0.25)  # the observer has the times; this only looks for the end


def _figures(load: Load, observer: Observer, server: Server, before: Line) -> Line:
    rows = list(observer.seen.values())
    used = server.used()
    began = min((row.created_s for row in rows), default=0.0)
    created, admitted, finished = observer.counts()
    last_admitted = max((row.admitted_s for row in rows if row.admitted_s), default=began)
    last_finished = max((row.finished_s for row in rows if row.finished_s), default=began)
    calls = server.calls()
    by_class = {of.name: _latency([row for row in rows if row.of == of.name]) for of in CLASSES}
    needed = sum(each.count * each.of.gpus * each.of.runtime_ms / 1000 for each in load.sets())
    return {
        "workloads": load.workloads,
        "created": created,
        "admitted": admitted,
        "finished": finished,
        "admitted_s": last_admitted - began,
        "finished_s": last_finished - began,
        "per_s": admitted / max(last_admitted - began, 1e-9),
        "finished_per_s": finished / max(last_finished - began, 1e-9),
        "quota_use": needed / (load.quota * max(last_finished - began, 1e-9)),
        "latency": by_class,
        "calls": calls,
        "calls_per_workload": sum(calls[CONTROLLER].values()) / max(created, 1),
        "harness_calls_per_workload": sum(calls[HARNESS].values()) / max(created, 1),
        "processes": {
            name: {"cpu_s": row["cpu_s"] - before[name]["cpu_s"], "peak_mib": row["peak_mib"]}
            for name, row in used.items()
        },
        "curve": _curve(rows, began),
    }


def _latency(rows: list[Any]) -> Line:
    taken = sorted(row.admitted_s - row.created_s for row in rows if row.admitted_s is not None)
    if not taken:
        return {"count": 0}
    return {
        "count": len(taken),
        "mean_s": sum(taken) / len(taken),
        "p95_s": taken[min(len(taken) - 1, len(taken) * 95 // 100)],
        "max_s": taken[-1],
    }


def _curve(rows: list[Any], began: float, points: int = 120) -> Line:
    """How many were created, admitted and finished by when."""
    lists = {
        name: sorted(at - began for at in (getattr(row, f"{name}_s") for row in rows) if at)
        for name in ("created", "admitted", "finished")
    }
    end = max((times[-1] for times in lists.values() if times), default=0.0)
    marks = [end * i / points for i in range(points + 1)]
    return {"s": marks} | {
        name: [sum(at <= mark for at in times) for mark in marks] for name, times in lists.items()
    }


def await_ready(ready: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 120
    while not ready():
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError("the controller does not start, or does not end")
        time.sleep(0.05)  # polling interval, with a deadline


def end(process: subprocess.Popen[bytes], within_s: float = 20) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(within_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
