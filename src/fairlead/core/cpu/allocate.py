"""`allocate`: one turn of a node's CPU governor, from its memory to the ordered writes.

Guardrails (cooldown, step, start-up grace, dead band) become per-pod bounds *before* clearing:
applied afterwards they would break Σ grants <= capacity. The input holds all that the guardrails
remember and `now_ms`, the output all that is acted on, so a record of both can be replayed whole.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from operator import attrgetter
from typing import Annotated

from fairlead.core import units
from fairlead.core.apportion import fill_grants, largest_remainder
from fairlead.core.claims import Claim
from fairlead.core.cpu.market import SURVIVAL_MILLICORES, clear
from fairlead.core.cpu.model import (
    DEFAULT_HEADROOM,
    Count,
    CpuMode,
    Headroom,
    Instant,
    Millicores,
    Pause,
    Plan,
    Pod,
    Policy,
    Ratio,
    Snapshot,
    Total,
    Uid,
    Weight,
    check_distinct,
)
from fairlead.core.cpu.need import count_misses
from fairlead.core.invariant import require
from fairlead.core.reasons import BoundReason, CpuReason
from fairlead.core.units import SIZE_MAX, OutOfRange, Range


@dataclass(frozen=True, slots=True)
class Guardrails:
    """How fast grants may move, and how far off a split must be to be written again."""

    cooldown_ms: Pause = 10_000
    step_ratio: Annotated[float, Range(1, 1000)] = 2.0
    step_millicores: Millicores = 2_000
    dead_band: Ratio = 0.02
    grace_ms: Pause = 45_000
    # Moving a few millicores between the containers of one pod is not worth two writes.
    split_band: Ratio = 0.10

    def __post_init__(self) -> None:
        units.check(self)


DEFAULT_GUARDRAILS = Guardrails()


@dataclass(frozen=True, slots=True)
class Container:
    """One container of a pod. The pod's own cgroup is a container named "" and the only one.

    `current_millicores` is the limit in force, `original_limit_millicores` the user's own, which
    no split exceeds. None: unlimited.
    """

    name: str
    want_millicores: Millicores
    current_millicores: Millicores | None = None
    original_limit_millicores: Millicores | None = None

    def __post_init__(self) -> None:
        units.check(self)


@dataclass(frozen=True, slots=True)
class GovernedPod:
    """A claimant with its containers and what the guardrails remember of it.

    `adopted`: its limits in force are ours; before that no step is measured from them.
    `throttling` is the smoothed share of throttled periods, None while unknown.
    """

    uid: Uid
    min_millicores: Millicores
    max_millicores: Millicores
    demand: Ratio
    first_seen_ms: Instant
    containers: tuple[Container, ...]
    weight: Weight | None = None
    usage_millicores: Millicores | None = None
    headroom_misses: Count = 0
    signal_ok: bool = True
    changed_ms: Instant | None = None
    adopted: bool = False
    missed_ms: Instant | None = None
    throttling: Ratio | None = None
    latency_millicores: Millicores | None = None
    """The lower bound that its latency target asks for."""

    def __post_init__(self) -> None:
        units.check(self)
        check_distinct("containers", "name", [container.name for container in self.containers])
        for index, container in enumerate(self.containers if len(self.containers) > 1 else ()):
            if not container.name:
                expected = "must be a non-empty string where a pod has several containers"
                raise OutOfRange(f"containers[{index}].name", expected)
        object.__setattr__(self, "weight", self.claimant(self.headroom_misses).weight)

    @property
    def current_millicores(self) -> int | None:
        """The limit in force: the sum of the containers', None when one of them has none."""
        limits = [container.current_millicores for container in self.containers]
        known = [limit for limit in limits if limit is not None]
        return sum(known) if known and len(known) == len(limits) else None

    def claimant(self, headroom_misses: int) -> Pod:
        """The pod as `clear` sees it, without bounds."""
        return Pod(
            self.uid,
            self.min_millicores,
            self.max_millicores,
            self.demand,
            self.weight,
            self.usage_millicores,
            self.current_millicores,
            headroom_misses,
            self.signal_ok,
        )


