"""The node agent of the virtual world: the real loop and the real governor, in virtual time.

It keeps time, keeps the stored state, dies and comes back; all else is `engine.cpu.loop` between
the adapters of `sim.adapters`.
"""

import json
from collections.abc import Callable
from typing import Any

from fairlead.core.canonical import canonical
from fairlead.core.cpu import NodePlan
from fairlead.engine.cpu import CpuConfig, CpuGovernor, CpuLoop
from fairlead.sim.adapters import AgentDied, SimActuator, SimRecorder, SimSensor, Surroundings
from fairlead.sim.clock import Turn
from fairlead.sim.record import Decision


class SimAgent:
    """Drives a `CpuLoop`. `judge` runs the checkers after every write, `decided` on decisions."""

    def __init__(
        self,
        config: CpuConfig,
        around: Surroundings,
        *,
        judge: Callable[[], None],
        decided: Callable[[Decision], None],
    ) -> None:
        self.config = config
        self.adopted: set[str] = set()
        """Pods whose limit is ours."""
        self.capacity_millicores: int | None = None
        """What the limits must fit into; None until a plan was applied completely."""
        self.settled: NodePlan | None = None
        """The plan that is in force completely, None while one is being applied."""
        self._around, self._judge, self._decided = around, judge, decided
        self._sensor = SimSensor(around)
        self._actuator = SimActuator(around, self._written)
        self._recorder = SimRecorder(around, self._begin)
        self._stored: bytes | None = None
        self._busy = False
        self.loop: CpuLoop | None = None
        """None while the agent is dead."""
        self._start()

    def reconfigure(self, config: CpuConfig) -> None:
        """Another policy from the next clear on."""
        self.config = config
        if self.loop is not None:
            self.loop.governor.reconfigure(config)

    def forget(self, name: str) -> None:
        """A pod left the node, and its limit with it."""
        self.adopted.discard(name)

    def sample(self) -> None:
        """Look at the node, unless the agent is dead or stuck in a write."""
        if self.loop is None or self._busy:
            return
        try:
            self.loop.sample(self._around.clock.now_ms)
        except AgentDied as death:
            self._die(death)

    def clear(self) -> None:
        """One turn of the loop; time may pass in it while limits are slow to be written."""
        if self.loop is None or self._busy:
            return
        self._busy = True
        try:
            turn = self.loop.clear(self._around.clock.now_ms)
        except AgentDied as death:
            self._die(death)
            return
        finally:
            self._busy = False
        if not turn.failures:
            self.settled = turn.plan
            self.capacity_millicores = turn.plan.capacity_millicores
        self._judge()

    def _begin(self, decision: Decision) -> None:
        """A plan is about to be applied: from here on neither it nor the last one is in force."""
        self._decided(decision)
        self.settled = None
        if self.capacity_millicores is not None:
            self.capacity_millicores = max(
                self.capacity_millicores, decision.plan.capacity_millicores
            )

    def _written(self, uid: str) -> None:
        self.adopted.add(uid)
        self._judge()

    def _die(self, death: AgentDied) -> None:
        # Limits stay as they are: the actuators keep the last safe state.
        self.loop = None
        self._around.tell(f"the agent dies {death.when}; limits stay as they are")
        clock = self._around.clock
        clock.at(clock.now_ms + death.away_ms, Turn.WORLD, self._restart)

    def _restart(self) -> None:
        self._around.tell("the agent is back with its state")
        self._start()

    def _start(self) -> None:
        now_ms = self._around.clock.now_ms
        if self._stored is None:
            governor = CpuGovernor(self.config)
        else:  # through bytes, as from a disk
            stored = json.loads(self._stored)
            governor = CpuGovernor.restore(self.config, stored, now_ms=now_ms)
        self.loop = CpuLoop(
            governor,
            sensor=self._sensor,
            actuator=self._actuator,
            recorder=self._recorder,
            keep=self._keep,
        )
        self.loop.heal(now_ms)

    def _keep(self, state: dict[str, Any]) -> None:
        self._stored = canonical(state)
