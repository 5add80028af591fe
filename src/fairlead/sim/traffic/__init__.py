"""The traffic harness: scenarios against the agent's own loop, judged.

`play` in virtual time on the in-memory plane: the same seed, the same digest. `play_real` with a
real agent process, a real plane and real connections. Both end in the same `Played`, which `judge`
looks at and `report` writes down.
"""

from fairlead.sim.traffic.judge import Verdict, judge
from fairlead.sim.traffic.story import Answer, Played, Tick
from fairlead.sim.traffic.virtual import play

__all__ = ["Answer", "Played", "Tick", "Verdict", "judge", "play"]
