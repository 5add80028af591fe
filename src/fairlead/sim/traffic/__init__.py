"""The traffic harness: scenarios against the agent's own loop, with their promises checked.

`play` runs in virtual time on the in-memory dataplane: the same seed, the same digest. `play_real`
runs a real agent process, a real dataplane and real connections. Both return a `TrafficResult`,
which `check_promises` checks and `report` writes.
"""

from functools import partial

from fairlead import sim
from fairlead.sim.traffic.checks import PromiseCheck, check_promises
from fairlead.sim.traffic.result import Answer, Tick, TrafficResult
from fairlead.sim.traffic.virtual import play

__all__ = [
    "Answer",
    "PromiseCheck",
    "Tick",
    "TrafficResult",
    "bundled_names",
    "check_promises",
    "play",
    "read_bundled",
]

bundled_names = partial(sim.bundled_names, __name__)
read_bundled = partial(sim.read_bundled, package=__name__)
