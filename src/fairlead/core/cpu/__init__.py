"""The CPU governor's decisions: how many millicores of a node each pod gets, and why.

    from fairlead.core.cpu import Pod, Snapshot, clear

    plan = clear(Snapshot(1000, (Pod("a", 100, 900, 0.5), Pod("b", 100, 900, 0.9))))
    plan.allocations   # {'a': 403, 'b': 597}

See README.md beside this file for the terms and the flow.
"""

from fairlead.core.cpu.allocate import (
    Bound,
    Container,
    GovernedPod,
    Guardrails,
    LimitWrite,
    Misses,
    NodePlan,
    NodeSnapshot,
    WritePhase,
    allocate,
    bounded,
    split_grant,
)
from fairlead.core.cpu.market import clear
from fairlead.core.cpu.model import CpuMode, Headroom, Plan, Pod, Policy, Snapshot
from fairlead.core.cpu.need import CpuNeed, count_misses, estimate_need, pod_bounds, pod_weight
from fairlead.core.cpu.signal import (
    Counters,
    CpuReading,
    Peaks,
    Smoothing,
    hold_peak,
    pod_reading,
    read_signal,
    smooth,
)

__all__ = [
    "Bound",
    "Container",
    "Counters",
    "CpuMode",
    "CpuNeed",
    "CpuReading",
    "GovernedPod",
    "Guardrails",
    "Headroom",
    "LimitWrite",
    "Misses",
    "NodePlan",
    "NodeSnapshot",
    "Peaks",
    "Plan",
    "Pod",
    "Policy",
    "Smoothing",
    "Snapshot",
    "WritePhase",
    "allocate",
    "bounded",
    "clear",
    "count_misses",
    "estimate_need",
    "hold_peak",
    "pod_bounds",
    "pod_reading",
    "pod_weight",
    "read_signal",
    "smooth",
    "split_grant",
]
