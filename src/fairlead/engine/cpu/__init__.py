"""The CPU governor of a node: `governor` keeps state, `loop` records decisions and applies them."""

from fairlead.engine.cpu.governor import BadState, CpuGovernor, GovernorState
from fairlead.engine.cpu.loop import CpuLoop, CpuTurn, Failure

__all__ = ["BadState", "CpuGovernor", "CpuLoop", "CpuTurn", "Failure", "GovernorState"]
