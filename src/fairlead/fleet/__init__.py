"""The vectorised path: clear thousands of nodes in one call, bit-equal to `fairlead.core.cpu`.

    plan = clear_fleet(FleetSnapshot.from_snapshots(snapshots))
    plan.fallbacks        # how many nodes the scalar path had to clear
    plan.to_plans()       # the same `Plan`s that `fairlead.core.cpu.clear` returns

`fairlead sim whatif` calls it. README.md beside this file says why the answer is exact.
"""

try:
    import numpy as _numpy  # noqa: F401 - only to see whether it is installed
except ModuleNotFoundError as missing:
    if missing.name != "numpy":
        raise
    raise ImportError(
        "fairlead.fleet needs numpy, an optional extra: pip install 'fairlead[fleet]'"
    ) from missing

from fairlead.fleet.clear import clear_fleet
from fairlead.fleet.snapshot import FleetPlan, FleetSnapshot

__all__ = ["FleetPlan", "FleetSnapshot", "clear_fleet"]
