"""The traffic governor's decisions: how a group's flow is split, and how much is admitted.

    from fairlead.core.traffic import Backend, Snapshot, tick

    plan = tick(Snapshot(now_ms=0, group="web", backends=(
        Backend("a", queue=3, p95_ms=40, error_rate=0, requests=200),
        Backend("b", queue=3, p95_ms=400, error_rate=0, requests=200))))
    plan.slots, plan.admission.mode    # ({'a': 231, 'b': 25}, <AdmissionMode.NORMAL: 'normal'>)

See README.md beside this file for the terms and the flow.
"""

from fairlead.core.traffic.config import Config
from fairlead.core.traffic.govern import GroupDecision, govern
from fairlead.core.traffic.health import Cause, HealthRules
from fairlead.core.traffic.limits import Split, liveness, split
from fairlead.core.traffic.memory import CHECK_FAILURES, GroupMemory, GroupRules
from fairlead.core.traffic.model import (
    Admission,
    Backend,
    Node,
    Pressure,
    Psi,
    Resource,
    Snapshot,
    TickPlan,
)
from fairlead.core.traffic.observe import observe, rested, settle
from fairlead.core.traffic.sighting import (
    Liveness,
    OperatorCommand,
    Sighting,
    StallTotals,
    plausible,
)
from fairlead.core.traffic.state import AdmissionMode, Regime, State
from fairlead.core.traffic.tick import tick

__all__ = [
    "CHECK_FAILURES",
    "Admission",
    "AdmissionMode",
    "Backend",
    "Cause",
    "Config",
    "GroupDecision",
    "GroupMemory",
    "GroupRules",
    "HealthRules",
    "Liveness",
    "Node",
    "OperatorCommand",
    "Pressure",
    "Psi",
    "Regime",
    "Resource",
    "Sighting",
    "Snapshot",
    "Split",
    "StallTotals",
    "State",
    "TickPlan",
    "govern",
    "liveness",
    "observe",
    "plausible",
    "rested",
    "settle",
    "split",
    "tick",
]
