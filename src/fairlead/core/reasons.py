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


class CoverRefusal(StrEnum):
    """Why a GPU request is not covered: the first single relaxation that would have helped."""

    BORROW_LIMIT_EXCEEDED = "BorrowLimitExceeded"
    """The run may not borrow, or not as much as it would take."""
    ACL_DENIED = "ACLDenied"
    """A sponsor would have enough, but does not lend to this owner."""
    INTEGRAL_CAP_EXCEEDED = "IntegralCapExceeded"
    """GPUs are free, but their hours are used up or promised."""
    CONCURRENCY_CAP_EXCEEDED = "ConcurrencyCapExceeded"
    """Too many GPUs at once."""
    NO_ENVELOPE = "NoEnvelope"
    """Nothing of the flavor is reachable in an open window."""
