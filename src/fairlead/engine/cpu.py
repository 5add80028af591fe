"""The CPU governor as a state machine: readings in, plans out. No I/O, no clock, no chance.

    governor = CpuGovernor(CpuConfig(node_millicores=8000))
    governor.observe(now_ms, sightings)           # each sample (1 s), all pods of the node
    guarded = governor.decide(now_ms)             # each clear (5 s); record it, then apply
    changes = governor.changes(guarded.plan)      # decreases first, then increases
    governor.applied(now_ms, change, 700)         # each limit that was really written

The node agent and the simulator drive it; `export`/`restore` carry it across a restart.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Self

from fairlead.core.cpu import (
    Guarded,
    Mode,
    Plan,
    Pod,
    PodHistory,
    Reading,
    Snapshot,
    clear_guarded,
    count_misses,
    pod_reading,
    read_signal,
    smooth,
    split_grant,
)
from fairlead.engine.cpu_state import BadState, Change, Changes, ContainerState, CpuConfig, PodState
from fairlead.ports.cpu import ContainerSighting, Sighting

STATE_VERSION = 2
# Moving a few millicores between the containers of one pod is not worth two writes.
SPLIT_BAND = 0.10


class CpuGovernor:
    """Keeps per-pod state between samples and turns it into snapshots for `core.cpu`."""

    def __init__(self, config: CpuConfig) -> None:
        self.config = config
        self._pods: dict[str, PodState] = {}
        self._reserved_millicores = 0
        self._mode: Mode | None = None

    @property
    def capacity_millicores(self) -> int:
        """What may be handed out now: the node less its reserve less the opted-out pods."""
        return max(0, self.config.capacity_millicores - self._reserved_millicores)

    @property
    def pods(self) -> Mapping[str, PodState]:
        """The governed pods by uid, to look at."""
        return self._pods

    def observe(self, now_ms: int, sightings: Iterable[Sighting]) -> None:
        """Take one sample of the whole node. A pod that is not in it has left and is forgotten."""
        seen: dict[str, PodState] = {}
        reserved = 0
        for sighting in sightings:
            if sighting.opted_out:
                reserved += sighting.reserved_millicores
                continue
            state = self._pods.get(sighting.uid)
            if state is None or state.identity != sighting.identity:
                state = PodState.at_first_sight(sighting, self.config, now_ms)
            self._read(state, sighting, now_ms)
            state.current_millicores = sighting.limit_millicores
            seen[sighting.uid] = state
        self._pods, self._reserved_millicores = seen, reserved

    def _read(self, state: PodState, sighting: Sighting, now_ms: int) -> None:
        """Fold one sample into the demand; a missing one leaves the last value."""
        known, state.containers = state.containers, {}
        readings = []
        for seen in sighting.containers:
            container = known.get(seen.name) or ContainerState(
                seen.limit_millicores, seen.limit_millicores
            )
            container.current_millicores = seen.limit_millicores
            state.containers[seen.name] = container
            readings.append(self._read_container(container, seen, now_ms))
        whole = [reading for reading in readings if reading is not None]
        if not whole or len(whole) < len(readings):
            return  # a pod with a blind container would look smaller than it is
        reading = pod_reading(whole)
        demand = reading.demand(state.min_millicores, state.max_millicores)
        smoothing = self.config.smoothing
        state.demand.add(now_ms, demand, smoothing)
        state.throttling = smooth(state.throttling, reading.throttled_ratio, smoothing)
        state.window_usage.append(reading.usage_millicores)

    def _read_container(
        self, container: ContainerState, seen: ContainerSighting, now_ms: int
    ) -> Reading | None:
        reading = read_signal(container.counters, seen.counters)
        # After a reset the new counters are the base of the next difference; after a failed
        # reading the old ones are, so that one lost sample costs one sample.
        container.counters = seen.counters or container.counters
        if reading is not None:
            container.want.add(now_ms, reading.want_millicores, self.config.smoothing)
        return reading

    def decide(self, now_ms: int) -> Guarded:
        """Clear the market inside the guardrails. Record the snapshot and the plan, then apply."""
        for state in self._pods.values():
            self._count_misses(state, now_ms)
        snapshot = Snapshot(
            self.capacity_millicores,
            tuple(_pod(self._pods[uid]) for uid in sorted(self._pods)),
            self.config.policy,
            self._mode,
            self.config.hysteresis_band,
            self.config.headroom,
        )
        histories = {
            uid: PodHistory(state.started_ms, state.changed_ms, state.adopted)
            for uid, state in self._pods.items()
        }
        guarded = clear_guarded(snapshot, histories, self.config.guardrails, now_ms=now_ms)
        self._mode = guarded.free.mode
        for state in self._pods.values():
            state.window_usage.clear()
        return guarded

    def _count_misses(self, state: PodState, now_ms: int) -> None:
        """A headroom miss is *throttling* that outlives a grant, so that is the demand judged here.

        The want-based demand of `core.cpu.signal` is above 0.3 for any pod that steadily uses a
        third of its range: with it a pod that was never throttled collected a miss per clear and
        was granted 3750m for a want of 2500m. On a congested node nobody's headroom is at fault.
        """
        scarce = self._mode is not None and self._mode is not Mode.UNCONGESTED
        misses, state.missed_ms = count_misses(
            state.misses,
            demand=0.0 if scarce else state.throttling or 0.0,
            applied_ms=state.changed_ms,
            missed_ms=state.missed_ms,
            now_ms=now_ms,
            cooldown_ms=self.config.guardrails.cooldown_ms,
        )
        state.misses = min(misses, self.config.misses_max)

    def changes(self, plan: Plan) -> Changes:
        """The plan as writes, in a safe order. Limits already in force are not written again.

        A newcomer's limit is not ours yet: it counts from the moment we first write it, which is
        therefore an increase of our total even where its own limit falls (those go first).
        """
        decreases: list[Change] = []
        newcomers: list[Change] = []
        increases: list[Change] = []
        for uid in sorted(plan.allocations):
            state = self._pods.get(uid)
            if state is None:
                continue
            for name, after in self._split(state, plan.allocations[uid]).items():
                before = state.containers[name].current_millicores
                change = Change(uid, name, before, after)
                falls = before is None or after < before
                if not state.adopted:
                    (newcomers if falls else increases).append(change)
                elif falls:
                    decreases.append(change)
                elif after != before:
                    increases.append(change)
        return Changes(tuple(decreases), (*newcomers, *increases))

    def _split(self, state: PodState, grant: int) -> dict[str, int]:
        """The grant by container. A pod whose grant stays keeps its split unless it is far off."""
        containers = state.containers
        needs = {name: int(c.want.value) for name, c in containers.items()}
        caps = {name: c.original_limit_millicores for name, c in containers.items()}
        parts = split_grant(grant, needs, caps)
        now = {name: c.current_millicores for name, c in containers.items()}
        if state.current_millicores != grant or None in now.values():
            return parts
        kept = {name: limit for name, limit in now.items() if limit is not None}
        far = any(abs(parts[name] - kept[name]) > SPLIT_BAND * kept[name] for name in kept)
        return parts if far else kept

    def applied(self, now_ms: int, change: Change, limit_millicores: int) -> None:
        """Note one limit that was written and is in force."""
        state = self._pods.get(change.uid)
        container = state.containers.get(change.container) if state else None
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

    def adds(self, change: Change) -> int:
        """How much a change adds to `adopted_millicores`."""
        state = self._pods[change.uid]
        if state.touched:
            return change.after - (change.before or 0)
        others = [c for name, c in state.containers.items() if name != change.container]
        return change.after + sum(c.current_millicores or 0 for c in others)

    def reconfigure(self, config: CpuConfig) -> None:
        """Go on under another configuration (say, another policy). Frozen bounds stay frozen."""
        self.config = config

    def export(self) -> dict[str, Any]:
        """The state as plain data for JSON: bounds, misses, last applied, mode."""
        return {
            "version": STATE_VERSION,
            "mode": self._mode.value if self._mode else None,
            "reserved_millicores": self._reserved_millicores,
            "pods": [self._pods[uid].export() for uid in sorted(self._pods)],
        }

    @classmethod
    def restore(
        cls, config: CpuConfig, stored: Mapping[str, Any], *, now_ms: int | None = None
    ) -> Self:
        """A governor that goes on where `export` left off; raises `BadState` on anything else.

        Times after `now_ms` (the clock was set back meanwhile) count as now.
        """
        if stored.get("version") != STATE_VERSION:
            raise BadState(f"the state's version must be {STATE_VERSION}")
        governor = cls(config)
        try:
            governor._mode = None if stored["mode"] is None else Mode(stored["mode"])
            governor._reserved_millicores = int(stored["reserved_millicores"])
            states = [PodState.restore(pod) for pod in stored["pods"]]
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise BadState(f"the state cannot be read: {error}") from error
        if now_ms is not None:
            for state in states:
                state.not_after(now_ms)
        governor._pods = {state.uid: state for state in states}
        return governor


def _pod(state: PodState) -> Pod:
    """One pod's seat in the snapshot. The signal is good if any reading of the window was."""
    usage = state.window_usage
    return Pod(
        uid=state.uid,
        min_millicores=state.min_millicores,
        max_millicores=state.max_millicores,
        demand=state.demand.value,
        weight=state.weight,
        usage_millicores=sum(usage) // len(usage) if usage else None,
        current_millicores=state.current_millicores,
        headroom_misses=state.misses,
        signal_ok=bool(usage),
    )
