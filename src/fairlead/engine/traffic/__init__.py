"""The traffic governor's loop: take the sighting, decide, record, apply, mark.

`governor` is one group, `loop` drives all groups through their ports. What is decided, and from
which memory, is in `fairlead.core.traffic`.
"""

from fairlead.core.traffic import GroupDecision, GroupRules
from fairlead.engine.traffic.governor import BadTrafficState, GroupGovernor
from fairlead.engine.traffic.loop import (
    ANCHOR_EVERY_MS,
    Group,
    GroupRound,
    Ports,
    TickRound,
    TrafficLoop,
)
from fairlead.schema.traffic_govern import KIND

__all__ = [
    "ANCHOR_EVERY_MS",
    "KIND",
    "BadTrafficState",
    "Group",
    "GroupDecision",
    "GroupGovernor",
    "GroupRound",
    "GroupRules",
    "Ports",
    "TickRound",
    "TrafficLoop",
]