@dataclass(frozen=True, slots=True)
class NodeSnapshot:
    """All that `allocate` looks at. The order of pods and containers never matters."""

    capacity_millicores: Millicores
    now_ms: Instant
    pods: tuple[GovernedPod, ...]
    policy: Policy = Policy.DEMAND_CAPPED
    previous_mode: CpuMode | None = None
    hysteresis_band: Ratio = 0.05
    headroom: Headroom = DEFAULT_HEADROOM
    guardrails: Guardrails = DEFAULT_GUARDRAILS
    lend: bool = False
    """Allocations are guarantees: what one pod does not use is lent to the others."""

    def __post_init__(self) -> None:
        units.check(self)
        check_distinct("pods", "uid", [pod.uid for pod in self.pods])

    def claims(self, memory: "Mapping[str, Misses]") -> Snapshot:
        return Snapshot(
            self.capacity_millicores,
            tuple(pod.claimant(memory[pod.uid].headroom_misses) for pod in self.pods),
            self.policy,
            self.previous_mode,
            self.hysteresis_band,
            self.headroom,
        )


@dataclass(frozen=True, slots=True)
class Bound:
    """What the guardrails allow a grant this time (None: anything), and which of them."""

    lower_millicores: Millicores | None
    upper_millicores: Millicores | None
    reasons: tuple[BoundReason, ...]


class WritePhase(StrEnum):
    """When a limit is written: all of one phase before the next begins."""

    DECREASE = "decrease"
    NEWCOMER = "newcomer"
    """A limit that falls, but counts as ours only once it is written: it takes capacity."""
    INCREASE = "increase"


@dataclass(frozen=True, slots=True)
class LimitWrite:
    """One container's limit to write. `before` None: it was unlimited."""

    uid: str
    container: str
    before: Millicores | None
    after: Millicores
    phase: WritePhase


@dataclass(frozen=True, slots=True)
class Misses:
    """What is remembered of a pod's headroom: its misses, and when the last was counted."""

    headroom_misses: Count
    missed_ms: Instant | None


@dataclass(frozen=True, slots=True)
class NodePlan:
    """What `allocate` decided, by uid. In millicores.

    `mode` and `shadow_price` are those of the clearing without guardrails: bounds can hide a
    scarcity for a while. `mode` and `memory` go into the next snapshot.
    """

    mode: CpuMode
    capacity_millicores: Millicores
    total_min: Total
    total_need: Total
    shadow_price: float | None
    needs: Mapping[str, Millicores]
    bounds: Mapping[str, Bound]
    allocations: Mapping[str, Millicores]
    reduction_ratio: Mapping[str, float]
    reasons: Mapping[str, tuple[CpuReason, ...]]
    split: Mapping[str, Mapping[str, Millicores]]
    writes: tuple[LimitWrite, ...]
    memory: Mapping[str, Misses]


def allocate(snapshot: NodeSnapshot) -> NodePlan:
    """Decide one turn: count misses, clear freely, bound, clear inside the bounds, split, order."""
    pods = sorted(snapshot.pods, key=attrgetter("uid"))
    memory = {pod.uid: _misses(pod, snapshot) for pod in pods}
    claims = snapshot.claims(memory)
    free = clear(claims)
    bounds = _bounds(pods, snapshot, free)
    plan = clear(bounded(claims, bounds))
    band = snapshot.guardrails.split_band
    split = {pod.uid: _split(pod, plan.allocations[pod.uid], band) for pod in pods}
    for uid, parts in split.items():
        require(sum(parts.values()) <= plan.allocations[uid], "a split fits its grant")
    return NodePlan(
        mode=free.mode,
        capacity_millicores=plan.capacity_millicores,
        total_min=plan.total_min,
        total_need=plan.total_need,
        shadow_price=free.shadow_price,
        needs=plan.needs,
        bounds=bounds,
        allocations=plan.allocations,
        reduction_ratio=plan.reduction_ratio,
        reasons=plan.reasons,
        split=split,
        writes=_writes(pods, split),
        memory=memory,
    )


