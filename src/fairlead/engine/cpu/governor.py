"""The CPU governor's state: sightings in, decisions of `core.cpu.allocate` out. No I/O, no clock.

    governor = CpuGovernor(CpuConfig(node_millicores=8000))
    governor.observe(now_ms, sightings)           # each sample (1 s), all pods of the node
    snapshot, plan = governor.decide(now_ms)      # each clear (5 s); to be recorded
    governor.settle(plan)                         # once it is recorded; then apply
    governor.applied(now_ms, write, 700)          # each limit of plan.writes that was written

The node agent and the simulator drive it; `export`/`restore` carry it across a restart.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import msgspec

from fairlead.core import cpu
from fairlead.engine.cpu.state import (
    STATE_VERSION,
    ContainerState,
    CpuConfig,
    GovernorState,
    PodState,
    read_state,
)
from fairlead.ports.cpu import PodSighting


@dataclass(slots=True)
class _Window:
    """A pod's samples since the last decision. Not kept across restarts: cheap to refill, and
    counters may have been reset meanwhile.
    """

    usage: list[int] = field(default_factory=list)
    counters: dict[str, cpu.Counters] = field(default_factory=dict)


class CpuGovernor:
    """Keeps per-pod state between samples and turns it into snapshots for `core.cpu`."""

    def __init__(self, config: CpuConfig) -> None:
        self.config = config
        self._pods: dict[str, PodState] = {}
        self._windows: dict[str, _Window] = {}
        self._reserved_millicores = 0
        self._mode: cpu.CpuMode | None = None

    @property
    def capacity_millicores(self) -> int:
        """What may be handed out now: the node less its reserve less the opted-out pods."""
        return max(0, self.config.capacity_millicores - self._reserved_millicores)

    @property
    def pods(self) -> Mapping[str, PodState]:
        return self._pods

    def observe(self, now_ms: int, sightings: Iterable[PodSighting]) -> None:
        """Take one sample of the whole node. A pod that is not in it has left and is forgotten."""
        pods: dict[str, PodState] = {}
        windows: dict[str, _Window] = {}
        reserved = 0
        for sighting in sightings:
            if sighting.opted_out:
                reserved += sighting.reserved_millicores
                continue
            state = self._pods.get(sighting.uid)
            window = self._windows.get(sighting.uid)
            if state is None or state.identity != sighting.identity:
                state, window = PodState.at_first_sight(sighting, self.config, now_ms), None
            window = window or _Window()
            self._fold(state, window, sighting, now_ms)
            pods[sighting.uid], windows[sighting.uid] = state, window
        self._pods, self._windows, self._reserved_millicores = pods, windows, reserved

    def _fold(self, state: PodState, window: _Window, sighting: PodSighting, now_ms: int) -> None:
        """Fold one sample into the demand; a missing one leaves the last value."""
        smoothing, readings = self.config.smoothing, []
        known, window.counters = window.counters, {}
        containers, state.containers = state.containers, {}
        for seen in sighting.containers:
            container = containers.get(seen.name) or ContainerState.at_first_sight(seen)
            container.current_millicores = seen.limit_millicores
            state.containers[seen.name] = container
            before = known.get(seen.name)
            # After a reset the new counters are the base of the next difference; after a failed
            # reading the old ones are, so that one lost sample costs one sample.
            if base := seen.counters or before:
                window.counters[seen.name] = base
            reading = cpu.read_signal(before, seen.counters)
            if reading is not None:
                container.want.add(now_ms, reading.want_millicores, smoothing)
                readings.append(reading)
        state.current_millicores = sighting.limit_millicores
        if not readings or len(readings) < len(sighting.containers):
            return  # a pod with a blind container would look smaller than it is
        pod = cpu.pod_reading(readings)
        state.demand.add(now_ms, pod.demand(state.min_millicores, state.max_millicores), smoothing)
        state.throttling = cpu.smooth(state.throttling, pod.throttled_ratio, smoothing)
        window.usage.append(pod.usage_millicores)

    def decide(self, now_ms: int) -> tuple[cpu.NodeSnapshot, cpu.NodePlan]:
        """Decide one turn. Record it, `settle` the plan, then apply its writes."""
        snapshot = cpu.NodeSnapshot(
            self.capacity_millicores,
            now_ms,
            tuple(
                state.governed(self._windows[uid].usage if uid in self._windows else [])
                for uid, state in sorted(self._pods.items())
            ),
            self.config.policy,
            self._mode,
            self.config.hysteresis_band,
            self.config.headroom,
            self.config.guardrails,
        )
        return snapshot, cpu.allocate(snapshot)

    def settle(self, plan: cpu.NodePlan) -> None:
        """Go on from a plan once it is recorded: what is remembered follows from the record."""
        self._mode = plan.mode
        for uid, memory in plan.memory.items():
            state = self._pods[uid]
            state.misses, state.missed_ms = memory.headroom_misses, memory.missed_ms
        for window in self._windows.values():
            window.usage.clear()

    def applied(self, now_ms: int, write: cpu.LimitWrite, limit_millicores: int) -> None:
        state = self._pods.get(write.uid)
        container = state.containers.get(write.container) if state else None
        if state is None or container is None:
            return
        container.current_millicores, state.touched = limit_millicores, True
        limits = [c.current_millicores for c in state.containers.values()]
        whole = None if None in limits else sum(limit or 0 for limit in limits)
        if whole != state.current_millicores:
            state.changed_ms = now_ms
        state.current_millicores = whole
        state.adopted = whole is not None

    @property
    def adopted_millicores(self) -> int:
        """Σ of the limits in force that are ours."""
        return sum(
            container.current_millicores or 0
            for state in self._pods.values()
            if state.touched
            for container in state.containers.values()
        )

    def adds(self, write: cpu.LimitWrite) -> int:
        """How much a write adds to `adopted_millicores`."""
        state = self._pods[write.uid]
        if state.touched:
            return write.after - (write.before or 0)
        others = [c for name, c in state.containers.items() if name != write.container]
        return write.after + sum(c.current_millicores or 0 for c in others)

    def reconfigure(self, config: CpuConfig) -> None:
        """Go on under another configuration (say, another policy). Frozen bounds stay frozen."""
        self.config = config

    def export(self) -> dict[str, Any]:
        pods = [self._pods[uid] for uid in sorted(self._pods)]
        state = GovernorState(STATE_VERSION, self._mode, self._reserved_millicores, pods)
        document: dict[str, Any] = msgspec.to_builtins(state)
        return document

    @classmethod
    def restore(
        cls, config: CpuConfig, stored: Mapping[str, Any], *, now_ms: int | None = None
    ) -> Self:
        """A governor that goes on where `export` left off; raises `BadState` on anything else.

        Times after `now_ms` (the clock was set back meanwhile) count as now.
        """
        state, governor = read_state(stored), cls(config)
        governor._mode, governor._reserved_millicores = state.mode, state.reserved_millicores
        for pod in state.pods:
            if now_ms is not None:
                pod.not_after(now_ms)
            governor._pods[pod.uid] = pod
        return governor
