"""Border types of the CPU governor: the contracts `cpu.clear` and `cpu.allocate` as documents."""

from collections.abc import Callable
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType

from fairlead.core import cpu
from fairlead.core.units import FLOAT_MAX, INTEGER_MAX, SIZE_MAX, OutOfRange
from fairlead.schema.border import BadInput
from fairlead.schema.derive import Style

_T = TypeVar("_T")

Millicores = Annotated[int, Meta(ge=0, le=SIZE_MAX, description="thousandths of a CPU core")]
Count = Annotated[int, Meta(ge=0, le=SIZE_MAX)]
Ratio = Annotated[float, Meta(ge=0, le=1)]
Weight = Annotated[float, Meta(ge=0, le=FLOAT_MAX)]
STYLE, RESULT = Style(strict=False), Style()


@STYLE.derived(cpu.Headroom)
class HeadroomDocument(msgspec.Struct):
    """Factors of the room added on top of the raw need."""


@STYLE.derived(cpu.Guardrails)
class GuardrailsDocument(msgspec.Struct):
    """How fast limits may move, and how far off a split must be to be written again."""


@STYLE.derived(cpu.Smoothing)
class SmoothingDocument(msgspec.Struct):
    """EWMA factors of the demand, per sample, and for how long its highest value counts."""


class PodDocument(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """One claimant of the node's CPU."""

    uid: Annotated[str, Meta(min_length=1)]
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
    previous_mode: cpu.CpuMode | None = None
    hysteresis_band: Ratio = 0.05
    headroom: HeadroomDocument = HeadroomDocument()


class ClearResult(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Output of `cpu.clear`: grants and reasons by uid."""

    mode: cpu.CpuMode
    capacity_millicores: Millicores
    total_min: Annotated[int, Meta(ge=0, le=INTEGER_MAX)]
    total_need: Annotated[int, Meta(ge=0, le=INTEGER_MAX)]
    shadow_price: float | None
    needs: dict[str, Millicores]
    allocations: dict[str, Millicores]
    reduction_ratio: dict[str, float]
    reasons: dict[str, list[str]]


@STYLE.derived(cpu.NodeSnapshot)
class AllocateDocument(msgspec.Struct):
    """Input of `cpu.allocate`: a node, its pods, the guardrails, what they remember, and now."""


@RESULT.derived(cpu.NodePlan)
class AllocateResult(msgspec.Struct):
    """Output of `cpu.allocate`: scarcity, bounds, grants, split, ordered writes and memory."""


def fields_of(document: msgspec.Struct) -> dict[str, Any]:
    """A document's fields by name; the defaults that core fills in are left to it."""
    values = {name: getattr(document, name) for name in document.__struct_fields__}
    return {name: value for name, value in values.items() if value is not UNSET}


def _checked(path: str, make: Callable[..., _T], **fields: Any) -> _T:
    """A core value; what only core can see is refused with its path too."""
    try:
        return make(**fields)
    except OutOfRange as error:
        raise BadInput(f"{path}{error.field}", error.message) from error


def to_snapshot(document: ClearDocument) -> cpu.Snapshot:
    """The input of `cpu.clear` as core's value."""
    pods = tuple(
        _checked(f"pods[{index}].", cpu.Pod, **fields_of(pod))
        for index, pod in enumerate(document.pods)
    )
    headroom = cpu.Headroom(**fields_of(document.headroom))
    return _checked(
        "", cpu.Snapshot, **(fields_of(document) | {"pods": pods, "headroom": headroom})
    )


def to_node_snapshot(document: AllocateDocument) -> cpu.NodeSnapshot:
    """The input of `cpu.allocate` as core's value."""
    return STYLE.to_core(cpu.NodeSnapshot, document)


def from_snapshot(snapshot: cpu.Snapshot | cpu.NodeSnapshot) -> dict[str, Any]:
    """The document of a snapshot, every default filled in: what a recorder stores."""
    document: dict[str, Any] = msgspec.to_builtins(snapshot)
    return document


def from_plan(plan: cpu.Plan) -> dict[str, Any]:
    """The document of a plan. Totals that JSON cannot carry exactly are refused, not rounded."""
    _check_totals(plan)
    return {name: getattr(plan, name) for name in ClearResult.__struct_fields__}


def from_node_plan(plan: cpu.NodePlan) -> dict[str, Any]:
    """The document of a node's plan, under the same rule."""
    _check_totals(plan)
    document: dict[str, Any] = msgspec.to_builtins(plan)
    return document


def _check_totals(plan: cpu.Plan | cpu.NodePlan) -> None:
    if max(plan.total_need, plan.total_min) > INTEGER_MAX:
        raise BadInput("pods", f"add up to more than {INTEGER_MAX} millicores")
