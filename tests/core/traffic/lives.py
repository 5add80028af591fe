"""A group's memory carried from tick to tick, for tests of what is observed."""

from fairlead.core.traffic import (
    GroupMemory,
    GroupRules,
    Sighting,
    TickPlan,
    observe,
    plausible,
    settle,
    tick,
)
from fairlead.core.traffic.observe import Observed


class GroupLife:
    """One group."""

    def __init__(self, rules: GroupRules) -> None:
        self.rules, self.memory = rules, GroupMemory()

    def tick(self, sighting: Sighting, *, applied: bool = True) -> tuple[Observed, TickPlan]:
        """Observe, decide, settle."""
        memory, observed = observe(self.memory, plausible(sighting), self.rules, group="web")
        plan = tick(observed.snapshot)
        self.memory = settle(memory, plan, applied=applied)
        return observed, plan
