"""The processes in the pods: `python -m bench.cpu.workloads '{"kind": ...}'`. Plain Python, seeded.

Each says "ready" on stdout, waits for the line "go T" (monotonic seconds) on stdin, and then loads
the CPU until it is told to stop by SIGTERM. Work done is counted in a small shared file, so that
the measuring process reads it without asking. Kinds:

    service     answers requests from a socket; each says how much CPU it costs
    paced       follows a profile of cores over time; what was throttled is made up for later
    batch       works through units; waits for "I/O" between them if told so
    adversary   as many spinning processes as told
"""

import contextlib
import ctypes
import json
import mmap
import os
import random
import signal
import socket
import struct
import sys
import time
from typing import Any

from bench.cpu.profiles import Profile

TICK_S = 0.02
UNIT_LOOPS = 10_000
_PR_SET_PDEATHSIG = 1
REQUEST = struct.Struct("<Qd")  # number, CPU seconds
REPLY = struct.Struct("<Q")


class Counter:
    """A number in a shared file."""

    def __init__(self, path: str) -> None:
        with open(path, "r+b") as file:
            self._map = mmap.mmap(file.fileno(), 8)

    def add(self, amount: int = 1) -> None:
        """Count; only one process writes a counter that anybody reads."""
        (value,) = struct.unpack("<Q", self._map[:8])
        self._map[:8] = struct.pack("<Q", value + amount)


def burn(cpu_s: float) -> None:
    """Use exactly this much CPU time, however long it takes."""
    end = time.thread_time() + cpu_s
    while time.thread_time() < end:
        pass


def work_unit() -> int:
    """A fixed piece of work, about half a millisecond."""
    value = 1
    for number in range(UNIT_LOOPS):
        value = (value * 31 + number) & 0xFFFF
    return value


def die_with_parent() -> None:
    """A benchmark that is killed must not leave spinning processes behind."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def wait_for_go() -> float:
    """Say ready, wait for the common start; returns it."""
    print("ready", flush=True)
    word, start = sys.stdin.readline().split()
    if word != "go":
        raise SystemExit(f"expected go, got {word}")
    time.sleep(max(0.0, float(start) - time.monotonic()))
    return float(start)


def serve(spec: dict[str, Any], counter: Counter) -> None:
    stream = socket.socket(fileno=spec["socket"])
    wait_for_go()
    pending = b""
    while data := stream.recv(1 << 16):
        pending += data
        while len(pending) >= REQUEST.size:
            number, cpu_s = REQUEST.unpack_from(pending)
            pending = pending[REQUEST.size :]
            burn(cpu_s)
            counter.add()
            stream.send(REPLY.pack(number))


def pace(spec: dict[str, Any], counter: Counter) -> None:
    """Open loop: each tick adds its share of work whether or not the last one is done."""
    profile, chance = Profile(**spec["profile"]), random.Random(spec["seed"])
    start = wait_for_go()
    sigma = spec.get("jitter", 0.3)
    owed, tick = 0.0, 0
    while True:
        owed += (
            profile.cores(tick * TICK_S) * TICK_S * chance.lognormvariate(-(sigma**2) / 2, sigma)
        )
        tick += 1
        began = time.thread_time()
        while time.monotonic() < start + tick * TICK_S:
            left = owed - (time.thread_time() - began)
            if left <= 0:
                time.sleep(max(0.0, start + tick * TICK_S - time.monotonic()))
            else:
                burn(min(left, 0.002))
        done = time.thread_time() - began
        owed = max(0.0, owed - done)
        counter.add(int(done * 1e6))


def crunch(spec: dict[str, Any], counter: Counter) -> None:
    """Closed loop: units for `chunk_s` of CPU time, then a wait, as for a disk."""
    chunk_s, wait_s = spec.get("chunk_s", 0.02), spec.get("wait_s", 0.0)
    wait_for_go()
    while True:
        until = time.thread_time() + chunk_s
        while time.thread_time() < until:
            work_unit()
            counter.add()
        if wait_s:
            time.sleep(wait_s)


def spin(spec: dict[str, Any], counter: Counter) -> None:
    """Claim as much as can be claimed."""
    wait_for_go()
    for _ in range(spec["processes"] - 1):
        if os.fork() == 0:
            die_with_parent()
            break
    while True:
        work_unit()
        counter.add()


KINDS = {"service": serve, "paced": pace, "batch": crunch, "adversary": spin}


def main() -> None:
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the benchmark, which ends us
    spec = json.loads(sys.argv[1])
    with contextlib.suppress(ConnectionError):  # the generator has ended, and so has the run
        KINDS[spec["kind"]](spec, Counter(spec["counter"]))


if __name__ == "__main__":
    main()
