"""What people use today, as pure rules: samples in, limits out. The runner writes what they decide.

MBCAS and Autothrottle's Captain are reimplemented from their published descriptions. All of
them see the same: per pod its request, its own cgroup's counters, its containers' counters and
limits; and all of them may write any container's limit.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from math import floor, log
from statistics import pstdev
from typing import Protocol

from fairlead.core.apportion import largest_remainder
from fairlead.core.cpu import Counters, Headroom, Pod, Smoothing, Snapshot, clear
from fairlead.core.cpu.need import count_misses
from fairlead.core.cpu.signal import smooth


@dataclass(frozen=True, slots=True)
class ContainerSeen:
    """One container: counters and the limit in force (None: unlimited)."""

    path: str
    counters: Counters
    limit_millicores: int | None


@dataclass(frozen=True, slots=True)
class PodSeen:
    """One pod. `own` are the counters of the pod's cgroup; without children, its container's."""

    name: str
    request_millicores: int
    own: Counters
    containers: tuple[ContainerSeen, ...]


class Rule(Protocol):
    """A policy: called every `interval_s` with all pods, answers limits to write by path."""

    interval_s: float

    def decide(self, now_s: float, pods: Sequence[PodSeen]) -> dict[str, int]:
        """Millicores by container path; what is left out stays as it is."""
        ...


@dataclass(slots=True)
class Static:
    """Limits written once: a percentile of what was profiled, or a multiple of the request."""

    limits: Mapping[str, int]
    interval_s: float = 1.0
    _done: bool = False

    def decide(self, now_s: float, pods: Sequence[PodSeen]) -> dict[str, int]:
        """All of them at once, then never again."""
        done, self._done = self._done, True
        return {} if done else dict(self.limits)


def percentile(values: Iterable[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, floor(share * len(ordered)))] if ordered else 0.0


class DecayedHistogram:
    """Exponential buckets 5 % apart from 10m on; a sample's weight halves every half-life."""

    def __init__(self, half_life_s: float, *, first: float = 10.0, ratio: float = 1.05) -> None:
        self._half_life_s, self._first, self._ratio = half_life_s, first, ratio
        self._weights = [0.0] * 250

    def add(self, now_s: float, millicores: float) -> None:
        """Old weights are not touched: new ones count for more instead."""
        self._weights[self._bucket(millicores)] += 2 ** (now_s / self._half_life_s)

    def percentile(self, share: float) -> float:
        """The upper edge of the bucket in which the share is reached; 0 without samples."""
        sums = list(accumulate(self._weights))
        if not sums[-1]:
            return 0.0
        bucket = next(i for i, total in enumerate(sums) if total >= share * sums[-1])
        return self._edge(bucket + 1)

    def _bucket(self, millicores: float) -> int:
        if millicores < self._first:
            return 0
        step = log(millicores * (self._ratio - 1) / self._first + 1, self._ratio)
        return min(int(step), len(self._weights) - 1)

    def _edge(self, bucket: int) -> float:
        return self._first * (self._ratio**bucket - 1) / (self._ratio - 1)


class VpaLike:
    """The vertical autoscaler's recommendation: p90 of usage times 1.15, at least 25m.

    Like a recommender that has watched for a while, it starts with the profiled usage.
    """

    interval_s = 1.0

    def __init__(
        self, half_life_s: float, history: Mapping[str, Sequence[float]], *, every_s: float = 5.0
    ) -> None:
        self._every_s, self._next_s = every_s, 0.0
        self._histograms: dict[str, DecayedHistogram] = {}
        self._last: dict[str, Counters] = {}
        for path, usage in history.items():
            histogram = self._histograms[path] = DecayedHistogram(half_life_s)
            for age, millicores in enumerate(reversed(usage)):
                histogram.add(-1.0 - age, millicores)

    def decide(self, now_s: float, pods: Sequence[PodSeen]) -> dict[str, int]:
        """Take each container's usage in; every few seconds write the recommendation."""
        for container in (c for pod in pods for c in pod.containers):
            before, self._last[container.path] = self._last.get(container.path), container.counters
            if before is not None:
                self._histograms[container.path].add(now_s, used(before, container.counters))
        if now_s < self._next_s:
            return {}
        self._next_s = now_s + self._every_s
        return {
            path: max(25, int(histogram.percentile(0.90) * 1.15))
            for path, histogram in self._histograms.items()
        }


