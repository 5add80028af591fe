"""The virtual world: the real decision code against simulated pods, in virtual time.

    from fairlead.schema.scenario import read_scenario
    from fairlead.sim import play

    played = play(read_scenario(data), seed=7)
    played.digest, played.runs[0].pods

Clock, chance and faults are the world's; the governor is `fairlead.engine`, unchanged.
"""

from fairlead.sim.checkers import Broken
from fairlead.sim.play import Played, Run, play
from fairlead.sim.world import World

__all__ = ["Broken", "Played", "Run", "World", "play"]
