"""The CPU governor's decisions: who gets how many millicores of a node, and why.

    from fairlead.core.cpu import Pod, Snapshot, clear

    plan = clear(Snapshot(1000, (Pod("a", 100, 900, 0.5), Pod("b", 100, 900, 0.9))))
    plan.allocations   # {'a': 403, 'b': 597}

See README.md beside this file for the terms and the flow.
"""

from fairlead.core.cpu.containers import pod_reading, split_grant
from fairlead.core.cpu.guardrails import Guarded, Guardrails, PodHistory, clear_guarded
from fairlead.core.cpu.market import clear
from fairlead.core.cpu.model import Headroom, Mode, Plan, Pod, Policy, Snapshot
from fairlead.core.cpu.need import Need, count_misses, estimate_need, pod_bounds, pod_weight
from fairlead.core.cpu.signal import (
    Counters,
    Peaks,
    Reading,
    Smoothing,
    hold_peak,
    read_signal,
    smooth,
)

__all__ = [
    "Counters",
    "Guarded",
    "Guardrails",
    "Headroom",
    "Mode",
    "Need",
    "Peaks",
    "Plan",
    "Pod",
    "PodHistory",
    "Policy",
    "Reading",
    "Smoothing",
    "Snapshot",
    "clear",
    "clear_guarded",
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
