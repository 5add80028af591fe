"""What a run comes to: figures per pod and per node, from the meters and the frames."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from fairlead.core.cpu import CpuMode
from fairlead.sim.node import SimPod
from fairlead.sim.record import Frame


@dataclass(frozen=True, slots=True)
class PodFigures:
    """One pod over its life. Core-seconds are rounded to thousandths."""

    pod: str
    opted_out: bool
    want_core_s: float
    granted_core_s: float | None
    """Limit times time; None for a pod without a limit."""
    used_core_s: float
    unserved_core_s: float
    """Not served when it was wanted: lost, or served later."""
    throttled_ratio: float
    slack: float | None
    """Share of the grant that was not used."""
    reversals_per_minute: float
    """How often the limit turned from rising to falling or back."""


@dataclass(frozen=True, slots=True)
class NodeFigures:
    """The node over the run."""

    seconds: float
    seconds_uncongested: int
    seconds_congested: int
    seconds_overloaded: int
    seconds_undecided: int
    """Before the first decision."""
    seconds_over_capacity: float
    """With Σ limits above the capacity: must be 0."""
    decisions: int
    mode_changes: int
    want_core_s: float
    granted_core_s: float
    used_core_s: float


def measure_pod(pod: SimPod, frames: Iterable[Frame]) -> PodFigures:
    """The figures of one pod."""
    meter = pod.meter
    granted = meter.granted_us if meter.granted_us else None
    limits = [
        each.limit
        for frame in frames
        for each in frame.pods
        if each.uid == pod.spec.name and each.limit is not None
    ]
    minutes = meter.lifetime_ms / 60_000
    return PodFigures(
        pod=pod.spec.name,
        opted_out=pod.spec.opted_out,
        want_core_s=_core_s(meter.want_us),
        granted_core_s=None if granted is None else _core_s(granted),
        used_core_s=_core_s(meter.used_us),
        unserved_core_s=_core_s(meter.unserved_us),
        throttled_ratio=_share(meter.throttled_periods, meter.periods),
        slack=None if granted is None else _share(max(0, granted - meter.used_us), granted),
        reversals_per_minute=round(count_reversals(limits) / minutes, 3) if minutes else 0.0,
    )


def measure_node(
    frames: list[Frame],
    pods: Iterable[PodFigures],
    *,
    decisions: int,
    seconds: float,
    over_capacity_ms: int,
) -> NodeFigures:
    """The figures of the node; pods that opted out are left out of the sums."""
    modes = [frame.mode for frame in frames]
    governed = [pod for pod in pods if not pod.opted_out]
    known = [mode for mode in modes if mode is not None]
    return NodeFigures(
        seconds=seconds,
        seconds_uncongested=modes.count(CpuMode.UNCONGESTED),
        seconds_congested=modes.count(CpuMode.CONGESTED),
        seconds_overloaded=modes.count(CpuMode.OVERLOADED),
        seconds_undecided=modes.count(None),
        seconds_over_capacity=over_capacity_ms / 1000,
        decisions=decisions,
        mode_changes=sum(a is not b for a, b in pairwise(known)),
        want_core_s=round(sum(pod.want_core_s for pod in governed), 3),
        granted_core_s=round(sum(pod.granted_core_s or 0 for pod in governed), 3),
        used_core_s=round(sum(pod.used_core_s for pod in governed), 3),
    )


def count_reversals(values: Iterable[int]) -> int:
    """Changes of direction in a series; standing still is no direction."""
    reversals, direction, last = 0, 0, None
    for value in values:
        if last is not None and value != last:
            step = 1 if value > last else -1
            reversals += direction == -step
            direction = step
        last = value
    return reversals


def plain(figures: PodFigures | NodeFigures) -> dict[str, Any]:
    """As a JSON-ready object."""
    return asdict(figures)


def _core_s(microseconds: int) -> float:
    return round(microseconds / 1_000_000, 3)


def _share(part: int, whole: int) -> float:
    return round(part / whole, 4) if whole else 0.0
