"""Wires the demo: the lab's story on the control plane, and a simulated node and service.

Their governors run the real decision code; pods, clients and backends are simulated, in real time.
They report like any agent, in this process, and are called `simulated`.
"""

import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from msgspec import structs

from fairlead.api.lab import Lab
from fairlead.api.service import Service
from fairlead.api.story_acts import Act, Caption, Story
from fairlead.compose.demo_metrics import NodeCounts, ServiceCounts, demo_metrics
from fairlead.core.invariant import known
from fairlead.engine.cpu import CpuTurn
from fairlead.engine.traffic import TickRound, TrafficLoop
from fairlead.node.moments import node_moment
from fairlead.node.traffic.moments import group_moment
from fairlead.schema.reports import AgentReport, GroupMoments, NodeMoments
from fairlead.sim.live import Crisis, LiveNode, LiveService

AGENT, NODE, GROUP = "simulated", "simulated-node", "simulated-web"
STEP_S, REPORT_MS = 0.2, 1_000
BEHIND_MS = 2_000
"""What a machine that slept or was busy leaves out, instead of catching up in one burst."""
STOP_S = 10.0


@contextmanager
def demo(service: Service, folder: Path) -> Iterator[None]:
    """The story, until the context ends; nothing of it is left then."""
    service.story = story = Story(service.now_ms)
    try:
        with (
            SimulatedWorld(service, story, folder / "service") as world,
            demo_metrics(service.address, NODE, world.counts),
            Lab(service, story, folder / "checkpoints", world),
        ):
            yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class SimulatedWorld:
    """The node and the service at the pace of the clock, in one thread of their own."""

    def __init__(self, service: Service, story: Story, folder: Path) -> None:
        self._control, self._story, self._folder = service, story, folder
        self._lock, self._stop = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="simulated", daemon=True)
        self._seed, self._fresh = 0, False
        self.counts = NodeCounts(lambda: self._node.agent.loop), ServiceCounts(GROUP)
        self._begin()

    def __enter__(self) -> "SimulatedWorld":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(timeout=STOP_S)
        self._service.close()

    # --- what the story asks for

    def renew(self) -> None:
        with self._lock:
            if not self._fresh:
                self._service.close()
                shutil.rmtree(self._folder, ignore_errors=True)
                self._begin()
            self._fresh = False

    def congest(self, round: int) -> None:
        with self._lock:
            self._node.congest(promised=round % 2 == 1)

    def slow(self, round: int) -> None:
        with self._lock:
            self._service.sicken(fails=round % 2 == 1)

    def settle(self) -> None:
        with self._lock:
            self._node.settle()
            self._service.heal()

    # --- time

    def _begin(self) -> None:
        self._seed, self._fresh = self._seed + 1, True
        self._started_ms = self._control.now_ms()
        self._node, self._turn = LiveNode(self._seed), None
        folder = self._folder / str(self._seed)
        self._service, self._reported_ms = LiveService(self._seed, folder, self._ticked), 0

    def _run(self) -> None:
        due = time.monotonic()
        while not self._stop.wait(max(0.0, due + STEP_S - time.monotonic())):
            behind_ms = round((time.monotonic() - due) * 1000)
            due = time.monotonic()
            with self._lock:
                self._advance(min(behind_ms, BEHIND_MS))

    def _advance(self, step_ms: int) -> None:
        crises = self._node.advance(step_ms)
        self._cleared(self._node.agent.turn)
        for crisis in crises:
            self._tell(Act.CONGESTED, f"Node {NODE} is {crisis.text}.", "node", NODE, crisis)
        self._service.obey(self._control.access.orders(GROUP))
        for crisis in self._service.advance(step_ms):
            self._tell(Act.SLOW, f"Service {GROUP}: {crisis.text}.", "group", GROUP, crisis)

    def _tell(self, act: Act, text: str, kind: str, name: str, crisis: Crisis) -> None:
        view = f"/cpu/{name}" if kind == "node" else f"/traffic/{name}"
        # Each round counts anew: the time tells its decision from those of other rounds.
        now_ms = self._control.now_ms()
        decision = f"/decision/{kind}/{name}/{crisis.decision}?at={now_ms}"
        links = ((decision, "the decision"), (view, name))
        caption = Caption(act, text, links, now_ms, simulated=True)
        self._story.tell(caption)

    # --- reports

    _turn: CpuTurn | None

    def _cleared(self, turn: CpuTurn | None) -> None:
        """Report a turn of the node that was not reported yet."""
        if turn is None or turn is self._turn:
            return
        self._turn, agent = turn, self._node.agent
        self.counts[0].add(turn)
        governor = known(agent.loop, "no crash is simulated").governor
        moment = structs.replace(node_moment(turn, governor)(), time_ms=self._control.now_ms())
        node = NodeMoments(NODE, agent.config.clear_ms, [moment])
        self._report(AgentReport(1, AGENT, self._started_ms, 0, nodes=[node]))

    def _ticked(self, round: TickRound, loop: TrafficLoop) -> None:
        """Report a tick: one a second, and each that changed something."""
        self.counts[1].add(round)
        now_ms = self._control.now_ms()
        if now_ms - self._reported_ms < REPORT_MS and not round.transitions:
            return
        self._reported_ms = now_ms
        orders = self._control.access.orders(GROUP)
        for name, made in round.groups.items():
            isolated = loop.groups[name].governor.isolated
            moment = group_moment(now_ms, made, loop.plane.name, isolated, orders)()
            group = GroupMoments(GROUP, REPORT_MS, [moment])
            self._report(AgentReport(1, AGENT, self._started_ms, 0, groups=[group]))

    def _report(self, report: AgentReport) -> None:
        self._control.fleet.take(report, self._control.now_ms())
