"""Every check of `fairlead doctor`, in the order of the report."""

from fairlead.node import checks_base, checks_cpu, checks_gpu, checks_traffic
from fairlead.node.checkup import Check

ALL_CHECKS: tuple[Check, ...] = (
    *checks_base.CHECKS,
    *checks_cpu.CHECKS,
    *checks_gpu.CHECKS,
    *checks_traffic.CHECKS,
)
