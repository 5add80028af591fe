"""Guardrails are bounds: cooldown, step, start-up grace and dead band, turned into per-pod
[lower, upper] *before* clearing.

Applied afterwards they would break Σ grants <= capacity. The result is an ordinary snapshot, so a
guarded decision is recorded, replayed and explained like any other `cpu.clear`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from fairlead.core import units
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
    """When a pod was first seen and when its grant last changed."""

    first_seen_ms: int
    changed_ms: int | None = None


def clear_guarded(
    snapshot: Snapshot, histories: Mapping[str, PodHistory], guardrails: Guardrails, *, now_ms: int
) -> tuple[Snapshot, Plan]:
    """Clear inside the guardrails; returns the bounded snapshot (to record) and its plan.

    The free clearing comes first, because the dead band asks how far the target is.
    """
    targets = clear(snapshot).allocations
    pods = []
    for pod in snapshot.pods:
        history, current = histories.get(pod.uid), pod.current_millicores
        if history is None or current is None:
            pods.append(pod)
            continue
        lower, upper = _bounds(current, targets[pod.uid], history, guardrails, now_ms)
        pods.append(
            replace(pod, lower_millicores=lower, upper_millicores=min(upper, units.SIZE_MAX))
        )
    bounded = replace(snapshot, pods=tuple(pods))
    return bounded, clear(bounded)


def _bounds(
    current: int, target: int, history: PodHistory, guardrails: Guardrails, now_ms: int
) -> tuple[int, int]:
    """The [lower, upper] that the guardrails allow a pod to move in."""
    changed = history.changed_ms
    if changed is not None and now_ms - changed < guardrails.cooldown_ms:
        return current, current
    if abs(target - current) <= guardrails.dead_band * current:
        return current, current
    ratio, step = guardrails.step_ratio, guardrails.step_millicores
    lower = max(-int(-current // ratio), current - step)
    upper = min(int(current * ratio), current + step)
    if now_ms - history.first_seen_ms < guardrails.grace_ms:
        lower = current  # start-up is CPU-hungry and says little about the steady need
    return lower, upper
