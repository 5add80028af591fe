"""Reports of a simulated node and a simulated service: the real governors, as their agents would
report them, played up to now."""

import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec

from fairlead.core.cpu import Policy
from fairlead.engine.cpu import CpuGovernor, CpuLoop
from fairlead.engine.traffic import GroupGovernor, TickRound, TrafficLoop
from fairlead.node.moments import node_moment
from fairlead.node.traffic.moments import group_moment
from fairlead.schema.reports import GroupMoment, NodeMoment
from fairlead.schema.scenario import read_scenario
from fairlead.schema.traffic_scenario import read_traffic_scenario
from fairlead.sim import read_bundled
from fairlead.sim.simulation import Simulation
from fairlead.sim.traffic.virtual import VirtualRun

SCENARIO = Path(__file__).resolve().parents[2] / "scenarios" / "overload.yaml"


def node_moments(seconds: int = 150) -> list[NodeMoment]:
    """Newcomers fill a node until not even the minimums fit."""
    simulation = Simulation(read_scenario(SCENARIO.read_bytes()), seed=3, policy=Policy.NASH)
    made: list[NodeMoment] = []
    _spy_on_clearings(simulation.agent.loop, made)
    for _ in range(seconds):
        simulation.advance(1_000)
    return made


def _spy_on_clearings(loop: CpuLoop | None, made: list[NodeMoment]) -> None:
    assert loop is not None
    governor: CpuGovernor = loop.governor
    clear = loop.clear

    def spied(now_ms: int) -> Any:
        turn = clear(now_ms)
        made.append(node_moment(turn, governor)())
        return turn

    loop.clear = spied  # type: ignore[method-assign]


class SpiedRun(VirtualRun):
    """Keeps a moment of each second, as the agent's reports do."""

    def __init__(self, *arguments: Any) -> None:
        self.moments: list[GroupMoment] = []
        super().__init__(*arguments)

    def _new_loop(self, governor: GroupGovernor) -> TrafficLoop:
        loop = super()._new_loop(governor)
        tick = loop.tick

        def spied(now_ms: int, *, early: bool = False) -> TickRound:
            round = tick(now_ms, early=early)
            ((name, made),) = round.groups.items()
            due = not self.moments or now_ms - self.moments[-1].time_ms >= 1_000
            if due or made.flipped:
                found = loop.groups[name].governor.isolated
                self.moments.append(group_moment(now_ms, made, "memory", found, None)())
            return round

        loop.tick = spied  # type: ignore[method-assign]
        return loop


def group_moments(name: str = "slow") -> list[GroupMoment]:
    scenario = read_traffic_scenario(read_bundled(name, "fairlead.sim.traffic"))
    with tempfile.TemporaryDirectory() as folder:
        run = SpiedRun(scenario, None, Path(folder))
        run.run()
    return run.moments


def report_of(agent: str, **parts: Any) -> dict[str, Any]:
    """A report of moments, their times moved so that the last one is now."""
    document: dict[str, Any] = {"version": 1, "agent": agent, "started_ms": 1, "dropped": 0}
    for part, (name, every_ms, moments) in parts.items():
        ahead = int(time.time() * 1000) - moments[-1].time_ms
        moved = [
            {**msgspec.to_builtins(moment), "time_ms": moment.time_ms + ahead} for moment in moments
        ]
        document[part] = [{"name": name, "every_ms": every_ms, "moments": moved}]
    return document
