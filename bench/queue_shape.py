"""A load in the shape of Microsoft's Philly trace, and three queues from their definitions.

Not the trace: its published shape (Jeon et al., "Analysis of Large-Scale Multi-Tenant GPU Clusters
for DNN Training Workloads", USENIX ATC 2019), seeded. Fourteen owners whose loads follow Zipf's
law; gangs of powers of two, most of them single, most GPUs in the large ones; run times log-normal,
minutes to days. Runs come in sessions, as sweeps do: an owner submits several of one size at once.
Estimates are upper bounds, as limits of a batch system are: up to five times the run time.

The queues, on a count of GPUs:

- `fifo`: by submission. While the first does not fit, none starts.
- `easy`: by submission. While the first does not fit, others start that end before its earliest
  start by their estimates, or use GPUs that it leaves then.
- `kueue`: one queue per owner in one cohort, borrowing without limit, BestEffortFIFO. In cycles the
  heads of all owners are asked, those within their quota first, then the oldest; one that does not
  fit is set aside and asked again when GPUs are freed.
"""

import heapq
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.philly_shape import OWNERS, SIZES, entitlements
from fairlead.core.apportion import largest_remainder

MEDIAN_H, SIGMA, LONGEST_H = 0.25, 1.8, 36.0
SESSION_MEAN = 4
MINUTE_MS, HOUR_MS = 60_000, 3_600_000


@dataclass(frozen=True)
class Submission:
    """A run as it is submitted, and how long it takes in truth."""

    id: int
    at_ms: int
    owner: str
    gpus: int
    runtime_ms: int
    estimate_ms: int

    @property
    def name(self) -> str:
        return f"run-{self.id:05}"


@dataclass(frozen=True)
class Load:
    """Submissions by time, and the GPUs that each owner is entitled to."""

    gpus: int
    runs: tuple[Submission, ...]
    entitled: dict[str, int]


