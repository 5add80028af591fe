"""What a run leaves behind: decisions as bytes, a frame per second, events, figures, one digest.

The digest is SHA-256 over the canonical JSON of all decisions and observations, in order. Two runs
with the same digest saw the same and decided the same.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import pairwise
from typing import Any, NamedTuple

from fairlead.core.canonical import canonical
from fairlead.core.cpu import CpuMode, NodePlan, NodeSnapshot, PodSighting, Policy
from fairlead.core.reasons import CpuReason
from fairlead.schema.cpu import from_snapshot
from fairlead.sim.node import SimPod


@dataclass(frozen=True, slots=True)
class SimDecision:
    """One decision as a reader of the record gets it: from the recorded counters, by following the
    life, in values and as the documents of `cpu.allocate`."""

    time_ms: int
    snapshot: NodeSnapshot
    plan: NodePlan
    input: bytes
    result: bytes
    same: bool
    """The record holds what following it gives."""


class PodFrame(NamedTuple):
    """One pod in one second: means over the second, the limit at its end. In millicores."""

    uid: str
    want: int
    limit: int | None
    used: int
    unserved: int
    throttled: float
    """Share of the second's bandwidth periods that were throttled."""
    opted_out: bool


class Frame(NamedTuple):
    """The node at the end of one second. `mode` is None until the first decision."""

    time_ms: int
    policy: Policy
    mode: CpuMode | None
    shadow_price: float | None
    capacity: int
    limits_total: int
    """Σ of the limits that are ours."""
    pods: tuple[PodFrame, ...]


class SimEvent(NamedTuple):
    """One thing that happened, in a sentence."""

    time_ms: float
    kind: str
    text: str


class RunRecord:
    """Collects a run. Nothing here influences it."""

    def __init__(self) -> None:
        self.decisions: list[SimDecision] = []
        self.frames: list[Frame] = []
        self.events: list[SimEvent] = []
        self._hash = sha256()

    @property
    def digest(self) -> str:
        """SHA-256 of all decisions and observations so far, in hex."""
        return self._hash.hexdigest()

    def decision(
        self,
        time_ms: int,
        snapshot: NodeSnapshot,
        plan: NodePlan,
        output: Mapping[str, Any],
        *,
        same: bool,
    ) -> SimDecision:
        """Record a decision before it is applied, as documents of `cpu.allocate`."""
        beside = ("contain", "digest")
        result = {name: value for name, value in output.items() if name not in beside}
        input = canonical(from_snapshot(snapshot))
        made = SimDecision(time_ms, snapshot, plan, input, canonical(result), same)
        self.decisions.append(made)
        self._digest({"decision": time_ms})
        self._hash.update(made.input + b"\n" + made.result + b"\n")
        return made

    def observation(self, time_ms: int, sightings: Sequence[PodSighting]) -> None:
        """Record what the sensors reported, in the order of the pods' names."""
        seen = {sighting.uid: _sighting(sighting) for sighting in sightings}
        self._digest({"observation": time_ms, "pods": seen})

    def event(self, time_ms: int, kind: str, text: str) -> None:
        self.events.append(SimEvent(time_ms, kind, text))

    def _digest(self, value: dict[str, Any]) -> None:
        self._hash.update(canonical(value) + b"\n")


def _sighting(sighting: PodSighting) -> list[int | None]:
    """Compact, because there is one per pod and second."""
    limit, read = sighting.limit_millicores, sighting.containers[0].counters
    if read is None:
        return [limit, None]
    return [limit, read.usage_us, read.periods, read.throttled_periods, read.throttled_us]


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
    meter = pod.meter
    granted = meter.granted_us if meter.granted_us else None
    limits = [
        seen.limit
        for frame in frames
        for seen in frame.pods
        if seen.uid == pod.spec.name and seen.limit is not None
    ]
    minutes = meter.lifetime_ms / 60_000
    return PodFigures(
        pod=pod.spec.name,
        opted_out=pod.spec.opted_out,
        want_core_s=_core_s(meter.want_us),
        granted_core_s=None if granted is None else _core_s(granted),
        used_core_s=_core_s(meter.used_us),
        unserved_core_s=_core_s(meter.unserved_us),
        throttled_ratio=round(meter.throttled_periods / max(1, meter.periods), 4),
        slack=None if granted is None else round(max(0, granted - meter.used_us) / granted, 4),
        reversals_per_minute=round(count_reversals(limits) / minutes, 3) if minutes else 0.0,
    )


