"""The machines under a group: when a busy one is unhealthy, and when something of it runs out.

Full CPUs are fine until tasks wait for them. A node stalls in a sample when any kind of stall is
strictly above its threshold (section 6), and for good when at least p of the last m distinct
samples did, the current one included. A sample that is absent counts as not stalled.

    TTF = (limit - used) / max(epsilon, v_pos(used))      the least over all resources and nodes

Never of CPU (section 7). With less than a window of history the velocity, and so the TTF, is
unknown and triggers nothing; only what is already used up needs no history.
"""

from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import NamedTuple

from fairlead.core.traffic.config import Config, Theta
from fairlead.core.traffic.counters import covering
from fairlead.core.traffic.model import STALL_KINDS, Node, Psi, Resource
from fairlead.core.traffic.sighting import CpuTimes, NodeReading, NodeWindows, StallTotals
from fairlead.core.traffic.state import NodeMemory, State, Trail
from fairlead.core.units import FLOAT_MAX, INTEGER_MAX, quotient

EPSILON = 1e-9
WINDOW_US = 10_000_000
# 7 of 100 samples are 0.07 of them, although 100*0.07 is a little above 7 in binary: by less than
# this, and this is less than the smallest p, so that without a stalled sample nothing is sustained.
ROUNDING = 1e-12
STALLING = ("cpu_some", "mem_some", "mem_full", "io_full")


def stalls(psi: Psi | None, theta: Theta) -> bool:
    """Is any stall above its threshold? `io some` never is: waiting for a disk is normal."""
    return any(value > threshold for value, threshold in _thresholds(psi, theta))


def stall_score(psi: Psi | None, theta: Theta) -> float | None:
    """How far above its threshold the worst stall is: 1 at the threshold; None: unknown."""
    scores = (value / max(threshold, EPSILON) for value, threshold in _thresholds(psi, theta))
    return max(scores, default=None)


def _thresholds(psi: Psi | None, theta: Theta) -> list[tuple[float, float]]:
    if psi is None:
        return []
    pairs = ((getattr(psi, kind), getattr(theta, kind)) for kind in STALLING)
    return [(value, threshold) for value, threshold in pairs if value is not None]


def sustained(stalled: Sequence[int], config: Config) -> bool:
    return len(stalled) + ROUNDING >= config.stall_m * config.stall_p


def observe_totals(
    window: Sequence[StallTotals], sample: StallTotals
) -> tuple[tuple[StallTotals, ...], Psi | None]:
    """Add a reading of the counters; shares of the last 10 s, None with less than two readings.

    A counter or a clock that goes back is another boot: the window starts anew.
    """
    kept = covering(tuple(window), sample.time_us - WINDOW_US, attrgetter("time_us"))
    if not kept or _restarted(kept[0], sample) or _restarted(kept[-1], sample):
        return (sample,), None
    first, elapsed_us = kept[0], sample.time_us - kept[0].time_us
    shares = {
        kind: min(quotient(sample.stalled_us[kind] - first.stalled_us[kind], elapsed_us), 1.0)
        for kind in STALL_KINDS
        if kind in first.stalled_us
    }
    return (*kept, sample), Psi(**shares)


def _restarted(before: StallTotals, after: StallTotals) -> bool:
    return before.time_us >= after.time_us or any(
        kind not in after.stalled_us or after.stalled_us[kind] < total
        for kind, total in before.stalled_us.items()
    )


def ewma(previous: float | None, value: float, alpha: float) -> float:
    """alpha*x(t) + (1 - alpha)*ewma(t - dt); the first sample is its own mean."""
    if previous is None:
        return value
    # The mean of two values near the end of the range must not round past it.
    return min(alpha * value + (1 - alpha) * previous, FLOAT_MAX)


def velocity(now: float, before: float, window_ms: int) -> float:
    """v_pos: how fast the smoothed signal rises, per second; falling counts as standing still."""
    return max(0.0, (now - before) / quotient(window_ms, 1000))


def follow(
    trail: Trail | None, resource: Resource, *, clock_ms: int, advanced: bool, config: Config
) -> Trail | None:
    """The trail with this sample added. No time, no sample: only the first is taken anyway."""
    used = resource.used
    if trail is None:
        return None if used is None else Trail(resource.name, used, ((clock_ms, used),))
    smoothed, history = trail.ewma, trail.history
    if used is not None and advanced:
        smoothed = ewma(smoothed, used, config.alpha)
        history = (*history, (clock_ms, smoothed))
    # The newest sample that is a window old is the one to compare with; older ones are done with,
    # also when time went on without a sample.
    history = covering(history, clock_ms - config.derivative_window_ms)
    return Trail(trail.name, smoothed, history)


def time_to_failure(
    resource: Resource, trail: Trail | None, clock_ms: int, config: Config
) -> float | None:
    """Seconds until the resource is used up at the current velocity; None: unknown."""
    if resource.used is None or resource.limit is None or trail is None:
        return None
    remaining = resource.limit - resource.used
    if remaining <= 0:
        return 0.0
    at, before = trail.history[0]
    if at > clock_ms - config.derivative_window_ms:
        return None
    rising = velocity(trail.ewma, before, config.derivative_window_ms)
    return min(remaining / max(EPSILON, rising), config.ttf_max_s)


