"""The traffic harness: scenarios against the agent's own loop, with their promises checked.

`play` runs in virtual time on the in-memory dataplane, `real.RealRun` in real time on a real one.
"""

from functools import partial

from fairlead import sim
from fairlead.sim.traffic.checks import PromiseCheck as PromiseCheck
from fairlead.sim.traffic.checks import check_promises as check_promises
from fairlead.sim.traffic.result import TrafficResult as TrafficResult
from fairlead.sim.traffic.virtual import play as play

bundled_names = partial(sim.bundled_names, __name__)
read_bundled = partial(sim.read_bundled, package=__name__)
