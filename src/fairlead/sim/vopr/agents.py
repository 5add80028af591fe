"""The node agent and the traffic agent of a world: their real engines on simulated ports."""

import tempfile
from pathlib import Path

from fairlead.core.traffic.alone import TIMES_MOST, UNLEARNED_EACH
from fairlead.schema.scenario import read_scenario
from fairlead.schema.traffic_scenario import read_traffic_scenario
from fairlead.sim import read_bundled
from fairlead.sim.checkers import Broken
from fairlead.sim.simulation import Simulation
from fairlead.sim.traffic.result import GROUP
from fairlead.sim.traffic.virtual import VirtualRun, replay_problems
from fairlead.sim.vopr.violation import Violation

NODE_SCENARIOS = ("faults", "overload", "bursty-mix")
TRAFFIC_SCENARIOS = ("flapping", "rolling", "noisy", "double-load", "fast-500s", "latency-lost")


class VoprAgents:
    """Begun when the first step is for them; `close` replays what the traffic agent recorded."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._node: Simulation | None = None
        self._traffic: VirtualRun | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._ticks = 0
        self._dead_ms = self._inside = 0

    def node(self) -> None:
        """The node agent samples and clears; Σ limits ≤ capacity is checked at every write."""
        if self._node is None:
            name = NODE_SCENARIOS[self._seed % len(NODE_SCENARIOS)]
            scenario = read_scenario(read_bundled(name))
            self._node = Simulation(scenario, seed=self._seed, policy=None)
        try:
            self._node.advance(1_000)
        except Broken as broken:
            raise Violation(f"node-agent {broken.check}", broken.message) from broken

    def traffic(self) -> None:
        """The traffic agent ticks every 200 ms, if it lives; its slots always add up."""
        run = self._running()
        if self._dead_ms:
            run.advance(self._dead_ms)
            self._check_bound(run)
            run.return_agent()
            self._dead_ms = 0
        run.advance(2_000)
        for tick in run.ticks[self._ticks :]:
            total = sum(tick.slots.values())
            if total != (run.config.s_total if tick.slots else 0):
                raise Violation("traffic-agent slots", f"{total} slots at {tick.at}")
            if not tick.reasons:
                raise Violation("traffic-agent reasons", f"none at {tick.at}")
        self._ticks = len(run.ticks)

    def kill_traffic(self, dead_ms: int) -> None:
        """The traffic agent dies and is back after so long."""
        if not self._dead_ms and self._ticks:  # before its first tick it has kept nothing
            self._running().kill_agent(dead_ms)
            self._dead_ms, self._inside = dead_ms, _inside(self._running())

    def _check_bound(self, run: VirtualRun) -> None:
        """Without the agent there is a bound all the same: what was learned, or inside, a few times
        over; at twice the capacity thousands would be inside otherwise."""
        most = TIMES_MOST * max(UNLEARNED_EACH * len(run.backends), self._inside)
        if _inside(run) > most:
            text = f"{_inside(run)} are inside without an agent, {most} at the most"
            raise Violation("traffic-agent bound", text)

    def close(self) -> None:
        """Every recorded tick is decided again."""
        if self._traffic is None or self._folder is None:
            return
        self._traffic.close()
        problems = replay_problems(Path(self._folder.name))
        self._folder.cleanup()
        if problems:
            raise Violation("traffic-agent replay", problems[0])

    def _running(self) -> VirtualRun:
        if self._traffic is None:
            name = TRAFFIC_SCENARIOS[self._seed % len(TRAFFIC_SCENARIOS)]
            scenario = read_traffic_scenario(read_bundled(name, "fairlead.sim.traffic"))
            self._folder = tempfile.TemporaryDirectory(prefix="fairlead-vopr-")
            self._traffic = VirtualRun(scenario, self._seed, Path(self._folder.name))
            self._traffic.begin()
        return self._traffic


def _inside(run: VirtualRun) -> int:
    return sum(seen.open or 0 for seen in run.plane.read()[GROUP].backends.values())
