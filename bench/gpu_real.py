"""`python -m bench.gpu_real [--out FILE]`: the limits of a shared GPU box on a real NVIDIA GPU.

Needs root, a GPU that nothing else uses, nvidia-ml-py, and PyTorch in the same Python. It runs
`fairlead up` in a folder of its own and submits real runs:

    processes     the control plane has no rights, and the launcher beside it is root
    lease         a run gets the discovered device by its UUID and computes on it
    filter        a run on a virtual node cannot open /dev/nvidia0, and can open everything else
    utilisation   a busy run is seen as busy, with its memory
    idle          an idle run is ended, with its grace, after its idleAfter
    maxRuntime    a run over its time saves its work and ends
    preemption    a run is preempted, writes a checkpoint, starts again and goes on from it
    quarantine    a device that a process beside Fairlead uses is given to no run until it is clean

Every row is checked; the exit code is 1 where one does not hold. Then every decision is replayed.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from fairlead.executor.devices import discover, flavor_of, host_name

ROOT = Path(__file__).resolve().parents[1]
WAIT_S = 90.0

OPEN = """
import os
for name in ("nvidia0", "nvidiactl", "nvidia-uvm", "null", "zero"):
    try:
        os.close(os.open("/dev/" + name, os.O_RDWR)); print(name, "opened")
    except OSError as error:
        print(name, error.strerror)
import torch
print("cuda", torch.cuda.is_available())
if torch.cuda.is_available():
    x = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    print("computed", float((x @ x).float().abs().mean()) > 0)
"""
BUSY = """
import torch
x = torch.randn(16384, 16384, device="cuda", dtype=torch.bfloat16)
held = torch.empty(8 * 2**30, dtype=torch.uint8, device="cuda")
while True:
    for _ in range(50):
        y = x @ x
    torch.cuda.synchronize()
"""
IDLE = """
import signal, time, torch
held = torch.empty(2**30, dtype=torch.uint8, device="cuda")
signal.signal(signal.SIGTERM, lambda *_: (print("asked to end", flush=True), exit(0)))
print("holding", flush=True)
time.sleep(600)  # until it is told to end
"""
TRAIN = """
import os, signal, sys, time, torch
path, most = sys.argv[1], int(sys.argv[2])
model = torch.nn.Linear(2048, 2048, device="cuda")
optimizer, step, stop = torch.optim.SGD(model.parameters(), lr=1e-3), 0, []
if os.path.exists(path):
    kept = torch.load(path)
    model.load_state_dict(kept["model"])
    optimizer.load_state_dict(kept["optimizer"])
    step = kept["step"]
print("begins at step", step, flush=True)
signal.signal(signal.SIGTERM, lambda *_: stop.append(1))
while step < most:
    loss = model(torch.randn(512, 2048, device="cuda")).square().mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step(); step += 1
    time.sleep(0.02)  # a step of a fixed length, so that the run is not over at once
    if stop:
        kept = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
        torch.save(kept, path + ".new")
        os.replace(path + ".new", path)
        print("saved step", step, flush=True)
        sys.exit(0)