def bounded(claims: Snapshot, bounds: Mapping[str, Bound]) -> Snapshot:
    def inside(pod: Pod) -> Pod:
        lower, upper = bounds[pod.uid].lower_millicores, bounds[pod.uid].upper_millicores
        return replace(pod, lower_millicores=lower, upper_millicores=upper)

    return replace(claims, pods=tuple(inside(pod) for pod in claims.pods))


def _misses(pod: GovernedPod, snapshot: NodeSnapshot) -> Misses:
    """A headroom miss is *throttling* that outlives a grant, so that is the demand judged here.

    The want-based demand of `core.cpu.signal` is above 0.3 for any pod that steadily uses a third
    of its range: with it a pod that was never throttled collected a miss per clear and was granted
    3750m for a want of 2500m. On a congested node no pod's headroom is at fault.
    """
    scarce = snapshot.previous_mode not in (None, CpuMode.UNCONGESTED)
    misses, missed_ms = count_misses(
        pod.headroom_misses,
        demand=0.0 if scarce else pod.throttling or 0.0,
        applied_ms=pod.changed_ms,
        missed_ms=pod.missed_ms,
        now_ms=snapshot.now_ms,
        cooldown_ms=snapshot.guardrails.cooldown_ms,
    )
    return Misses(min(misses, snapshot.headroom.misses_max), missed_ms)


def _bounds(pods: list[GovernedPod], snapshot: NodeSnapshot, free: Plan) -> dict[str, Bound]:
    grace = _grace(pods, snapshot, free)
    bounds = {}
    for pod in pods:
        bound = _movement(pod, free.allocations[pod.uid], snapshot)
        kept, upper = grace.get(pod.uid, 0), bound.upper_millicores
        if kept > (bound.lower_millicores or 0):
            upper = None if upper is None else max(kept, upper)
            bound = Bound(kept, upper, (*bound.reasons, BoundReason.GRACE))
        if snapshot.lend:
            bound = _lending(bound, pod, free)
        bounds[pod.uid] = _with_latency(bound, pod.latency_millicores or 0)
    return bounds


def _lending(bound: Bound, pod: GovernedPod, free: Plan) -> Bound:
    """What a pod lacks is taken off its guarantee, down to its minimum.

    It uses what the others leave in any case. Guaranteed all the rest of the node, as `nash` gives
    it, one busy thread would outweigh the services beside it, which then wait for it.
    """
    need, grant = free.needs[pod.uid], free.allocations[pod.uid]
    if grant >= need:
        return bound
    floor = min(pod.min_millicores, pod.max_millicores)
    upper = max(2 * grant - need, min(floor, grant))
    if bound.upper_millicores is not None:
        upper = min(upper, bound.upper_millicores)
    lower = None if bound.lower_millicores is None else min(bound.lower_millicores, upper)
    return Bound(lower, upper, (*bound.reasons, BoundReason.LENDING))


def _with_latency(bound: Bound, asked: int) -> Bound:
    """A latency target is not held back by a cooldown or a step."""
    if asked <= (bound.lower_millicores or 0):
        return bound
    upper = bound.upper_millicores
    upper = None if upper is None else max(asked, upper)
    return Bound(asked, upper, (*bound.reasons, BoundReason.LATENCY))


