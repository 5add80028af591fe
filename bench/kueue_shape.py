"""Kueue's published baseline load, replayed in virtual time through the real cover and accounts.

5 cohorts × 6 queues; each queue gets 350 small, 100 medium and 50 large workloads (1, 5, 20 GPUs;
200, 500, 1000 ms; one every 100, 500, 1200 ms); quota 20 per queue, and the cohort's quota may be
borrowed. Here a queue is an owner with an envelope of 20 and a cohort is a family that shares.

Workloads of one owner and size wait in one line; a line whose head is refused waits for the next
completion. No priorities (Fairlead has none): lines are asked in order of submission.
"""

import heapq
import resource
import time
from collections import deque
from dataclasses import dataclass, field

from fairlead.core.gpu import Book, Budget, Envelope, Lease, Request, cover
from fairlead.core.gpu.accounts import Accounts

COHORTS, QUEUES, QUOTA = 5, 6, 20
CLASSES = {"small": (350, 100, 1, 200), "medium": (100, 500, 5, 500), "large": (50, 1200, 20, 1000)}

# From the comments in Kueue's own thresholds, which say which averages they were set from.
KUEUE = {
    "source": [
        "github.com/kubernetes-sigs/kueue test/performance/scheduler/configs/baseline/"
        "rangespec.yaml at 056cce0",
        "github.com/kubernetes-sigs/kueue test/performance/scheduler/default_rangespec.yaml"
        " at 0cdb8fd (memory)",
    ],
    "caveat": "end to end through an API server, in real time, with priorities and preemption, "
    "on other machines; its measure of use may be defined otherwise. Not the same thing.",
    "wall_s": 351.1,
    "admitted_per_s": 15_000 / 351.1,
    "quota_use": 0.587,
    "average_wait_s": {"small": 215.5, "medium": 76.8, "large": 6.7},
    "peak_rss_mb": 445.0,
    "decision_p99_us": None,  # not published
}


@dataclass
class Tally:
    """What happened, in virtual time, and how long deciding took, in real time."""

    decisions_ns: list[int] = field(default_factory=list)
    waits_ms: dict[str, list[int]] = field(default_factory=lambda: {name: [] for name in CLASSES})
    gpu_ms: int = 0
    end_ms: int = 0
    refused: int = 0


class Replay:
    """One run of the whole load."""

    def __init__(self) -> None:
        budgets = [
            Budget(f"q{c}-{q}", f"q{c}-{q}", (f"cohort-{c}",), (Envelope("e", "gpu", QUOTA),))
            for c in range(COHORTS)
            for q in range(QUEUES)
        ]
        self.accounts = Accounts()
        for budget in budgets:
            self.accounts.define(budget, 0)
        self.book = Book(budgets, {})
        self.lines: dict[tuple[int, str, str], deque[int]] = {}
        self.tally = Tally()
        self.events: list[tuple[int, int, int, object]] = []
        self._count = 0

    def run(self) -> Tally:
        for c in range(COHORTS):
            for q in range(QUEUES):
                for name, (count, every_ms, _, _) in CLASSES.items():
                    for i in range(count):
                        self._push(i * every_ms, (c, f"q{c}-{q}", name))
        while self.events:
            now_ms, _, ends, what = heapq.heappop(self.events)
            if ends:
                cohort, leases = what  # type: ignore[misc]
                for lease in leases:
                    self.tally.gpu_ms += self.accounts.post(lease, now_ms).used_ms
                self.tally.end_ms = now_ms
                self._admit(cohort, now_ms)
            else:
                key = what
                line = self.lines.setdefault(key, deque())  # type: ignore[arg-type]
                line.append(now_ms)
                if len(line) == 1:
                    self._try(key, now_ms)  # type: ignore[arg-type]
        return self.tally

    def _push(self, time_ms: int, what: object, *, ends: bool = False) -> None:
        self._count += 1
        heapq.heappush(self.events, (time_ms, self._count, int(ends), what))

    def _admit(self, cohort: int, now_ms: int) -> None:
        """Ask the heads of a cohort's lines, oldest first, until all are refused or empty."""
        waiting = [(line[0], key) for key, line in self.lines.items() if key[0] == cohort and line]
        heapq.heapify(waiting)
        while waiting:
            _, key = heapq.heappop(waiting)
            if self._try(key, now_ms) and self.lines[key]:
                heapq.heappush(waiting, (self.lines[key][0], key))

    def _try(self, key: tuple[int, str, str], now_ms: int) -> bool:
        cohort, owner, name = key
        _, _, gpus, runtime_ms = CLASSES[name]
        began = time.thread_time_ns()
        self.book.usage = self.accounts.at(now_ms)
        plan = cover(self.book, Request(owner, "gpu", gpus, duration_ms=runtime_ms), now_ms)
        leases = []
        for i, line in enumerate(plan.lines):
            self._count += 1
            lease = Lease(
                f"{self._count}-{i}",
                owner,
                line.budget,
                line.envelope,
                line.gpus,
                now_ms,
                None,
                now_ms + runtime_ms,
                line.borrowed,
            )
            self.accounts.hold(lease)
            leases.append(lease.id)
        self.tally.decisions_ns.append(time.thread_time_ns() - began)
        if not plan.funded:
            self.tally.refused += 1
            return False
        self.tally.waits_ms[name].append(now_ms - self.lines[key].popleft())
        self._push(now_ms + runtime_ms, (cohort, leases), ends=True)
        return True


def measure() -> dict[str, object]:
    began = time.process_time()
    tally = Replay().run()
    cpu_s = time.process_time() - began
    taken = sorted(tally.decisions_ns)
    admitted = sum(len(waits) for waits in tally.waits_ms.values())
    quota_ms = COHORTS * QUEUES * QUOTA * tally.end_ms
    return {
        "admitted": admitted,
        "decisions": len(taken),
        "refused": tally.refused,
        "cpu_s": round(cpu_s, 3),
        "decisions_per_s": round(len(taken) / (sum(taken) / 1e9)),
        "admitted_per_cpu_s": round(admitted / cpu_s),
        "decision_p50_us": round(taken[len(taken) // 2] / 1e3, 1),
        "decision_p99_us": round(taken[len(taken) * 99 // 100] / 1e3, 1),
        "virtual_end_s": round(tally.end_ms / 1e3, 1),
        "quota_use": round(tally.gpu_ms / quota_ms, 3),
        "average_wait_s": {
            name: round(sum(waits) / len(waits) / 1e3, 2) for name, waits in tally.waits_ms.items()
        },
        "peak_rss_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
    }
