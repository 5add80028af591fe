"""The loops' own logic: snapshot → decide → record → apply, one state machine per governor.

Engines hold state but never touch the world: readings and times come in as arguments, plans and
changes go out as values. The simulator and the agents drive the same classes.
"""

from fairlead.engine.cpu import CpuGovernor
from fairlead.engine.cpu_state import BadState, Change, Changes, CpuConfig

__all__ = ["BadState", "Change", "Changes", "CpuConfig", "CpuGovernor"]
