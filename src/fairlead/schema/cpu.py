"""Border types of the CPU governor: the `cpu.clear` contract as documents."""

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from fairlead.core import cpu
from fairlead.core.units import FLOAT_MAX, INTEGER_MAX, SIZE_MAX, OutOfRange
from fairlead.schema.border import BadInput

Millicores = Annotated[int, Meta(ge=0, le=SIZE_MAX, description="thousandths of a CPU core")]
Count = Annotated[int, Meta(ge=0, le=SIZE_MAX)]
Ratio = Annotated[float, Meta(ge=0, le=1)]
Weight = Annotated[float, Meta(ge=0, le=FLOAT_MAX)]
Pause = Annotated[int, Meta(ge=0, le=86_400_000, description="milliseconds")]
Step = Annotated[float, Meta(ge=1, le=1000)]


class HeadroomDocument(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Factors of the room added on top of the raw need."""

    base: Ratio = 0.10
    per_demand: Ratio = 0.15
    per_miss: Ratio = 0.05
    cap: Ratio = 0.50


class GuardrailsDocument(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """How fast limits may move."""

    cooldown_ms: Pause = 10_000
    step_ratio: Step = 2.0
    step_millicores: Millicores = 2_000
    dead_band: Ratio = 0.02
    grace_ms: Pause = 45_000


class SmoothingDocument(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """EWMA factors of the demand, per sample, and for how long its highest value counts."""

    up: Ratio = 1.0
    down: Ratio = 0.1
    hold_ms: Pause = 60_000


class PodDocument(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """One claimant of the node's CPU."""

    uid: str
    min_millicores: Millicores
    max_millicores: Millicores
    demand: Ratio
    weight: Annotated[Weight | UnsetType, Meta(description="defaults to max(1, min)")] = UNSET
    usage_millicores: Millicores | None = None
    current_millicores: Millicores | None = None
    headroom_misses: Count = 0
    signal_ok: bool = True
    lower_millicores: Millicores | None = None
    upper_millicores: Millicores | None = None


class ClearDocument(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Input of `cpu.clear`: a node's capacity and its pods; uids must differ."""

    capacity_millicores: Millicores
    pods: list[PodDocument]
    policy: cpu.Policy = cpu.Policy.DEMAND_CAPPED
    previous_mode: cpu.Mode | None = None
    hysteresis_band: Ratio = 0.05
    headroom: HeadroomDocument = HeadroomDocument()


class ClearResult(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Output of `cpu.clear`: grants and reasons by uid."""

    mode: cpu.Mode
    capacity_millicores: Millicores
    total_min: Annotated[int, Meta(ge=0, le=INTEGER_MAX)]
    total_need: Annotated[int, Meta(ge=0, le=INTEGER_MAX)]
    shadow_price: float | None
    needs: dict[str, Millicores]
    allocations: dict[str, Millicores]
    reduction_ratio: dict[str, float]
    reasons: dict[str, list[str]]


def to_snapshot(document: ClearDocument) -> cpu.Snapshot:
    """A checked document as core's frozen value; what only core can see is refused by path too."""
    pods = []
    for index, pod in enumerate(document.pods):
        weight = None if pod.weight is UNSET else pod.weight
        try:
            value = cpu.Pod(
                pod.uid,
                pod.min_millicores,
                pod.max_millicores,
                pod.demand,
                weight,
                pod.usage_millicores,
                pod.current_millicores,
                pod.headroom_misses,
                pod.signal_ok,
                pod.lower_millicores,
                pod.upper_millicores,
            )
        except OutOfRange as error:
            raise BadInput(f"pods[{index}].{error.field}", error.message) from error
        pods.append(value)
    room = document.headroom
    try:
        return cpu.Snapshot(
            document.capacity_millicores,
            tuple(pods),
            document.policy,
            document.previous_mode,
            document.hysteresis_band,
            cpu.Headroom(room.base, room.per_demand, room.per_miss, room.cap),
        )
    except OutOfRange as error:
        raise BadInput(error.field, error.message) from error


def from_snapshot(snapshot: cpu.Snapshot) -> dict[str, Any]:
    """The document of a snapshot, every default filled in: what a recorder stores."""
    return {
        "capacity_millicores": snapshot.capacity_millicores,
        "policy": snapshot.policy.value,
        "previous_mode": snapshot.previous_mode.value if snapshot.previous_mode else None,
        "hysteresis_band": snapshot.hysteresis_band,
        "headroom": {
            name: getattr(snapshot.headroom, name) for name in HeadroomDocument.__struct_fields__
        },
        "pods": [
            {name: getattr(pod, name) for name in PodDocument.__struct_fields__}
            for pod in snapshot.pods
        ],
    }


def from_plan(plan: cpu.Plan) -> dict[str, Any]:
    """The document of a plan. Totals that JSON cannot carry exactly are refused, not rounded."""
    if max(plan.total_need, plan.total_min) > INTEGER_MAX:
        raise BadInput("pods", f"add up to more than {INTEGER_MAX} millicores")
    return {
        "mode": plan.mode.value,
        "capacity_millicores": plan.capacity_millicores,
        "total_min": plan.total_min,
        "total_need": plan.total_need,
        "shadow_price": plan.shadow_price,
        "needs": plan.needs,
        "allocations": plan.allocations,
        "reduction_ratio": plan.reduction_ratio,
        "reasons": plan.reasons,
    }
