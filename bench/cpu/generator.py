"""The open-loop load on the service: `python -m bench.cpu.generator '{...}'`.

Poisson arrivals, lognormal CPU per request, all drawn before the start. A request is sent at its
intended time whether or not earlier ones were answered, and its latency counts from the intended
time. Runs outside the governed tree, pinned, in the real-time class, so that it is never late; it
says how late it was. Writes [intended, lag, latency] per request; an unanswered request has waited
until the end (`answered` false), and is counted as such rather than left out.
"""

import contextlib
import json
import os
import random
import select
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

from bench.cpu.workloads import REPLY, REQUEST, die_with_parent, wait_for_go
from fairlead.sim.traffic.generator import arrivals


def draw_work(chance: random.Random, mean_s: float, sigma: float) -> float:
    """Lognormal with this mean, capped at ten times it: one monster would decide a short run."""
    return min(chance.lognormvariate(-(sigma**2) / 2, sigma), 10.0) * mean_s


def draw_requests(
    *, seed: int, rate: float, cpu_s: float, sigma: float, until_s: float
) -> list[tuple[float, float]]:
    """(intended time, CPU seconds) of every request; `cpu_s` is the mean."""
    chance = random.Random(seed)
    times = arrivals(chance.expovariate, [(until_s, rate)])
    return [(at_s, draw_work(chance, cpu_s, sigma)) for at_s in times]


class Generator:
    """Sends on time, receives whenever."""

    def __init__(self, stream: socket.socket, requests: list[tuple[float, float]]) -> None:
        stream.setblocking(False)
        self._stream, self._requests = stream, requests
        self._start = 0.0
        self._unsent = bytearray()
        self._received = b""
        self.lags: list[float] = []
        self.latencies: list[float | None] = []

    def run(self, start: float, until_s: float) -> None:
        """From the common start until the end of the cell."""
        self._start = start
        while (now := time.monotonic() - start) < until_s:
            self._send_due(now)
            number = len(self.lags)
            due = self._requests[number][0] if number < len(self._requests) else until_s
            wait = max(0.0, start + min(due, until_s) - time.monotonic())
            writers = [self._stream] if self._unsent else []
            readable, _, _ = select.select([self._stream], writers, [], wait)
            if readable:
                self._receive()

    def _send_due(self, now: float) -> None:
        while len(self.lags) < len(self._requests):
            number = len(self.lags)
            intended, cpu_s = self._requests[number]
            if intended > now:
                break
            self.lags.append(now - intended)
            self.latencies.append(None)
            self._unsent += REQUEST.pack(number, cpu_s)
        if self._unsent:
            try:
                sent = self._stream.send(self._unsent)
            except BlockingIOError:
                return  # the service is far behind; the clock of these requests runs on
            del self._unsent[:sent]

    def _receive(self) -> None:
        self._received += self._stream.recv(1 << 16)
        now = time.monotonic() - self._start
        while len(self._received) >= REPLY.size:
            (number,) = REPLY.unpack_from(self._received)
            self._received = self._received[REPLY.size :]
            self.latencies[number] = now - self._requests[number][0]

    def result(self, until_s: float) -> list[list[float | bool]]:
        """[intended, lag, latency, answered] of every request that was due."""
        rows: list[list[float | bool]] = []
        for number, lag in enumerate(self.lags):
            intended, latency = self._requests[number][0], self.latencies[number]
            waited = until_s - intended if latency is None else latency
            rows.append([intended, lag, waited, latency is not None])
        return rows


def become_punctual(cpu: int) -> None:
    """One CPU, real-time: it needs little, but at once."""
    os.sched_setaffinity(0, {cpu})
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))


def main() -> None:
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    spec: dict[str, Any] = json.loads(sys.argv[1])
    until_s = spec["until_s"]
    requests = draw_requests(
        seed=spec["seed"],
        rate=spec["rate"],
        cpu_s=spec["cpu_s"],
        sigma=spec["sigma"],
        until_s=until_s,
    )
    generator = Generator(socket.socket(fileno=spec["socket"]), requests)
    become_punctual(spec["cpu"])
    start = wait_for_go()
    with contextlib.suppress(ConnectionError):  # the service was ended early, and so is the run
        generator.run(start, until_s)
    Path(spec["result"]).write_text(json.dumps(generator.result(until_s)))


if __name__ == "__main__":
    main()
