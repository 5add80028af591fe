"""Closed enums of reasons, one per governor. A decision never invents a string of its own."""

from enum import StrEnum


class CpuReason(StrEnum):
    """Why a pod's need is what it is, and what was bent to make the grants fit."""

    DEMAND_DRIVEN = "demand-driven"
    """The need follows the demand signal."""
    USAGE_FALLBACK = "usage-fallback"
    """Demand reads 0 although usage is near the minimum: the signal looks broken, usage decides."""
    SIGNAL_MISSING_USAGE = "signal-missing.usage"
    """No demand signal; the need follows usage."""
    SIGNAL_MISSING_HOLD = "signal-missing.hold"
    """No demand signal and no usage; the current grant is held."""
    SIGNAL_MISSING_MIN = "signal-missing.min"
    """No demand signal, no usage, no current grant; the minimum is all that is known."""
    MIN_ABOVE_MAX = "min-above-max"
    """The minimum was above the maximum; the ceiling wins."""
    GUARDRAIL_RELAXED = "guardrail-relaxed"
    """The lower bounds together passed the capacity; this pod's was lowered to fit."""