class Trouble(NamedTuple):
    """What machines show: a sustained stall, and the soonest time to failure, None: unknown."""

    stall: bool
    ttf_s: float | None


class Watch(NamedTuple):
    """The verdict over all nodes, and what to remember of each."""

    stall: bool
    ttf_s: float | None
    samples: int
    nodes: tuple[NodeMemory, ...]
    by_node: Mapping[str, Trouble] = {}

    def confirmed(self, hosts: Sequence[str | None]) -> Trouble:
        """What is left when the word of any one backend's machine is disregarded; `hosts` are the
        machines of the backends. A machine under several backends, or under none that is known, is
        not one backend's alone.
        """
        views = [Trouble(self.stall, self.ttf_s)]
        for name in {host for host in hosts if host is not None and hosts.count(host) == 1}:
            others = [trouble for node, trouble in self.by_node.items() if node != name]
            times = [trouble.ttf_s for trouble in others if trouble.ttf_s is not None]
            views.append(Trouble(any(t.stall for t in others), min(times, default=None)))
        known = [view.ttf_s for view in views if view.ttf_s is not None]
        ttf_s = max(known) if len(known) == len(views) else None
        return Trouble(all(view.stall for view in views), ttf_s)


def watch_nodes(
    nodes: Sequence[Node], before: State | None, *, clock_ms: int, advanced: bool, config: Config
) -> Watch:
    """Judge every node; one that stalls is enough, and the soonest failure counts.

    A node that is no longer reported is remembered while a stalled sample of it is among the last
    ones: its absence counts as samples that did not stall.
    """
    samples = 1 if before is None else min(before.samples + advanced, INTEGER_MAX)
    sample = samples if before is None or advanced else None
    known = {} if before is None else {memory.id: memory for memory in before.nodes}
    seen = {node.id: node for node in nodes}
    memories: list[NodeMemory] = []
    troubles: dict[str, Trouble] = {}
    for name in sorted(known.keys() | seen.keys()):
        memory = known.get(name) or NodeMemory(name)
        node = seen.get(name)
        stalled_now = node is not None and stalls(node.psi, config.theta)
        # The ordinals of stalled samples among the last m.
        stalled = tuple(past for past in memory.stalled if past > samples - config.stall_m)
        if stalled_now and sample is not None:
            stalled = (*stalled, sample)
        trails, left_s = _follow_all(memory, node, clock_ms, advanced=advanced, config=config)
        troubles[name] = Trouble(sustained(stalled, config), min(left_s, default=None))
        if stalled or trails:
            memories.append(NodeMemory(name, stalled, trails))
    times = [trouble.ttf_s for trouble in troubles.values() if trouble.ttf_s is not None]
    stall = any(trouble.stall for trouble in troubles.values())
    return Watch(stall, min(times, default=None), samples, tuple(memories), troubles)


def _follow_all(
    memory: NodeMemory, node: Node | None, clock_ms: int, *, advanced: bool, config: Config
) -> tuple[tuple[Trail, ...], list[float]]:
    """The trails of a node's resources, and the times to failure that are known."""
    known = {trail.name: trail for trail in memory.trails}
    resources = () if node is None else node.resources
    trails: list[Trail] = []
    times: list[float] = []
    for resource in sorted(resources, key=attrgetter("name")):
        if resource.name == "cpu":  # never runs out
            continue
        trail = follow(
            known.get(resource.name), resource, clock_ms=clock_ms, advanced=advanced, config=config
        )
        left_s = time_to_failure(resource, trail, clock_ms, config)
        times += [] if left_s is None else [left_s]
        trails += [] if trail is None else [trail]
    return tuple(trails), times


def observe_nodes(
    before: Mapping[str, NodeWindows], readings: Iterable[NodeReading] | None
) -> tuple[Mapping[str, NodeWindows], tuple[Node, ...]]:
    """Stalls and I/O wait of the machines as shares of the last 10 s. The windows of a machine that
    cannot be seen begin again; where none could be read (None) they wait.
    """
    if readings is None:
        return before, ()
    windows, nodes = {}, []
    for name, reading in sorted({reading.id: reading for reading in readings}.items()):
        totals, psi, cpu, _ = before.get(name, NodeWindows())
        if reading.totals is None:
            totals, psi = (), None
        elif not totals or reading.totals != totals[-1]:  # else it was not read again meanwhile
            totals, psi = observe_totals(totals, reading.totals)
        now = windows[name] = NodeWindows(totals, psi, *_iowait(cpu, reading.cpu))
        nodes.append(Node(name, psi, reading.resources, iowait_ratio=now.iowait_ratio))
    return windows, tuple(nodes)


def _iowait(
    times: tuple[CpuTimes, ...], now: CpuTimes | None
) -> tuple[tuple[CpuTimes, ...], float | None]:
    """None until time has passed. The kernel's own count of it may fall: then it is 0."""
    if now is None:
        return (), None
    if times and (now.total < times[-1].total or now.at_ms < times[-1].at_ms):
        times = ()
    times = covering((*times, now), now.at_ms - WINDOW_US // 1000, attrgetter("at_ms"))
    passed = now.total - times[0].total
    if passed <= 0:
        return times, None
    return times, min(1.0, max(0.0, now.iowait - times[0].iowait) / passed)