print("done at step", step, flush=True)
"""
HOLD = """
import sys, time, torch
held = torch.empty(2 * 2**30, dtype=torch.uint8, device="cuda")
print("holding", flush=True)
time.sleep(600)  # until it is killed
"""


class Box:
    """`fairlead up` in a folder, and its command line."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.rows: list[dict[str, Any]] = []
        self.process: subprocess.Popen[bytes] | None = None
        self._env = {**os.environ, "FAIRLEAD_SERVER": str(folder / "fairlead.sock")}
        self._env |= {"FAIRLEAD_HEADS": str(folder / "heads.json")}
        self._env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT / "src"), *sys.path]))

    def up(self) -> None:
        command = [sys.executable, "-m", "fairlead", "up", "--data", str(self.folder), "--no-http"]
        options = ["--allow-root", "--grace", "20", "--resolver", "enforce", "--may-resolve", "b"]
        options += ["--min-runtime", "0s"]  # what is preempted here has just started
        self.folder.chmod(0o755)  # the control plane is not root
        log = (self.folder / "up.log").open("ab")
        self.process = subprocess.Popen([*command, *options], env=self._env, stderr=log)
        self.until("the server answers", (self.folder / "fairlead.sock").exists)

    def down(self) -> None:
        if self.process is not None:
            self.process.terminate()
            self.process.wait(60)

    def run(self, *words: str, given: object = None, check: bool = True) -> str:
        text = None if given is None else yaml.safe_dump_all(given)
        done = subprocess.run(
            [sys.executable, "-m", "fairlead", *words],
            env=self._env,
            input=text,
            capture_output=True,
            text=True,
            check=False,
        )
        if check and done.returncode:
            raise SystemExit(f"fairlead {' '.join(words)}: {done.stdout}{done.stderr}")
        return done.stdout

    def get(self, kind: str, name: str) -> dict[str, Any]:
        return json.loads(self.run("get", f"{kind}/{name}", "-o", "json"))

    def status(self, name: str) -> dict[str, Any]:
        return self.get("run", name)["status"]

    def submit(
        self, name: str, script: str, *arguments: str, owner: str = "a", **spec: Any
    ) -> None:
        command = [sys.executable, "-c", script, *arguments]
        document = {"owner": owner, "flavor": "GPU", "totalGPUs": 1, "command": command, **spec}
        self.run("submit", "-f", "-", given=[manifest("Run", name, document)])

    def until(self, what: str, holds: Callable[[], object], wait_s: float = WAIT_S) -> None:
        deadline = time.monotonic() + wait_s
        while not holds():
            if time.monotonic() > deadline:
                raise SystemExit(
                    f"not within {wait_s} s: {what}\n{self.run('get', 'runs', '-o', 'wide')}"
                )
            time.sleep(0.5)  # between two looks

    def phase(self, name: str, *phases: str) -> None:
        self.until(f"{name} is {phases}", lambda: self.status(name)["phase"] in phases)

    def logs(self, name: str) -> str:
        return self.run("logs", name, check=False)

    def row(self, name: str, holds: object, **facts: Any) -> None:
        self.rows.append({"name": name, "holds": bool(holds), **facts})
        print(f"{'ok  ' if holds else 'FAIL'} {name}: {facts}", flush=True)