def make_load(*, seed: int, runs: int, gpus: int, offered: float) -> Load:
    """`offered`: GPU-hours that come in, over those that the cluster has in the same time."""
    rng = random.Random(f"queue {seed}")
    share = entitlements(rng)
    parts = largest_remainder(gpus - OWNERS, [int(part * 10**9) for part in share.values()])
    entitled = {owner: 1 + part for owner, part in zip(share, parts, strict=True)}
    sizes = {size: weight for size, weight in SIZES.items() if size <= gpus // 2}
    drawn: list[tuple[int, str, int, int, int]] = []
    session = 0
    while len(drawn) < runs:
        owner = f"owner-{rng.choices(range(OWNERS), [1 / (i + 1) for i in range(OWNERS)])[0]:02}"
        size = rng.choices(list(sizes), list(sizes.values()))[0]
        # Sweeps are of narrow runs; a wide one comes alone.
        count = 1 if size >= 16 else min(40, int(rng.expovariate(1 / SESSION_MEAN)) + 1)
        for _ in range(count):
            hours = min(LONGEST_H, max(1 / 60, MEDIAN_H * rng.lognormvariate(0, SIGMA)))
            runtime_ms = int(hours * HOUR_MS)
            minutes = -(-int(runtime_ms * rng.uniform(1, 5)) // MINUTE_MS)
            drawn.append((session, owner, size, runtime_ms, minutes * MINUTE_MS))
        session += 1
    drawn = drawn[:runs]
    work_ms = sum(size * runtime for _, _, size, runtime, _ in drawn)
    span_ms = work_ms / gpus / offered
    # By day more than by night: the rate follows a sine over 24 h.
    times = sorted(_daily(rng, span_ms) for _ in range(session))
    made = sorted(
        (times[number], i, owner, size, runtime, estimate)
        for i, (number, owner, size, runtime, estimate) in enumerate(drawn)
    )
    return Load(
        gpus, tuple(Submission(i, at, *rest) for i, (at, _, *rest) in enumerate(made)), entitled
    )


def _daily(rng: random.Random, span_ms: float) -> int:
    while True:
        at_ms = rng.uniform(0, span_ms)
        hour = at_ms / HOUR_MS % 24
        if rng.random() < (1.3 if 8 <= hour < 20 else 0.7) / 1.3:
            return int(at_ms)


Starts = dict[int, int]
"""When each run started."""
Pick = Callable[["Cluster"], list[Submission]]
"""Which of the waiting runs start now."""


class Cluster:
    """GPUs, what runs on them, and what waits, by submission."""

    def __init__(self, load: Load) -> None:
        self.load, self.now_ms, self.free = load, 0, load.gpus
        self.waiting: list[Submission] = []
        self.running: dict[int, tuple[Submission, int]] = {}
        self.starts: Starts = {}

    def used(self, owner: str) -> int:
        return sum(run.gpus for run, _ in self.running.values() if run.owner == owner)

    def start(self, run: Submission) -> None:
        self.waiting.remove(run)
        self.free -= run.gpus
        self.running[run.id] = (run, self.now_ms)
        self.starts[run.id] = self.now_ms

    def play(self, pick: Pick) -> Starts:
        ends: list[tuple[int, int]] = []
        coming = list(self.load.runs)[::-1]
        while coming or ends or self.waiting:
            times = [coming[-1].at_ms] if coming else []
            self.now_ms = min(times + ([ends[0][0]] if ends else []))
            while ends and ends[0][0] <= self.now_ms:
                run, _ = self.running.pop(heapq.heappop(ends)[1])
                self.free += run.gpus
            while coming and coming[-1].at_ms <= self.now_ms:
                self.waiting.append(coming.pop())
            for run in pick(self):
                heapq.heappush(ends, (self.now_ms + run.runtime_ms, run.id))
        return self.starts


def fifo(cluster: Cluster) -> list[Submission]:
    """In order, until one does not fit."""
    started = []
    while cluster.waiting and cluster.waiting[0].gpus <= cluster.free:
        started.append(cluster.waiting[0])
        cluster.start(cluster.waiting[0])
    return started


def easy(cluster: Cluster) -> list[Submission]:
    """FIFO; then what does not delay the first one's earliest start (Lifka, 1995)."""
    started = fifo(cluster)
    if not cluster.waiting:
        return started
    head = cluster.waiting[0]
    free, shadow_ms = cluster.free, 0
    ends = sorted((begun + run.estimate_ms, run.gpus) for run, begun in cluster.running.values())
    for end_ms, gpus in ends:
        if free >= head.gpus and end_ms > shadow_ms:
            break
        free, shadow_ms = free + gpus, end_ms
    extra = free - head.gpus
    for run in cluster.waiting[1:]:
        in_time = cluster.now_ms + run.estimate_ms <= shadow_ms
        if run.gpus > cluster.free or not (in_time or run.gpus <= extra):
            continue
        extra -= 0 if in_time else run.gpus
        cluster.start(run)
        started.append(run)
    return started


def kueue(cluster: Cluster) -> list[Submission]:
    """Cohort with one queue per owner, BestEffortFIFO, borrowing without limit."""
    started: list[Submission] = []
    aside: set[int] = set()
    while True:
        heads: dict[str, Submission] = {}
        for run in cluster.waiting:
            if run.id not in aside:
                heads.setdefault(run.owner, run)
        if not heads:
            return started

        def rank(run: Submission) -> tuple[bool, int, int]:
            borrows = cluster.used(run.owner) + run.gpus > cluster.load.entitled[run.owner]
            return borrows, run.at_ms, run.id

        for run in sorted(heads.values(), key=rank):
            if run.gpus <= cluster.free:
                cluster.start(run)
                started.append(run)
            else:
                aside.add(run.id)


QUEUES: dict[str, Pick] = {"fifo": fifo, "easy": easy, "kueue": kueue}


def jain(values: Sequence[float]) -> float:
    """1 when all are equal, 1/n when one has it all."""
    return sum(values) ** 2 / (len(values) * sum(value**2 for value in values))


def satisfaction(load: Load, starts: Starts) -> dict[str, float]:
    """The part of what each owner was entitled to, and asked for, that it got: GPU-time in use
    over GPU-time in use or waiting, both up to its entitlement at every instant."""
    changes: dict[str, list[tuple[int, int, int]]] = {owner: [] for owner in load.entitled}
    for run in load.runs:
        start_ms = starts[run.id]
        rows = changes[run.owner]
        rows.append((run.at_ms, run.gpus, 0))
        rows.append((start_ms, 0, run.gpus))
        rows.append((start_ms + run.runtime_ms, -run.gpus, -run.gpus))
    found: dict[str, float] = {}
    for owner, rows in changes.items():
        entitled, wanted, used, last_ms = load.entitled[owner], 0, 0, 0
        got = asked = 0
        for at_ms, more_wanted, more_used in sorted(rows):
            got += min(entitled, used) * (at_ms - last_ms)
            asked += min(entitled, wanted) * (at_ms - last_ms)
            wanted, used, last_ms = wanted + more_wanted, used + more_used, at_ms
        if asked:
            found[owner] = got / asked
    return found
