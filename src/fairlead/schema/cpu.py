"""Border types of the CPU governor: the contracts `cpu.clear` and `cpu.allocate` as documents."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from fairlead.core import cpu
from fairlead.core.units import INTEGER_MAX, SIZE_MAX
from fairlead.schema.border import BadInput
from fairlead.schema.derive import Style

Millicores = Annotated[int, Meta(ge=0, le=SIZE_MAX, description="thousandths of a CPU core")]
Ratio = Annotated[float, Meta(ge=0, le=1)]
STYLE = Style(strict=False, not_null={cpu.Pod: {"weight"}})
RESULT = Style()


@STYLE.derived(cpu.Headroom)
class HeadroomDocument(msgspec.Struct):
    """Factors of the room added on top of the raw need."""


@STYLE.derived(cpu.Guardrails)
class GuardrailsDocument(msgspec.Struct):
    """How fast limits may move, and how far off a split must be to be written again."""


@STYLE.derived(cpu.Smoothing)
class SmoothingDocument(msgspec.Struct):
    """EWMA factors of the demand, per sample, and for how long its highest value counts."""


ClearDocument = STYLE.document(cpu.Snapshot, "ClearDocument")
ClearResult = RESULT.document(cpu.Plan, "ClearResult")
AllocateDocument = STYLE.document(cpu.NodeSnapshot, "AllocateDocument")
AllocateResult = RESULT.document(cpu.NodePlan, "AllocateResult")


def cpu_config(settings: Any, node_millicores: int, policy: cpu.Policy) -> cpu.CpuConfig:
    """How a node is governed, from the configuration of an agent or from a scenario."""
    return cpu.CpuConfig(
        node_millicores,
        policy,
        settings.reserve,
        settings.sample_ms,
        settings.clear_ms,
        settings.hysteresis_band,
        actuate=settings.actuate,
        headroom=STYLE.to_core(cpu.Headroom, settings.headroom),
        smoothing=STYLE.to_core(cpu.Smoothing, settings.smoothing),
        guardrails=STYLE.to_core(cpu.Guardrails, settings.guardrails),
    )


def decide_clear(document: Any) -> dict[str, Any]:
    """Divide a node's millicores among its pods."""
    return from_plan(cpu.clear(STYLE.to_core(cpu.Snapshot, document)))


def decide_allocate(document: Any) -> dict[str, Any]:
    """Decide a node's CPU limits inside the guardrails, as ordered writes."""
    return from_plan(cpu.allocate(STYLE.to_core(cpu.NodeSnapshot, document)))


def from_snapshot(snapshot: cpu.Snapshot | cpu.NodeSnapshot) -> dict[str, Any]:
    """The document of a snapshot, every default filled in: what a recorder stores."""
    document: dict[str, Any] = msgspec.to_builtins(snapshot)
    return document


def from_plan(plan: cpu.Plan | cpu.NodePlan) -> dict[str, Any]:
    """The document of a plan. Totals that JSON cannot carry exactly are refused, not rounded."""
    if max(plan.total_need, plan.total_min) > INTEGER_MAX:
        raise BadInput("pods", f"add up to more than {INTEGER_MAX} millicores")
    document: dict[str, Any] = msgspec.to_builtins(plan)
    return document
