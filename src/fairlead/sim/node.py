"""A simulated node: pods that want CPU, and a kernel that gives it to them as CFS bandwidth does.

One tick is one bandwidth period of 100 ms. In it a pod wants what arrives and what waits in its
queue, on at most `threads` CPUs at once. It may use its quota, after which all its runnable threads
stand throttled until the period ends: `nr_throttled` counts the period once, `throttled_usec` the
time of every thread. Work arrives evenly, so a pod that wants d of a quota q < d runs dry after q/d
of the period. Where the claims pass the node, it is shared by weight.

What a pod wants follows from the traces of its scenario: functions from virtual milliseconds to
millicores, in integers throughout, so that every platform draws the same curve.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from fairlead.core.apportion import fill_grants
from fairlead.core.claims import Claim
from fairlead.core.cpu import Actuation, Counters
from fairlead.core.invariant import require
from fairlead.schema import scenario as documents
from fairlead.schema.scenario import SimPodDocument
from fairlead.sim.clock import Entropy, Stream

PERIOD_MS = 100
"""The kernel's bandwidth period: the grain of the simulation."""

Want = Callable[[int], int]


def build_want(parts: Sequence[documents.Trace], entropy: Entropy, pod: str) -> Want:
    """The sum of a pod's traces. Streams are named by pod and place, not by order of creation."""
    levels = [
        _windowed(part, entropy.stream("trace", pod, str(place)))
        for place, part in enumerate(parts)
    ]
    return lambda time_ms: sum(level(time_ms) for level in levels)


def peak(parts: Sequence[documents.Trace]) -> int:
    """An upper bound of what the traces want at once (overlapping spikes aside)."""
    return sum(_peak(part) for part in parts)


def _peak(part: documents.Trace) -> int:
    match part:
        case documents.Constant() | documents.Spikes():
            return part.millicores
        case documents.Steps():
            return max(part.millicores)
        case documents.Sine() | documents.Bursty():
            return part.high_millicores
        case documents.Ramp():
            return max(part.start_millicores, part.end_millicores)
        case documents.Points():
            return max(point.millicores for point in part.points)


def _windowed(part: documents.Trace, stream: Stream) -> Want:
    level, start_s, end_s = _level(part, stream), part.from_s, part.until_s

    def inside(time_ms: int) -> int:
        ended = end_s is not None and time_ms >= end_s * 1000
        return 0 if time_ms < start_s * 1000 or ended else level(time_ms)

    return inside


