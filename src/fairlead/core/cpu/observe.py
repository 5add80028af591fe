"""What is remembered of a node, and how each sample of its counters changes it.

    memory = observe(memory, sample, config)             # every second
    snapshot = node_snapshot(memory, now_ms, config)     # every five; `allocate` decides it
    memory = settle(memory, plan.mode, plan.memory)      # once the decision is recorded
    left_out(memory, plan, write, decrease_failed=False) # whether a limit is to be written now
    memory = applied(memory, now_ms, written)            # with each limit that was written

Pure: the same memory, samples and configuration give the same bytes, so that the life of a node
replays from its recorded counters (`fairlead.schema.cpu_govern`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import NamedTuple

from fairlead.core import units
from fairlead.core.cpu.allocate import (
    Container,
    GovernedPod,
    Guardrails,
    LimitWrite,
    Misses,
    NodePlan,
    NodeSnapshot,
    WritePhase,
)
from fairlead.core.cpu.latency import latency_bound
from fairlead.core.cpu.model import Actuation, CpuMode, Headroom, Millicores, Pause, Policy, Ratio
from fairlead.core.cpu.need import pod_bounds, pod_weight
from fairlead.core.cpu.sighting import NodeSample, PodSighting, together
from fairlead.core.cpu.signal import (
    Counters,
    CpuReading,
    Peaks,
    Smoothing,
    hold_peak,
    pod_reading,
    read_signal,
    smooth,
    waited_us,
)
from fairlead.core.units import OutOfRange


@dataclass(frozen=True, slots=True)
class CpuConfig:
    """How a node is governed. `reserve` is the share of the node that is never handed out."""

    node_millicores: Millicores
    policy: Policy = Policy.DEMAND_CAPPED
    reserve: Ratio = 0.10
    sample_ms: Pause = 1_000
    clear_ms: Pause = 5_000
    hysteresis_band: Ratio = 0.05
    headroom: Headroom = field(default_factory=Headroom)
    smoothing: Smoothing = field(default_factory=Smoothing)
    guardrails: Guardrails = field(default_factory=Guardrails)
    actuate: Actuation = Actuation.LIMITS

    def __post_init__(self) -> None:
        units.check(self)
        if not 0 < self.sample_ms <= self.clear_ms:
            raise OutOfRange("sample_ms", "must be at least 1 and at most clear_ms")

    @property
    def capacity_millicores(self) -> int:
        """What may be handed out while no pod is opted out."""
        return self.node_millicores - int(self.node_millicores * self.reserve)


class Smoothed(NamedTuple):
    """A smoothed signal (None until the first good reading) and its recent peaks."""

    mean: float | None
    peaks: Peaks

    @property
    def value(self) -> float:
        """What counts; 0 before the first reading."""
        return self.peaks[0][1] if self.peaks else 0.0

    def add(self, now_ms: int, reading: float, smoothing: Smoothing) -> "Smoothed":
        mean = smooth(self.mean, reading, smoothing)
        return Smoothed(mean, hold_peak(self.peaks, now_ms, mean, smoothing.hold_ms))

    def not_after(self, now_ms: int) -> "Smoothed":
        """Times out of the future become now, or a peak would be held until they come."""
        peaks = tuple((min(at_ms, now_ms), value) for at_ms, value in self.peaks)
        return Smoothed(self.mean, peaks)


_UNKNOWN = Smoothed(None, ())


class ContainerMemory(NamedTuple):
    """One container: its user's limit for good, what is in force (the limit, or the guarantee
    where weights are governed), its want in millicores, and the limit that we contain it with
    (None: the user's own is in force)."""

    original_limit_millicores: int | None
    current_millicores: int | None
    want: Smoothed
    contained_millicores: int | None = None


@dataclass(frozen=True, slots=True)
class PodMemory:
    """What is remembered of one pod. The first block is frozen at first sight.

    `adopted`: a grant was applied whole, so that every limit in force is ours. `touched`: a limit
    of it was written; from here on it counts against the capacity.
    """

    uid: str
    min_millicores: int
    max_millicores: int
    weight: float
    original_limit_millicores: int | None
    started_ms: int
    identity: str

    current_millicores: int | None
    adopted: bool = False
    touched: bool = False
    changed_ms: int | None = None
    demand: Smoothed = _UNKNOWN
    throttling: float | None = None
    misses: int = 0
    missed_ms: int | None = None
    containers: Mapping[str, ContainerMemory] = field(default_factory=dict)
    latency_millicores: int | None = None
    """The lower bound that its latency target asks for."""

    @classmethod
    def at_first_sight(cls, sighting: PodSighting, now_ms: int, config: CpuConfig) -> "PodMemory":
        """Freeze the user's bounds: the current limit as ceiling would make every cut permanent."""
        limit = sighting.original_limit_millicores
        low, high = pod_bounds(
            sighting.request_millicores, limit, capacity_millicores=config.capacity_millicores
        )
        return cls(
            uid=units.name(sighting.uid, "uid"),
            min_millicores=low,
            max_millicores=high,
            weight=pod_weight(sighting.request_millicores, sighting.priority),
            original_limit_millicores=limit,
            started_ms=now_ms if sighting.started_ms is None else sighting.started_ms,
            identity=sighting.identity,
            current_millicores=sighting.in_force(config.actuate),
        )

    @property
    def is_contained(self) -> bool:
        """Whether a limit of ours other than its user's own is in force beside its guarantee."""
        return any(
            container.contained_millicores not in (None, container.original_limit_millicores)
            for container in self.containers.values()
        )

    def limit_in_force(self, actuate: Actuation) -> int | None:
        """Its limit; where weights are governed, what contains it, or its user's own."""
        if actuate is Actuation.LIMITS:
            return self.current_millicores
        return self.limit_beside_guarantees

    @property
    def limit_beside_guarantees(self) -> int | None:
        """The limit in force where weights are governed: what contains it, or its user's own."""
        return together(
            [
                container.original_limit_millicores
                if container.contained_millicores is None
                else container.contained_millicores
                for container in self.containers.values()
            ]
        )

    def as_found(self) -> "PodMemory":
        """What is remembered once all that was written is put back: nothing in force is ours."""
        return replace(
            self,
            adopted=False,
            touched=False,
            changed_ms=None,
            containers={
                name: container._replace(contained_millicores=None)
                for name, container in self.containers.items()
            },
        )

    def not_after(self, now_ms: int) -> "PodMemory":
        """Times out of the future become now, or a cooldown would last until they come."""
        return replace(
            self,
            started_ms=min(self.started_ms, now_ms),
            changed_ms=None if self.changed_ms is None else min(self.changed_ms, now_ms),
            missed_ms=None if self.missed_ms is None else min(self.missed_ms, now_ms),
            demand=self.demand.not_after(now_ms),
            containers={
                name: container._replace(want=container.want.not_after(now_ms))
                for name, container in self.containers.items()
            },
        )


class CpuWindow(NamedTuple):
    """A pod's good readings since the last decision, and the counters that the next one is
    measured from. Not kept across restarts: counters may have been reset meanwhile.
    """

    used_millicores: int
    readings: int
    counters: Mapping[str, Counters]
    blind: int = 0
    """How many of the readings know the usage, but not whether threads waited."""


_NO_WINDOW = CpuWindow(0, 0, {})


@dataclass(frozen=True, slots=True)
class CpuMemory:
    """All that the governor remembers between two samples, by uid."""

    mode: CpuMode | None = None
    reserved_millicores: int = 0
    """What the opted-out pods take."""
    pods: Mapping[str, PodMemory] = field(default_factory=dict)
    windows: Mapping[str, CpuWindow] = field(default_factory=dict)

    def counters(self, uid: str) -> Mapping[str, Counters]:
        """The last counters of a pod's containers."""
        return self.windows.get(uid, _NO_WINDOW).counters


class WriteResult(StrEnum):
    """What became of a limit of a plan."""

    WRITTEN = "written"
    FAILED = "failed"
    """The kernel refused it."""
    GONE = "gone"
    """Its container had left."""
    DECREASE_FAILED = "decrease-failed"
    """It was left out: a decrease before it failed."""
    NO_ROOM = "no-room"
    """It was left out: the limits in force leave no room for it."""


class WrittenLimit(NamedTuple):
    """A limit of a plan, and the one in force since then; None: it was not written."""

    uid: str
    container: str
    limit_millicores: int | None
    result: WriteResult = WriteResult.WRITTEN


def observe(memory: CpuMemory, sample: NodeSample, config: CpuConfig) -> CpuMemory:
    """Take one sample of the whole node. A pod that is not in it has left and is forgotten."""
    pods, windows, reserved = {}, {}, 0
    for sighting in sample.pods:
        uid = sighting.uid
        if sighting.opted_out:
            reserved += sighting.reserved_millicores
            continue
        pod, window = memory.pods.get(uid), memory.windows.get(uid, _NO_WINDOW)
        if pod is None or pod.identity != sighting.identity:
            if any(container.is_unread for container in sighting.containers):
                continue  # taken for unlimited it could be raised above its user's limit
            pod = PodMemory.at_first_sight(sighting, sample.now_ms, config)
            window = _NO_WINDOW
        pods[uid], windows[uid] = _fold(pod, window, sighting, sample.now_ms, config)
    return CpuMemory(memory.mode, reserved, pods, windows)


def _fold(
    pod: PodMemory, window: CpuWindow, sighting: PodSighting, now_ms: int, config: CpuConfig
) -> tuple[PodMemory, CpuWindow]:
    """Fold one sample into the demand; a missing one leaves the last value."""
    smoothing = config.smoothing
    containers, counters, readings, blind = _fold_containers(pod, window, sighting, now_ms, config)
    demand, throttling = pod.demand, pod.throttling
    used, good = window.used_millicores, window.readings
    # A pod with a blind container would look smaller than it is.
    if readings and len(readings) == len(sighting.containers):
        whole = pod_reading(readings)
        if not blind:
            share = whole.demand(pod.min_millicores, pod.max_millicores)
            demand = demand.add(now_ms, share, smoothing)
        throttling = smooth(throttling, whole.throttled_ratio, smoothing)
        used, good = used + whole.usage_millicores, good + 1
    else:
        blind = False
    # By hand, because `replace` takes as long as all of the above, for every pod and second.
    folded = PodMemory(
        pod.uid,
        pod.min_millicores,
        pod.max_millicores,
        pod.weight,
        pod.original_limit_millicores,
        pod.started_ms,
        pod.identity,
        together([container.current_millicores for container in containers.values()]),
        pod.adopted,
        pod.touched,
        pod.changed_ms,
        demand,
        throttling,
        pod.misses,
        pod.missed_ms,
        containers,
        _latency(pod, window, sighting),
    )
    return folded, CpuWindow(used, good, counters, window.blind + blind)


def _latency(pod: PodMemory, window: CpuWindow, sighting: PodSighting) -> int | None:
    if sighting.latency_target_ms is None:
        return None
    return latency_bound(
        pod.latency_millicores,
        [(window.counters.get(seen.name), seen.counters) for seen in sighting.containers],
        target_ms=sighting.latency_target_ms,
        current_millicores=pod.current_millicores or pod.min_millicores,
        max_millicores=pod.max_millicores,
    )


def _fold_containers(
    pod: PodMemory, window: CpuWindow, sighting: PodSighting, now_ms: int, config: CpuConfig
) -> tuple[dict[str, ContainerMemory], dict[str, Counters], list[CpuReading], bool]:
    """The containers, their counters and good readings, and whether one of these is blind.

    Where no limit is ours nothing is throttled, and only waiting threads show a shortage: without
    that measurement the usage is known, and the demand is not.
    """
    limited, blind = config.actuate is Actuation.LIMITS, False
    readings: list[CpuReading] = []
    counters: dict[str, Counters] = {}
    containers: dict[str, ContainerMemory] = {}
    for container in sighting.containers:
        name, seen = container.name, container.counters
        current = container.in_force(config.actuate)
        known, before = pod.containers.get(name), window.counters.get(name)
        if container.is_unread:
            if known is None:
                continue  # as a pod at first sight
            current = known.current_millicores
        if known is None:
            original, want, contained = sighting.original_of(container), _UNKNOWN, None
        else:
            original, want, contained = known[0], known.want, known.contained_millicores
        # After a reset the new counters are the base of the next difference; after a failed
        # reading the old ones are, so that one lost sample costs one sample.
        if base := seen or before:
            counters[name] = base
        reading = read_signal(before, seen)
        if reading is not None:
            want = want.add(now_ms, float(reading.want_millicores), config.smoothing)
            readings.append(reading)
            blind = blind or not (limited or waited_us(before, seen) is not None)
        containers[name] = ContainerMemory(original, current, want, contained)
    return containers, counters, readings, blind


def node_snapshot(memory: CpuMemory, now_ms: int, config: CpuConfig) -> NodeSnapshot:
    """What a decision looks at now. Opted-out pods take their part of the capacity."""
    return NodeSnapshot(
        max(0, config.capacity_millicores - memory.reserved_millicores),
        now_ms,
        tuple(
            _governed(pod, memory.windows.get(uid, _NO_WINDOW))
            for uid, pod in sorted(memory.pods.items())
        ),
        config.policy,
        memory.mode,
        config.hysteresis_band,
        config.headroom,
        config.guardrails,
        config.actuate is not Actuation.LIMITS,
    )


def _governed(pod: PodMemory, window: CpuWindow) -> GovernedPod:
    """The signal is good if any reading since the last decision was."""
    return GovernedPod(
        uid=pod.uid,
        min_millicores=pod.min_millicores,
        max_millicores=pod.max_millicores,
        demand=pod.demand.value,
        first_seen_ms=pod.started_ms,
        containers=tuple(
            Container(name, int(want.value), current, original)
            for name, (original, current, want, _) in sorted(pod.containers.items())
        ),
        weight=pod.weight,
        usage_millicores=window.used_millicores // window.readings if window.readings else None,
        headroom_misses=pod.misses,
        signal_ok=window.readings > window.blind,
        changed_ms=pod.changed_ms,
        adopted=pod.adopted,
        missed_ms=pod.missed_ms,
        throttling=pod.throttling,
        latency_millicores=pod.latency_millicores,
    )


def settle(memory: CpuMemory, mode: CpuMode, misses: Mapping[str, Misses]) -> CpuMemory:
    """Go on from a plan once it is recorded: what is remembered follows from the record."""
    pods = dict(memory.pods)
    for uid, now in misses.items():
        if (now.headroom_misses, now.missed_ms) != (pods[uid].misses, pods[uid].missed_ms):
            pods[uid] = replace(pods[uid], misses=now.headroom_misses, missed_ms=now.missed_ms)
    windows = {uid: CpuWindow(0, 0, window.counters) for uid, window in memory.windows.items()}
    return CpuMemory(mode, memory.reserved_millicores, pods, windows)


def limits_millicores(memory: CpuMemory) -> int:
    """Σ of the limits in force that are ours; of the guarantees, where weights are governed."""
    return sum(
        container.current_millicores or 0
        for pod in memory.pods.values()
        if pod.touched
        for container in pod.containers.values()
    )


def left_out(
    memory: CpuMemory,
    plan: NodePlan,
    write: LimitWrite,
    *,
    decrease_failed: bool,
    actuate: Actuation = Actuation.LIMITS,
) -> WriteResult | None:
    """Why a limit, or a guarantee, is not to be written now; None: write it.

    A decrease that failed keeps every increase waiting. The kernel may keep more than it was told:
    what is in force counts, not the plan. With a newcomer's first limit its others count, too; a
    weight that its user gave a container, or never set, is no guarantee.
    """
    if write.phase is WritePhase.DECREASE:
        return None
    if decrease_failed:
        return WriteResult.DECREASE_FAILED
    pod, added = memory.pods[write.uid], write.after
    if pod.touched:
        added -= write.before or 0
    elif actuate is Actuation.LIMITS:
        others = [seen for name, seen in pod.containers.items() if name != write.container]
        added += sum(container.current_millicores or 0 for container in others)
    room = plan.capacity_millicores - limits_millicores(memory)
    return WriteResult.NO_ROOM if added > room else None


def applied(memory: CpuMemory, now_ms: int, written: WrittenLimit) -> CpuMemory:
    """A limit of the plan of `now_ms` was written. One of a pod that has left changes nothing."""
    if written.limit_millicores is None:
        return memory
    pod = memory.pods.get(written.uid)
    known = pod.containers.get(written.container) if pod else None
    if pod is None or known is None:
        return memory
    changed = known._replace(current_millicores=written.limit_millicores)
    containers = {**pod.containers, written.container: changed}
    whole = together([container.current_millicores for container in containers.values()])
    pod = replace(
        pod,
        touched=True,
        current_millicores=whole,
        changed_ms=pod.changed_ms if whole == pod.current_millicores else now_ms,
        adopted=whole is not None,
        containers=containers,
    )
    return replace(memory, pods={**memory.pods, written.uid: pod})