def used(before: Counters, after: Counters) -> float:
    """Millicores used between two readings."""
    return (after.usage_us - before.usage_us) * 1000 / max(1, after.time_us - before.time_us)


@dataclass(slots=True)
class _MbcasPod:
    counters: Counters | None = None
    demand: float | None = None
    usage: int | None = None
    changed_s: float | None = None
    misses: int = 0
    missed_ms: int | None = None


class Mbcas:
    """MBCAS, reimplemented from its description: its saturating signal, S0's need and cut.

    The pod cgroup is sampled each second, demand = clip((throttled / usage) / 0.1), smoothed 0.3 up
    and 0.1 down; a limit is written when it differs by 10 %, at most every 10 s, at most ×1.5 at
    once. These guardrails come after clearing, so the sum may pass the capacity.
    """

    interval_s = 1.0
    cooldown_s, band, step, clear_s = 10.0, 0.10, 1.5, 5.0
    # Spelt out, so that a change of our own defaults does not change theirs.
    smoothing, headroom = Smoothing(0.3, 0.1), Headroom(0.10, 0.15, 0.05, 0.50)

    def __init__(self, capacity_millicores: int) -> None:
        self._capacity, self._next_s = capacity_millicores, self.clear_s
        self._pods: dict[str, _MbcasPod] = {}

    def decide(self, now_s: float, pods: Sequence[PodSeen]) -> dict[str, int]:
        """Sample each second, clear every five."""
        for pod in pods:
            self._sample(self._pods.setdefault(pod.name, _MbcasPod()), pod)
        if now_s < self._next_s:
            return {}
        self._next_s = now_s + self.clear_s
        seats = tuple(self._seat(now_s, pod) for pod in pods)
        plan = clear(Snapshot(self._capacity, seats, headroom=self.headroom))
        limits: dict[str, int] = {}
        for pod in pods:
            limits |= self._guarded(now_s, pod, plan.allocations[pod.name])
        return limits

    def _sample(self, state: _MbcasPod, pod: PodSeen) -> None:
        before, state.counters = state.counters, pod.own
        if before is None:
            return
        usage = pod.own.usage_us - before.usage_us
        held = pod.own.throttled_us - before.throttled_us
        state.demand = smooth(state.demand, mbcas_demand(held, usage), self.smoothing)
        state.usage = int(used(before, pod.own))

    def _seat(self, now_s: float, pod: PodSeen) -> Pod:
        state = self._pods[pod.name]
        state.misses, state.missed_ms = count_misses(
            state.misses,
            demand=state.demand or 0.0,
            applied_ms=None if state.changed_s is None else int(state.changed_s * 1000),
            missed_ms=state.missed_ms,
            now_ms=int(now_s * 1000),
            cooldown_ms=int(self.cooldown_s * 1000),
        )
        return Pod(
            pod.name,
            max(100, pod.request_millicores),
            self._capacity,
            demand=state.demand or 0.0,
            weight=float(max(1, pod.request_millicores)),
            usage_millicores=state.usage,
            headroom_misses=min(state.misses, 8),
        )

    def _guarded(self, now_s: float, pod: PodSeen, target: int) -> dict[str, int]:
        state, limits = self._pods[pod.name], [c.limit_millicores for c in pod.containers]
        if state.changed_s is not None and now_s - state.changed_s < self.cooldown_s:
            return {}
        if None not in limits:
            current = sum(limit or 0 for limit in limits)
            if abs(target - current) <= self.band * current:
                return {}
            target = int(min(max(target, current / self.step), current * self.step))
        state.changed_s = now_s
        # The pod is what it knows; its containers share equally.
        parts = largest_remainder(target, [1] * len(pod.containers))
        return {c.path: part for c, part in zip(pod.containers, parts, strict=True)}


