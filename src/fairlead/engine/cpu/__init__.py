"""The CPU governor of a node: `governor` keeps state, `loop` records decisions and applies them."""

from fairlead.engine.cpu.governor import CpuGovernor
from fairlead.engine.cpu.loop import CpuLoop, CpuTurn, Failure
from fairlead.engine.cpu.state import BadState, CpuConfig

__all__ = ["BadState", "CpuConfig", "CpuGovernor", "CpuLoop", "CpuTurn", "Failure"]
