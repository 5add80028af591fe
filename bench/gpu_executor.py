"""`python -m bench.gpu_executor`: the executor alone on a real NVIDIA GPU, with PyTorch.

Needs root, nvidia-ml-py and PyTorch, and nothing else of Fairlead's dependencies. A job with a
lease computes; one without cannot open the device; a stop saves a checkpoint, and the next start
goes on. `bench.gpu_real` shows the same and more with the whole control plane.
"""

import json
import sys
import tempfile
import time
from pathlib import Path

import pynvml

from fairlead.executor.devices import discover, minors, visible
from fairlead.executor.local import LocalExecutor
from fairlead.ports.executor import Job

OPEN = """import os, torch
for n in ("nvidia0", "nvidiactl", "null"):
    try: os.close(os.open("/dev/" + n, os.O_RDWR)); print(n, "opened")
    except OSError as e: print(n, e.strerror)
print("cuda", torch.cuda.is_available())"""
TRAIN = """import os, signal, sys, torch
p, end, stop = sys.argv[1], int(sys.argv[2]), []
signal.signal(signal.SIGTERM, lambda *_: stop.append(1))
x = torch.randn(16384, 16384, device="cuda", dtype=torch.bfloat16)
step = torch.load(p)["step"] if os.path.exists(p) else 0
print("begins at", step, flush=True)
while step < end and not stop:
    y = x @ x; torch.cuda.synchronize(); step += 1
torch.save({"step": step, "x": x}, p); print("saved at", step)"""


def main() -> int:
    found = discover()
    with tempfile.TemporaryDirectory() as made:
        box = LocalExecutor(
            Path(made), allow_root=True, visible=visible(found, "box"), minors=minors(found, "box")
        )

        def start(id: str, script: str, slot: str, *more: str) -> None:
            command = (sys.executable, "-c", script, *more)
            box.start(Job(id, id, "a", command, (slot,)))

        def end(id: str) -> str:
            while id in box.running():
                time.sleep(0.2)
            return "".join(part.read_text() for part in box.log_parts(id))

        start("own", OPEN, "box#0")
        start("none", OPEN, "toy#0")
        rows = {"own": end("own"), "none": end("none")}
        start("train", TRAIN, "box#0", f"{made}/x.pt", "1000000")
        time.sleep(25)
        pynvml.nvmlInit()
        card = pynvml.nvmlDeviceGetHandleByIndex(0)
        rows["busy_percent"] = str(pynvml.nvmlDeviceGetUtilizationRates(card).gpu)
        rows["memory_used"] = str(pynvml.nvmlDeviceGetMemoryInfo(card).used)
        box.stop("train", 20_000, decision="limit")
        rows["stopped"] = end("train")
        step = int(rows["stopped"].split()[-1]) + 500
        start("again", TRAIN, "box#0", f"{made}/x.pt", str(step))
        rows["again"] = end("again")
        rows["memory_after"] = str(pynvml.nvmlDeviceGetMemoryInfo(card).used)
        about = {"device": found.devices[0].name, "isolation": box.controls.words(), **rows}
        print(json.dumps(about, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
