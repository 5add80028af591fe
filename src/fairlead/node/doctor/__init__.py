"""What this machine can do for Fairlead: the checks of `fairlead doctor`."""

from fairlead.node.doctor.checks import ALL_CHECKS
from fairlead.node.doctor.machine import (
    Check,
    CheckResult,
    CheckStatus,
    Finding,
    Governor,
    Machine,
    base_works,
    examine,
)

__all__ = [
    "ALL_CHECKS",
    "Check",
    "CheckResult",
    "CheckStatus",
    "Finding",
    "Governor",
    "Machine",
    "base_works",
    "examine",
]
