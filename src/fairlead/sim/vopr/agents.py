"""The node agent and the traffic agent of a world: their real engines on simulated ports."""

import tempfile
from pathlib import Path

from fairlead.core.reasons import TrafficReason
from fairlead.core.traffic.alone import TIMES_MOST, UNLEARNED_EACH
from fairlead.schema.scenario import read_scenario
from fairlead.schema.traffic_scenario import read_traffic_scenario
from fairlead.sim import read_bundled
from fairlead.sim.checkers import Broken
from fairlead.sim.simulation import Simulation
from fairlead.sim.traffic.load import SimBackend
from fairlead.sim.traffic.result import GROUP
from fairlead.sim.traffic.virtual import VirtualRun, replay_problems
from fairlead.sim.vopr.violation import Violation

NODE_SCENARIOS = ("faults", "overload", "bursty-mix")
TRAFFIC_SCENARIOS = ("flapping", "rolling", "noisy", "double-load", "fast-500s", "latency-lost")
CALM = "noisy"
"""At 70 % of the capacity, and nothing happens: hardly a request is refused."""
SHARE_FROM = 400
"""Arrivals after which the share of refused ones says something."""


class VoprAgents:
    """Begun when the first step is for them; `close` replays what the traffic agent recorded."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._node: Simulation | None = None
        self._traffic: VirtualRun | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._ticks = 0
        self._dead_ms = self._inside = 0
        self._liar: SimBackend | None = None
        self._counted: tuple[int, int] | None = None
        """Requests that were let in and that were refused before the lie, or the last death."""

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
            self._dead_ms, self._counted = 0, None
        run.advance(2_000)
        for tick in run.ticks[self._ticks :]:
            total = sum(tick.slots.values())
            if total != (run.config.s_total if tick.slots else 0):
                raise Violation("traffic-agent slots", f"{total} slots at {tick.at}")
            if not tick.reasons:
                raise Violation("traffic-agent reasons", f"none at {tick.at}")
            if self._liar is not None and TrafficReason.RETRY_STORM in tick.reasons:
                raise Violation("traffic-agent one-signal", f"one backend is a storm at {tick.at}")
        self._ticks = len(run.ticks)
        if self._liar is not None and run.scenario.name == CALM:
            self._check_share(run)

    def lie(self, backend: int, per_s: int) -> None:
        """One backend reports so many retries that never were; the same one in a schedule."""
        run = self._running()
        if self._liar is None:
            names = sorted(run.backends)
            self._liar = run.backends[names[backend % len(names)]]
        self._liar.false_retries_per_s = per_s

    def _check_share(self, run: VirtualRun) -> None:
        """What one backend says costs its own share at the most: the others serve theirs."""
        seen = run.plane.read()[GROUP]
        now = (seen.admitted, seen.refused_soft + seen.refused_hard)
        if self._counted is None:
            self._counted = now
        admitted, refused = (
            after - before for after, before in zip(now, self._counted, strict=True)
        )
        total = admitted + refused
        if total >= SHARE_FROM and refused * len(run.backends) > total:
            raise Violation(
                "traffic-agent share", f"{refused} of {total} are refused for one backend"
            )

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
