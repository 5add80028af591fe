"""One tiny job through the real executor, reported as JSON; exit 0 when all went as promised.

    python -m tests.executor.smoke [--user NAME]

Needs Python's standard library and this repository; nvidia-ml-py to find GPUs. On a machine with a
GPU the job gets the first one and asks CUDA's driver how many it can see; the answer must be one.
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from fairlead.executor.devices import discover, visible
from fairlead.executor.local import LocalExecutor
from fairlead.host.clock import wait_until
from fairlead.ports.executor import Exit, Job

_UNPRIVILEGED = "65534"
_TIMEOUT_S = 60.0
_SCRIPT = """
echo "cuda_visible_devices=$CUDA_VISIBLE_DEVICES"
echo "uid=$(id -u)"
[ -z "$PYTHON" ] || "$PYTHON" -I -S -c "$PROBE"
(setsid sleep 600 &)
echo done
"""
_PROBE = """
import ctypes
try:
    cuda = ctypes.CDLL("libcuda.so.1")
    count = ctypes.c_int(-1)
    print("cuda_init=%d" % cuda.cuInit(0))
    print("cuda_count_answer=%d" % cuda.cuDeviceGetCount(ctypes.byref(count)))
    print("cuda_devices_seen=%d" % count.value)
except OSError as error:
    print("cuda=%s" % error)
"""


def smoke(folder: Path, user: str | None) -> dict[str, object]:
    found = discover(virtual=1)
    executor = LocalExecutor(folder, visible=visible(found, "here"))
    job = Job(
        id="smoke-1",
        run="smoke",
        owner="smoke",
        command=("/bin/sh", "-c", _SCRIPT),
        devices=("here#0",),
        leases=("lease-1",),
        user=user,
        env={"PYTHON": sys.executable or "", "PROBE": _PROBE},
    )
    executor.start(job)
    ended = _wait(executor)
    output = "".join(part.read_text() for part in executor.log_parts("smoke"))
    reported = dict(line.split("=", 1) for line in output.splitlines() if "=" in line)
    executor.acknowledge([ended] if ended else [])
    return {
        "source": found.source,
        "note": found.note,
        "devices": [device.uuid for device in found.devices],
        "confinement": executor.kind,
        "exit_code": ended.code if ended else None,
        "reason": ended.reason if ended else "did not end in time",
        "cuda_visible_devices": reported.get("cuda_visible_devices"),
        "expected": found.devices[0].visible if found.devices else None,
        "cuda_devices_seen": reported.get("cuda_devices_seen"),
        "output": output,
    }


def _wait(executor: LocalExecutor) -> Exit | None:
    if wait_until(lambda: bool(executor.poll()), within_s=_TIMEOUT_S, every_s=0.05):
        return executor.poll()[0]
    executor.stop("smoke", 0, decision="smoke-1")
    return None


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="tests.executor.smoke", description=__doc__)
    parser.add_argument(
        "--user", default=_UNPRIVILEGED if os.geteuid() == 0 else None, metavar="NAME"
    )
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        report = smoke(Path(folder), options.user)
    json.dump(report, sys.stdout, indent=2)
    sys.stdout.write("\n")
    as_promised = report["exit_code"] == 0 and report["cuda_visible_devices"] == report["expected"]
    return 0 if as_promised else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