def mbcas_demand(throttled_us: int, usage_us: int) -> float:
    """clip((Δthrottled / Δusage) / 0.1): already 1.0 when a busy thread is 9 % short."""
    if usage_us <= 0:
        return 1.0 if throttled_us > 0 else 0.0
    return min(max(throttled_us / usage_us / 0.1, 0.0), 1.0)


@dataclass(slots=True)
class _CaptainContainer:
    counters: Counters | None = None
    usage: deque[float] = field(default_factory=lambda: deque(maxlen=50))
    periods: list[tuple[int, int]] = field(default_factory=list)
    margin: float = 0.0
    before_cut: int | None = None
    """The quota before the last scale-down, while it may still be rolled back."""
    since_cut: list[tuple[int, int]] = field(default_factory=list)


class Captain:
    """Autothrottle's Captain (NSDI'24), reimplemented from its description; no Tower above it.

    Each container by itself, every 100 ms. Once a second: throttled-period ratio above three times
    the target grows the quota by (1 + excess); otherwise it shrinks towards max(half, peak of the
    last 5 s + margin·σ), if that is at least 10 % less. Throttling within a second of a
    cut rolls it back and beyond. The margin is the running excess over the target.
    """

    interval_s = 0.1
    alpha, shrink_band, shrink_most, window = 3.0, 0.9, 0.5, 10

    def __init__(self, capacity_millicores: int, *, target: float = 0.04) -> None:
        self._capacity, self._target = capacity_millicores, target
        self._containers: dict[str, _CaptainContainer] = {}

    def decide(self, now_s: float, pods: Sequence[PodSeen]) -> dict[str, int]:
        """Every container on its own."""
        limits = {}
        for container in (c for pod in pods for c in pod.containers):
            state = self._containers.setdefault(container.path, _CaptainContainer())
            limit = self._step(state, container)
            if limit is not None and limit != container.limit_millicores:
                limits[container.path] = max(10, min(limit, self._capacity))
        return limits

    def _step(self, state: _CaptainContainer, seen: ContainerSeen) -> int | None:
        before, state.counters = state.counters, seen.counters
        if before is None:
            return None
        state.usage.append(used(before, seen.counters))
        period = (
            seen.counters.periods - before.periods,
            seen.counters.throttled_periods - before.throttled_periods,
        )
        state.periods.append(period)
        # It has to start somewhere: at the node's capacity, from where it shrinks.
        quota = seen.limit_millicores or self._capacity
        if state.before_cut is not None:
            state.since_cut.append(period)
            rolled = self._roll_back(state, quota)
            if rolled is not None:
                return rolled
        if len(state.periods) < self.window:
            return None
        ratio = _ratio(state.periods, self.window)
        state.periods.clear()
        return self._resize(state, quota, ratio)

    def _resize(self, state: _CaptainContainer, quota: int, ratio: float) -> int | None:
        state.margin = max(0.0, state.margin + ratio - self._target)
        if ratio > self.alpha * self._target:
            state.before_cut = None
            return int(quota * (1 + ratio - self.alpha * self._target)) + 1
        proposed = max(state.usage) + state.margin * pstdev(state.usage)
        if proposed > self.shrink_band * quota:
            return None
        state.before_cut, state.since_cut = quota, []
        return int(max(self.shrink_most * quota, proposed))

    def _roll_back(self, state: _CaptainContainer, quota: int) -> int | None:
        """Right after a cut: throttled more than tolerated, so undo it and add what was cut."""
        assert state.before_cut is not None
        ratio = _ratio(state.since_cut, self.window)
        if ratio > self.alpha * self._target:
            restored = state.before_cut + (state.before_cut - quota)
            state.margin += ratio - self._target
            state.before_cut = None
            state.periods.clear()
            return restored
        if len(state.since_cut) >= self.window:
            state.before_cut = None
        return None


def _ratio(periods: Sequence[tuple[int, int]], least: int) -> float:
    """Throttled periods of all; a window just begun counts as a whole one."""
    return sum(throttled for _, throttled in periods) / max(least, sum(n for n, _ in periods))
