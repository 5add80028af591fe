"""The vectorised path: clear thousands of nodes in one call, bit-equal to `fairlead.core.cpu`.

    from fairlead.fleet import FleetSnapshot, clear_fleet

    plan = clear_fleet(FleetSnapshot.from_snapshots(snapshots))
    plan.allocations      # one column over all pods, in the order of the roster
    plan.fallbacks        # how many nodes the scalar path had to clear
    plan.to_plans()       # the same `Plan`s that `fairlead.core.cpu.clear` returns

Called by whoever looks at many nodes at once: simulations, what-if questions, replays. See
README.md beside this file for the way it stays exact.
"""

try:
    import numpy as _numpy  # noqa: F401 - the one dependency, named before anything trips over it
except ModuleNotFoundError as missing:
    if missing.name != "numpy":
        raise
    raise ImportError(
        "fairlead.fleet needs numpy, an optional extra: pip install 'fairlead[fleet]'"
    ) from missing

from fairlead.fleet.clear import clear_fleet
from fairlead.fleet.columns import UNKNOWN
from fairlead.fleet.plan import FleetPlan
from fairlead.fleet.roster import Roster
from fairlead.fleet.snapshot import FleetSnapshot

__all__ = ["UNKNOWN", "FleetPlan", "FleetSnapshot", "Roster", "clear_fleet"]
