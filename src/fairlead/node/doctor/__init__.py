"""What this machine can do for Fairlead: the checks of `fairlead doctor`."""

from fairlead.node.doctor import base, cpu, devices
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

ALL_CHECKS: tuple[Check, ...] = (*base.CHECKS, *cpu.CHECKS, *devices.CHECKS)
"""In the order of the report."""

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
