"""kill -9 of the control plane and of shims at random moments, with an outside witness.

Each command appends its job's id to a file. Whatever is killed: every job gets exactly one exit, no
command begins twice, one that is said to have succeeded has begun, and nothing stays behind.
"""

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from fairlead.executor import confine
from fairlead.executor.confine import Kind
from fairlead.executor.local import LocalExecutor
from fairlead.ports.executor import Exit, Job
from tests.executor.worlds import shell, until

JOBS = 3
# From the first byte a driver says to the end of its last job takes about this long.
_SPAN_S = 0.25


def jobs(folder: Path, turn: int) -> list[Job]:
    """The jobs of one turn: they sign in, leave a daemon behind, work a little and end."""
    script = f"echo $FAIRLEAD_JOB >> {folder}/witness; (setsid sleep 600 &); sleep 0.05"
    return [shell(f"t{turn}-{number}", script) for number in range(JOBS)]


def drive(folder: Path, turn: int, kind: Kind) -> None:
    """The control plane that will be killed: starts its jobs, then looks after them."""
    print("ready", flush=True)
    executor = LocalExecutor(folder / "executor", kinds=(kind,))
    for job in jobs(folder, turn):
        executor.start(job)
    while executor.running():
        time.sleep(0.01)


def run_kills(count: int, *, seed: int, folder: Path, kind: Kind = "cgroup2") -> dict[str, int]:
    """`count` turns; raises when a promise breaks, else says what happened how often."""
    chance, counted = random.Random(seed), Counter[str]()
    witness = folder / "witness"
    witness.touch()
    witness.chmod(0o666)
    for turn in range(count):
        killed = _turn(chance, folder, turn, kind)
        _check(_finish(folder, turn, kind), folder, turn, killed, counted)
    counted["turns"] = count
    return dict(counted)


def _turn(chance: random.Random, folder: Path, turn: int, kind: Kind) -> int:
    """Kill the driver, before or after that perhaps shims; how many of those."""
    command = [sys.executable, "-m", "tests.executor.kills", str(folder), str(turn), kind]
    driver = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert driver.stdout is not None
    driver.stdout.readline()
    killed = 0
    times = sorted(chance.uniform(0, _SPAN_S) for _ in range(3))
    victims = chance.sample(["driver", "shim", "nobody"], 3)
    began = time.monotonic()
    for at, victim in zip(times, victims, strict=True):
        time.sleep(max(0.0, began + at - time.monotonic()))
        if victim == "driver":
            driver.send_signal(signal.SIGKILL)
        elif victim == "shim":
            killed += _kill_shim(chance, folder)
    driver.stdout.close()
    driver.wait()
    return killed


def _kill_shim(chance: random.Random, folder: Path) -> int:
    """Kill one shim of this folder, at whatever point it is; its own name may not be written."""
    mark = os.fsencode(folder / "executor" / "jobs")
    shims = []
    for process, _ in confine.living():
        with contextlib.suppress(OSError):
            line = Path(f"/proc/{process['pid']}/cmdline").read_bytes()
            if b"shim.py" in line and mark in line:
                shims.append(process)
    return int(bool(shims) and confine.send(chance.choice(shims), signal.SIGKILL))


def _finish(folder: Path, turn: int, kind: Kind) -> list[Exit]:
    """The next control plane: heals by asking for the same starts again, and hears all exits."""
    executor = LocalExecutor(folder / "executor", kinds=(kind,))
    for job in jobs(folder, turn):
        executor.start(job)
    until(lambda: not executor.running(), f"turn {turn} ended")
    exits = executor.poll()
    executor.acknowledge(exits)
    return exits


def _check(exits: list[Exit], folder: Path, turn: int, killed: int, counted: Counter[str]) -> None:
    expected = {job.id for job in jobs(folder, turn)}
    assert sorted(each.job for each in exits) == sorted(expected), exits
    begun = Counter((folder / "witness").read_text().split())
    assert max(begun.values(), default=0) <= 1, f"started twice: {begun}"
    for each in exits:
        # The shim's child bears the shim's name until it becomes the command, and may be hit then.
        hit = each.lost or each.signal == signal.SIGKILL
        assert hit or (each.code == 0 and begun[each.job] == 1), each
        assert not confine.marked(f"FAIRLEAD_JOB={each.job}", 65534), "a process stayed behind"
    lost = sum(not each.succeeded for each in exits)
    assert lost <= killed, f"{lost} lost, {killed} shims killed"
    counted["jobs"] += len(exits)
    counted["shims killed"] += killed
    counted["lost with their shim"] += lost


if __name__ == "__main__":
    drive(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])  # type: ignore[arg-type]
