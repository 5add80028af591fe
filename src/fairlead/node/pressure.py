"""Pressure stall information of the node: how long tasks waited for CPU."""

from pathlib import Path

from fairlead.node.kernel_files import Pressure, pressure

NODE_PRESSURE = Path("/proc/pressure/cpu")


def read_node_pressure(path: Path = NODE_PRESSURE) -> Pressure | None:
    """The node's CPU pressure; None where the kernel does not keep it."""
    try:
        return pressure(path.read_bytes())
    except OSError:
        return None