def _level(part: documents.Trace, stream: Stream) -> Want:  # noqa: PLR0911 - one line a kind
    match part:
        case documents.Constant(millicores=millicores):
            return lambda _: millicores
        case documents.Steps(millicores=levels, every_s=every_s):
            return lambda time_ms: levels[time_ms // (every_s * 1000) % len(levels)]
        case documents.Sine():
            return lambda time_ms: _wave(part, time_ms)
        case documents.Ramp():
            return lambda time_ms: _line(
                time_ms - part.from_s * 1000,
                part.ramp_s * 1000,
                part.start_millicores,
                part.end_millicores,
            )
        case documents.Points():
            return _points(part)
        case documents.Bursty():
            return _bursty(part, stream)
        case documents.Spikes():
            return _spikes(part, stream)


def _wave(part: documents.Sine, time_ms: int) -> int:
    """Bhaskara's sine, 16t(h-t) / (5h^2 - 4t(h-t)): rational, and within 0.2 % of the real one."""
    half = part.period_s * 500
    phase = (time_ms - part.phase_s * 1000) % (2 * half)
    rise = phase % half * (half - phase % half)
    swing = part.high_millicores - part.low_millicores
    offset = swing * 8 * rise // (5 * half * half - 4 * rise)
    middle = part.low_millicores + swing // 2
    return middle + offset if phase < half else max(middle - offset, part.low_millicores)


def _line(elapsed_ms: int, length_ms: int, start: int, end: int) -> int:
    done_ms = min(max(elapsed_ms, 0), length_ms)
    return start + (end - start) * done_ms // length_ms


def _points(part: documents.Points) -> Want:
    times = [point.at_s * 1000 for point in part.points]
    levels = [point.millicores for point in part.points]

    def level(time_ms: int) -> int:
        at = bisect_right(times, time_ms) - 1
        if at < 0:
            return 0
        if not part.linear or at == len(times) - 1:
            return levels[at]
        length_ms = times[at + 1] - times[at]
        return _line(time_ms - times[at], length_ms, levels[at], levels[at + 1])

    return level


def _bursty(part: documents.Bursty, stream: Stream) -> Want:
    """Off first; each period it switches with probability period/mean, so stays are geometric."""
    on = False

    def level(_: int) -> int:
        nonlocal on
        mean_ms = (part.on_s if on else part.off_s) * 1000
        if stream.below(mean_ms) < PERIOD_MS:
            on = not on
        return part.high_millicores if on else part.low_millicores

    return level


def _spikes(part: documents.Spikes, stream: Stream) -> Want:
    """A spike starts in a period with probability rate*period: Poisson times, on the grain."""
    ends: list[int] = []
    probability = part.per_minute * PERIOD_MS / 60_000

    def level(time_ms: int) -> int:
        if stream.chance(probability):
            ends.append(time_ms + part.length_ms)
        ends[:] = [end for end in ends if end > time_ms]
        return part.millicores * len(ends)

    return level


PERIOD_US = PERIOD_MS * 1000
AGE_AT_BEGIN_MS = 3_600_000


@dataclass(slots=True)
class NodeMeter:
    """What really happened to a pod since it came: never reset, unlike the kernel's counters."""

    want_us: int = 0
    used_us: int = 0
    unserved_us: int = 0
    """Work not run in the period in which it arrived, whether it was lost or had to wait."""
    granted_us: int = 0
    throttled_us: int = 0
    waited_us: int = 0
    """How long threads stood runnable while others ran."""
    periods: int = 0
    throttled_periods: int = 0
    lifetime_ms: int = 0

    def since(self, earlier: "NodeMeter") -> "NodeMeter":
        """What was counted after `earlier`, a copy of this meter."""
        counted = {name: getattr(self, name) - getattr(earlier, name) for name in self.__slots__}
        return NodeMeter(**counted)


@dataclass(slots=True)
class SimPod:
    """One pod on the node: what its user asked for, its limit in force, its counters."""

    spec: SimPodDocument
    want: Want
    limit_millicores: int | None
    guarantee_millicores: int
    """What its scheduling weight stands for."""
    threads: int
    started_ms: int
    arriving_us: int = 0
    queue_us: int = 0
    meter: NodeMeter = field(default_factory=NodeMeter)
    counters_base: NodeMeter = field(default_factory=NodeMeter)
    """The meter at the last counter reset: counters are the meter less this."""

    @classmethod
    def arriving(cls, spec: SimPodDocument, entropy: Entropy) -> "SimPod":
        threads = spec.threads or max(1, -(-peak(spec.want) // 1000))
        want = build_want(spec.want, entropy, spec.name)
        # Pods that are there when the simulation begins have been running for a while.
        started_ms = spec.arrive_s * 1000 if spec.arrive_s else -AGE_AT_BEGIN_MS
        # The kernel's cpu.weight, as a container runtime derives it from the request.
        weight = max(2, spec.request_millicores)
        return cls(spec, want, spec.limit_millicores, weight, threads, started_ms)

    def in_force(self, actuate: Actuation) -> int | None:
        """What the governor moves: the limit, or the guarantee."""
        return self.limit_millicores if actuate is Actuation.LIMITS else self.guarantee_millicores

    def counters(self, now_ms: int, *, waits: bool = False) -> Counters:
        read = self.meter.since(self.counters_base)
        return Counters(
            time_us=now_ms * 1000,
            usage_us=read.used_us,
            periods=read.periods,
            throttled_periods=read.throttled_periods,
            throttled_us=read.throttled_us,
            waited_us=read.waited_us if waits else None,
        )

    def reset_counters(self) -> None:
        """Start the counters again at zero, as a restarted container does."""
        self.counters_base = replace(self.meter)

    def claim_us(self, start_ms: int) -> tuple[int, int]:
        """(runnable work, what the quota allows of it) in the period that starts at `start_ms`."""
        self.arriving_us = self.want(start_ms) * PERIOD_MS
        self.meter.want_us += self.arriving_us
        self.queue_us += self.arriving_us
        runnable = min(self.queue_us, self.threads * PERIOD_US)
        limit = self.limit_millicores
        return runnable, runnable if limit is None else min(runnable, limit * PERIOD_MS)

    def run(self, runnable_us: int, allowed_us: int, used_us: int) -> None:
        meter = self.meter
        meter.used_us += used_us
        meter.unserved_us += max(0, self.arriving_us - used_us)
        meter.waited_us += allowed_us - used_us
        meter.lifetime_ms += PERIOD_MS
        # The queue keeps what waits; what it cannot keep is lost.
        self.queue_us = min(self.queue_us - used_us, self.spec.queue_core_s * 1_000_000)
        limit = self.limit_millicores
        if limit is None:
            return
        meter.granted_us += limit * PERIOD_MS
        if runnable_us:
            meter.periods += 1  # the bandwidth timer only runs while a thread is runnable
        if used_us == allowed_us < runnable_us:
            # A fixed pool spreads its work over all its threads, and all of them then wait.
            threads = self.spec.threads or -(-runnable_us // PERIOD_US)
            dry_us = PERIOD_US * allowed_us // runnable_us
            meter.throttled_periods += 1
            meter.throttled_us += threads * (PERIOD_US - dry_us)


class SimNode:
    """The machine: present pods by name, and one bandwidth period at a time."""

    def __init__(self, millicores: int) -> None:
        self.millicores = millicores
        self.pods: dict[str, SimPod] = {}

    def present(self) -> list[SimPod]:
        """The pods in the order of their names: the order of arrival must not matter."""
        return [self.pods[name] for name in sorted(self.pods)]

    def tick(self, now_ms: int) -> None:
        pods = self.present()
        claims = [pod.claim_us(now_ms - PERIOD_MS) for pod in pods]
        used = self._share(pods, [allowed for _, allowed in claims])
        for pod, (runnable, allowed), share in zip(pods, claims, used, strict=True):
            pod.run(runnable, allowed, share)

    def _share(self, pods: Iterable[SimPod], allowed: list[int]) -> list[int]:
        """By weight where the claims pass the machine, as the fair scheduler does."""
        whole_us = self.millicores * PERIOD_MS
        if sum(allowed) <= whole_us:
            return allowed
        claims = [
            Claim(0, pod.guarantee_millicores, 0, most)
            for pod, most in zip(pods, allowed, strict=True)
        ]
        shares = fill_grants(whole_us, claims)
        require(sum(shares) <= whole_us, "a node never runs more than its cores")
        return shares
