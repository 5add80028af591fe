"""A control plane in a process of its own, for the benchmarks that ask it as users do."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from fairlead.host.http import NoReply, exchange, parse

FAIRLEAD = (sys.executable, "-m", "fairlead")
READY_S, LOOK_S = 120.0, 0.1


class Started(NamedTuple):
    """Where it answers, and its process."""

    socket: str
    port: int
    pid: int


@contextmanager
def control_plane(folder: Path, *flags: str, core: int | None = None) -> Iterator[Started]:
    """Ready when this returns, ended with the block; on one core where one is named."""
    socket, said = str(folder / "fairlead.sock"), folder / "log"
    folder.mkdir()
    with said.open("wb") as log:
        whole = ("--user", "root") if os.geteuid() == 0 and "--user" not in flags else ()
        command = (*FAIRLEAD, "up", "--data", str(folder), "--port", "0", *whole, *flags)
        process = subprocess.Popen(command, stdout=log, stderr=log)
    if core is not None:
        os.sched_setaffinity(process.pid, {core})
    try:
        deadline = time.monotonic() + READY_S
        while not _answers(socket):
            if time.monotonic() > deadline or process.poll() is not None:
                raise RuntimeError(f"the control plane did not start: {said.read_text()}")
            time.sleep(LOOK_S)  # between two looks at another process
        (address,) = [word for word in said.read_text().split() if word.startswith("http:")]
        yield Started(socket, int(address.rpartition(":")[2]), process.pid)
    finally:
        process.terminate()
        process.wait()


def _answers(socket: str) -> bool:
    with suppress(NoReply):
        exchange(parse(socket), "GET", "/healthz", timeout_s=1)
        return True
    return False
