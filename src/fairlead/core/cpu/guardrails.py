"""Guardrails are bounds: cooldown, step, start-up grace and dead band, turned into per-pod
[lower, upper] *before* clearing.

Applied afterwards they would break Σ grants <= capacity. The result is an ordinary snapshot, so a
guarded decision is recorded, replayed and explained like any other `cpu.clear`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from fairlead.core import units
from fairlead.core.apportion import largest_remainder
from fairlead.core.cpu.market import clear
from fairlead.core.cpu.model import Plan, Snapshot
from fairlead.core.units import OutOfRange


@dataclass(frozen=True, slots=True)
class Guardrails:
    """How fast grants may move."""

    cooldown_ms: int = 10_000
    step_ratio: float = 2.0
    step_millicores: int = 2_000
    dead_band: float = 0.02
    grace_ms: int = 45_000

    def __post_init__(self) -> None:
        for field in ("cooldown_ms", "step_millicores", "grace_ms"):
            units.size(getattr(self, field), field)
        object.__setattr__(self, "dead_band", units.ratio(self.dead_band, "dead_band"))
        object.__setattr__(self, "step_ratio", units.weight(self.step_ratio, "step_ratio"))
        if self.step_ratio < 1:
            raise OutOfRange("step_ratio", f"must be at least 1, got {self.step_ratio!r}")


@dataclass(frozen=True, slots=True)
class PodHistory:
    """When a pod was first seen, when its grant last changed, and whether it has had one yet.

    The limit of a pod that is not adopted is its user's: no step of ours is measured from it.
    """

    first_seen_ms: int
    changed_ms: int | None = None
    adopted: bool = True


class Guarded(NamedTuple):
    """A guarded clearing: the bounded snapshot (to record), its plan, and the plan without bounds.

    `free` says how scarce the node really is: bounds can hide a scarcity for a while.
    """

    snapshot: Snapshot
    plan: Plan
    free: Plan


def clear_guarded(
    snapshot: Snapshot, histories: Mapping[str, PodHistory], guardrails: Guardrails, *, now_ms: int
) -> Guarded:
    """Clear inside the guardrails. The free clearing comes first: the dead band asks how far the
    target is, and grace may only use what nobody needs.
    """
    free = clear(snapshot)
    grace = _grace(snapshot, free, histories, guardrails, now_ms)
    pods = []
    for pod in snapshot.pods:
        history, current = histories.get(pod.uid), pod.current_millicores
        if history is None or current is None:
            pods.append(pod)
            continue
        lower, upper = _bounds(current, free.allocations[pod.uid], history, guardrails, now_ms)
        lower = max(lower, grace.get(pod.uid, 0))
        upper = min(max(lower, upper), units.SIZE_MAX)
        pods.append(replace(pod, lower_millicores=lower, upper_millicores=upper))
    bounded = replace(snapshot, pods=tuple(pods))
    return Guarded(bounded, clear(bounded), free)


def _grace(
    snapshot: Snapshot,
    free: Plan,
    histories: Mapping[str, PodHistory],
    guardrails: Guardrails,
    now_ms: int,
) -> dict[str, int]:
    """How far young and newly found pods keep what they have: too little is known of their need.

    Only out of what the others leave over. Held at all costs, an idle newcomer with a limit of
    6000m kept 4287m while its neighbours were throttled in every period for 45 s.
    """
    extra: dict[str, int] = {}
    for pod in sorted(snapshot.pods, key=lambda pod: pod.uid):
        history, current = histories.get(pod.uid), pod.current_millicores
        if history is None or current is None or current <= free.allocations[pod.uid]:
            continue
        if now_ms - history.first_seen_ms < guardrails.grace_ms or not history.adopted:
            extra[pod.uid] = current - free.allocations[pod.uid]
    over = snapshot.capacity_millicores - sum(free.allocations.values())
    if sum(extra.values()) > over:
        shares = largest_remainder(over, list(extra.values()))
        extra = dict(zip(extra, shares, strict=True))
    return {uid: free.allocations[uid] + more for uid, more in extra.items()}


def _bounds(
    current: int, target: int, history: PodHistory, guardrails: Guardrails, now_ms: int
) -> tuple[int, int]:
    """The [lower, upper] that cooldown, dead band and step allow a pod to move in."""
    if not history.adopted:
        return 0, units.SIZE_MAX
    changed = history.changed_ms
    if changed is not None and now_ms - changed < guardrails.cooldown_ms:
        return current, current
    if abs(target - current) <= guardrails.dead_band * current:
        return current, current
    ratio, step = guardrails.step_ratio, guardrails.step_millicores
    lower = max(-int(-current // ratio), current - step)
    return lower, min(int(current * ratio), current + step)