def manifest(kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    head = {"apiVersion": "fairlead.dev/v1alpha1", "kind": kind, "metadata": {"name": name}}
    return {**head, "spec": spec}


def processes(box: Box, _flavor: str) -> None:
    """Who runs: `up` itself, and what it started."""
    assert box.process is not None
    control = box.process.pid
    names = {"control plane": str(control), "launcher": ""}
    for child in Path(f"/proc/{control}/task/{control}/children").read_text().split():
        if b"executor.launcher" in Path(f"/proc/{child}/cmdline").read_bytes():
            names["launcher"] = child
    uids = {name: os.stat(f"/proc/{pid}").st_uid for name, pid in names.items() if pid}
    box.row("processes", uids["control plane"] != 0 and uids.get("launcher") == 0, uids=uids)


def lease_and_filter(box: Box, flavor: str) -> None:
    box.submit("own", OPEN, flavor=flavor)
    box.submit("none", OPEN, flavor="Toy")
    box.phase("own", "Completed", "Failed")
    box.phase("none", "Completed", "Failed")
    own, none = box.logs("own"), box.logs("none")
    box.row("lease", "nvidia0 opened" in own and "computed True" in own, output=own.split("\n"))
    closed = "nvidia0 Operation not permitted" in none and "cuda False" in none
    others = all(f"{name} opened" in none for name in ("nvidiactl", "null", "zero"))
    box.row("filter", closed and others, output=none.split("\n"))


def utilisation(box: Box, flavor: str) -> None:
    box.submit("busy", BUSY, flavor=flavor)
    box.phase("busy", "Running")

    def use() -> dict[str, Any]:
        return box.status("busy")["use"] or {"utilisationPercent": 0, "memoryBytes": 0}

    box.until("it is seen as busy", lambda: use()["utilisationPercent"] > 50)
    seen = use()
    box.row("utilisation", seen["memoryBytes"] > 8 * 2**30 and seen["idleSince"] is None, **seen)
    print(box.run("get", "runs", "-o", "wide"), flush=True)
    box.run("cancel", "busy")
    box.phase("busy", "Failed")


def idle(box: Box, flavor: str) -> None:
    limits = {"idleAfter": "15s", "idleAction": "Release", "checkpointGrace": "10s"}
    box.submit("idle", IDLE, flavor=flavor, **limits)
    box.phase("idle", "Failed", "Completed")
    status, output = box.status("idle"), box.logs("idle")
    holds = status["reason"] == "Idle" and "asked to end" in output
    box.row("idle", holds, reason=status["reason"], output=output.split("\n"))


def max_runtime(box: Box, flavor: str) -> None:
    path = str(box.folder / "timed.pt")
    limits = {"maxRuntime": "15s", "duration": "1h", "checkpointGrace": "20s"}
    box.submit("timed", TRAIN, path, "1000000", flavor=flavor, **limits)
    box.phase("timed", "Failed", "Completed")
    status, output = box.status("timed"), box.logs("timed")
    holds = status["reason"] == "MaxRuntimeOver" and "saved step" in output
    box.row("maxRuntime", holds, reason=status["reason"], output=output.split("\n"))


def preemption(box: Box, flavor: str) -> None:
    path = str(box.folder / "train.pt")
    box.submit("train", TRAIN, path, "1500", flavor=flavor, checkpointGrace="30s")
    box.until("it trains", lambda: "begins" in box.logs("train"))
    time.sleep(5)  # some steps, so that the checkpoint holds more than the beginning
    box.submit("urgent", OPEN, flavor=flavor, owner="b")
    box.until("it waits", lambda: box.status("urgent")["reason"] == "NoDevices")
    began = time.monotonic()
    box.run("resolve", "--run", "urgent")
    box.phase("urgent", "Completed", "Failed")
    handed_s = time.monotonic() - began
    box.phase("train", "Completed", "Failed")
    status, output = box.status("train"), box.logs("train")
    step = int(next(line for line in output.split("\n") if "begins" in line).split()[-1])
    holds = status["phase"] == "Completed" and status["attempts"] == 2 and step > 0
    holds = holds and "done at step 1500" in output
    facts = {"attempts": status["attempts"], "resumed_at_step": step}
    box.row("preemption", holds, **facts, urgent_ran_after_s=round(handed_s, 1))


def quarantine(box: Box, flavor: str) -> None:
    box.submit("first", IDLE, flavor=flavor, checkpointGrace="5s")
    box.until("it holds", lambda: "holding" in box.logs("first"))
    stray = subprocess.Popen([sys.executable, "-c", HOLD], stdout=subprocess.PIPE)
    try:
        assert stray.stdout is not None
        stray.stdout.readline()
        box.run("cancel", "first")
        box.phase("first", "Failed")

        def dirty() -> list[str]:
            return box.get("node", host_name())["status"]["quarantined"]

        box.until("the device is quarantined", dirty)
        box.submit("second", OPEN, flavor=flavor)
        box.until("it waits", lambda: box.status("second")["reason"] == "NoDevices")
        named = dirty()
    finally:
        stray.send_signal(signal.SIGKILL)
        stray.wait()
    began = time.monotonic()
    box.phase("second", "Completed")
    clean_s = round(time.monotonic() - began, 1)
    box.row("quarantine", named == [f"{host_name()}#0"], devices=named, next_done_after_s=clean_s)


def source_commit() -> str:
    """What runs here; a copy without its history is told by --commit."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--commit", help="Of this source [default: git's].", default=None)
    arguments = parser.parse_args()
    out, commit = arguments.out, arguments.commit or source_commit()
    found = discover()
    if found.source != "nvml" or not found.devices:
        raise SystemExit(f"no NVIDIA device: {found.note}")
    flavor = flavor_of(found.devices[0].name)
    with tempfile.TemporaryDirectory(prefix="fairlead-gpu-") as made:
        box = Box(Path(made))
        try:
            box.up()
            node = box.get("node", host_name())
            envelopes = [
                {"name": name.lower(), "flavor": name, "concurrency": 1} for name in (flavor, "Toy")
            ]
            budgets = [
                manifest("Budget", owner, {"owner": owner, "envelopes": envelopes})
                for owner in "ab"
            ]
            toy = manifest("Node", "toy", {"virtual": True, "flavor": "Toy", "devices": 1})
            box.run("apply", "-f", "-", given=[toy, *budgets])
            for part in (
                processes,
                lease_and_filter,
                utilisation,
                idle,
                max_runtime,
                preemption,
                quarantine,
            ):
                part(box, flavor)
            replayed = box.run("replay", str(box.folder / "ledger.db"))
            print(replayed, flush=True)
        finally:
            box.down()
            print((Path(made) / "up.log").read_text()[-3000:], file=sys.stderr)
    about = {
        "commit": commit,
        "device": found.devices[0].name,
        "kernel": os.uname().release,
        "isolation": node["status"]["isolation"],
        "replay": replayed.strip().split("\n"),
        "rows": box.rows,
    }
    if out is not None:
        out.write_text(json.dumps(about, indent=2) + "\n")
    return 0 if all(row["holds"] for row in box.rows) else 1


if __name__ == "__main__":
    sys.exit(main())