def measure_node(
    record: RunRecord, pods: Iterable[PodFigures], seconds: float, over_capacity_ms: int
) -> NodeFigures:
    """The figures of the node; pods that opted out are left out of the sums."""
    modes = [frame.mode for frame in record.frames]
    governed = [pod for pod in pods if not pod.opted_out]
    known = [mode for mode in modes if mode is not None]
    return NodeFigures(
        seconds=seconds,
        seconds_uncongested=modes.count(CpuMode.UNCONGESTED),
        seconds_congested=modes.count(CpuMode.CONGESTED),
        seconds_overloaded=modes.count(CpuMode.OVERLOADED),
        seconds_undecided=modes.count(None),
        seconds_over_capacity=over_capacity_ms / 1000,
        decisions=len(record.decisions),
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


def _core_s(microseconds: int) -> float:
    return round(microseconds / 1_000_000, 3)


LINES_MAX = 3
"""Per decision: enough to follow, few enough to read."""

_REASONS = {
    CpuReason.DEMAND_DRIVEN: "follows its demand",
    CpuReason.USAGE_FALLBACK: "shows no demand but usage near its minimum: usage decides",
    CpuReason.SIGNAL_MISSING_USAGE: "has no demand signal: usage decides",
    CpuReason.SIGNAL_MISSING_HOLD: "has no signal: its grant is held",
    CpuReason.SIGNAL_MISSING_MIN: "has no signal: it gets its minimum",
    CpuReason.MIN_ABOVE_MAX: "asks for more than its limit: the limit wins",
    CpuReason.GUARDRAIL_RELAXED: "its guardrails were relaxed to fit",
}
_CUT_BY = {
    Policy.DEMAND_CAPPED: "every surplus is cut by one ratio",
    Policy.NASH: "shared by weight, no pod above its need",
    Policy.MARKET: "shared by bids",
}


def _cores(millicores: int) -> str:
    return f"{millicores / 1000:.2f}"


def describe_changes(before: SimDecision | None, now: SimDecision) -> list[tuple[str, str]]:
    """(kind, sentence) of what this decision changed: mode, lost signals, largest moves."""
    earlier = before.plan if before else None
    lines = [*_mode(earlier, now), *_lost_signals(earlier, now.plan)]
    moves = _moves(now)
    falls = [move for move in moves if move[0] < 0]
    rises = [move for move in reversed(moves) if move[0] > 0]
    scarce = now.plan.mode is not CpuMode.UNCONGESTED
    if falls and (scarce or not rises):
        lines.append(("shrinks" if scarce else "returns", _fall(*falls[0], now.plan)))
    for change, uid in rises[:1]:
        grant = now.plan.allocations[uid]
        text = f"{uid} grows {_cores(grant - change)} → {_cores(grant)}: {_why(uid, now.plan)}"
        lines.append(("grows", text))
    return lines[:LINES_MAX]


def _why(uid: str, plan: NodePlan) -> str:
    return "; ".join(_REASONS[reason] for reason in plan.reasons[uid])


def _mode(before: NodePlan | None, now: SimDecision) -> Iterator[tuple[str, str]]:
    plan = now.plan
    if before is not None and before.mode is plan.mode:
        return
    whole = _cores(plan.capacity_millicores)
    if plan.mode is CpuMode.CONGESTED:
        text = f"needs {_cores(plan.total_need)} of {whole} cores, {_CUT_BY[now.snapshot.policy]}"
    elif plan.mode is CpuMode.OVERLOADED:
        text = f"minimums {_cores(plan.total_min)} of {whole} cores, even they are scaled down"
    else:
        text = f"needs {_cores(plan.total_need)} of {whole} cores, every pod gets its need"
    yield f"mode.{plan.mode.value}", f"{plan.mode.value}: {text}"


def _lost_signals(before: NodePlan | None, plan: NodePlan) -> Iterator[tuple[str, str]]:
    for uid, reasons in plan.reasons.items():
        earlier = before.reasons.get(uid, ()) if before else ()
        for reason in reasons:
            if reason.startswith("signal-missing") and reason not in earlier:
                yield "signal", f"{uid} {_REASONS[reason]}"


def _moves(now: SimDecision) -> list[tuple[int, str]]:
    """(change of the grant, uid), the largest fall first; what is below 5 % is not worth a line."""
    moves = []
    for pod in now.snapshot.pods:
        current = pod.current_millicores
        if current is None:
            continue
        change = now.plan.allocations[pod.uid] - current
        if abs(change) * 20 > current:
            moves.append((change, pod.uid))
    return sorted(moves)


def _fall(change: int, uid: str, plan: NodePlan) -> str:
    grant = plan.allocations[uid]
    text = f"{uid} shrinks {_cores(grant - change)} → {_cores(grant)}"
    if plan.mode is CpuMode.OVERLOADED:
        return f"{text}: its minimum is scaled"
    cut = plan.reduction_ratio[uid]
    if cut > 0:
        return f"{text}: needs {_cores(plan.needs[uid])}, {cut:.0%} of its surplus is cut"
    return f"{text}: {_why(uid, plan)}"