def _movement(pod: GovernedPod, target: int, snapshot: NodeSnapshot) -> Bound:
    rails, current = snapshot.guardrails, pod.current_millicores
    if current is None:
        return Bound(None, None, (BoundReason.UNLIMITED,))
    if not pod.adopted:
        return Bound(None, None, (BoundReason.NEWCOMER,))
    if pod.changed_ms is not None and snapshot.now_ms - pod.changed_ms < rails.cooldown_ms:
        return Bound(current, current, (BoundReason.COOLDOWN,))
    if abs(target - current) <= rails.dead_band * current:
        return Bound(current, current, (BoundReason.DEAD_BAND,))
    lower = max(-int(-current // rails.step_ratio), current - rails.step_millicores)
    upper = min(int(current * rails.step_ratio), current + rails.step_millicores, SIZE_MAX)
    return Bound(lower, upper, (BoundReason.STEP,))


def _grace(pods: list[GovernedPod], snapshot: NodeSnapshot, free: Plan) -> dict[str, int]:
    """How far young and newly found pods keep what they have: too little is known of their need.

    Only out of what the others leave over. Held at all costs, an idle newcomer with a limit of
    6000m kept 4287m while its neighbours were throttled in every period for 45 s.
    """
    extra: dict[str, int] = {}
    for pod in pods:
        target, current = free.allocations[pod.uid], pod.current_millicores
        young = snapshot.now_ms - pod.first_seen_ms < snapshot.guardrails.grace_ms
        if current is not None and current > target and (young or not pod.adopted):
            extra[pod.uid] = current - target
    over = snapshot.capacity_millicores - sum(free.allocations.values())
    if sum(extra.values()) > over:
        shares = largest_remainder(over, list(extra.values()))
        extra = dict(zip(extra, shares, strict=True))
    return {uid: free.allocations[uid] + more for uid, more in extra.items()}


def _split(pod: GovernedPod, grant: int, band: float) -> dict[str, int]:
    """The grant by container. A pod whose grant stays keeps its split unless it is far off."""
    parts = split_grant(
        grant,
        {container.name: container.want_millicores for container in pod.containers},
        {container.name: container.original_limit_millicores for container in pod.containers},
    )
    if pod.current_millicores != grant:
        return parts
    kept = {container.name: container.current_millicores or 0 for container in pod.containers}
    far = any(abs(parts[name] - limit) > band * limit for name, limit in kept.items())
    return parts if far else {name: kept[name] for name in parts}


def split_grant(
    grant_millicores: int, needs: Mapping[str, int], caps: Mapping[str, int | None] | None = None
) -> dict[str, int]:
    """Split a pod's grant by container need: Σ = grant, none starved, none above its cap.

    A cap is the limit that the user gave a container (None: none). Where the caps together are
    below the grant, the rest stays unused.
    """
    if not needs:
        return {}
    names, claims = sorted(needs), []
    survival = min(SURVIVAL_MILLICORES, grant_millicores // len(names))
    for name in names:
        top = (caps or {}).get(name)
        high = grant_millicores if top is None else min(top, grant_millicores)
        # At least 1: a pod whose containers all need nothing is split equally.
        claims.append(Claim(0, max(needs[name], 1), min(survival, high), high))
    return dict(zip(names, fill_grants(grant_millicores, claims), strict=True))


def _writes(
    pods: list[GovernedPod], split: Mapping[str, Mapping[str, int]]
) -> tuple[LimitWrite, ...]:
    """The plan as writes, in a safe order. Limits already in force are not written again.

    A newcomer's limit is not ours yet: it counts from the moment we first write it, which is
    therefore an increase of our total even where its own limit falls (those go first).
    """
    writes = []
    for pod in pods:
        before = {container.name: container.current_millicores for container in pod.containers}
        for name, after in split[pod.uid].items():
            limit = before[name]
            if limit is not None and after >= limit:
                phase = WritePhase.INCREASE
            else:
                phase = WritePhase.DECREASE if pod.adopted else WritePhase.NEWCOMER
            if after != limit or not pod.adopted:
                writes.append(LimitWrite(pod.uid, name, limit, after, phase))
    order = list(WritePhase)
    return tuple(sorted(writes, key=lambda write: order.index(write.phase)))
