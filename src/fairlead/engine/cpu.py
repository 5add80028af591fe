"""The CPU governor as a state machine: readings in, plans out. No I/O, no clock, no chance.

    governor = CpuGovernor(CpuConfig(node_millicores=8000))
    governor.observe(now_ms, sightings)           # each sample (1 s), all pods of the node
    snapshot, plan = governor.decide(now_ms)      # each clear (5 s); record both, then apply
    changes = governor.changes(plan)              # decreases first, then increases
    governor.applied(now_ms, {"web": 700})        # what was really written

The node agent and the simulator drive it; `export`/`restore` carry it across a restart.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Self

from fairlead.core.cpu import (
    Mode,
    Plan,
    Pod,
    PodHistory,
    Snapshot,
    clear_guarded,
    count_misses,
    read_signal,
    smooth,
)  # fmt: skip
from fairlead.engine.cpu_state import BadState, Change, Changes, CpuConfig, PodState, Sighting

STATE_VERSION = 1


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
            if state is None:
                state = PodState.at_first_sight(sighting, self.config, now_ms)
            state.current_millicores = sighting.limit_millicores
            self._read(state, sighting)
            seen[sighting.uid] = state
        self._pods, self._reserved_millicores = seen, reserved

    def _read(self, state: PodState, sighting: Sighting) -> None:
        """Fold one reading into the smoothed demand; a missing one leaves the last value."""
        reading = read_signal(state.counters, sighting.counters)
        # After a reset the new counters are the base of the next difference; after a failed
        # reading the old ones are, so that one lost sample costs one sample.
        state.counters = sighting.counters or state.counters
        if reading is None:
            return
        demand = reading.demand(state.min_millicores, state.max_millicores)
        smoothing = self.config.smoothing
        state.demand = smooth(state.demand, demand, smoothing)
        state.throttling = smooth(state.throttling, reading.throttled_ratio, smoothing)
        state.window_usage.append(reading.usage_millicores)

    def decide(self, now_ms: int) -> tuple[Snapshot, Plan]:
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
            uid: PodHistory(state.started_ms, state.changed_ms) for uid, state in self._pods.items()
        }
        bounded, plan = clear_guarded(snapshot, histories, self.config.guardrails, now_ms=now_ms)
        self._mode = plan.mode
        for state in self._pods.values():
            state.window_usage.clear()
        return bounded, plan

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
            state, after = self._pods.get(uid), plan.allocations[uid]
            if state is None:
                continue
            before = state.current_millicores
            change = Change(uid, before, after)
            falls = before is None or after < before
            if not state.adopted:
                (newcomers if falls else increases).append(change)
            elif falls:
                decreases.append(change)
            elif after != before:
                increases.append(change)
        return Changes(tuple(decreases), (*newcomers, *increases))

    def applied(self, now_ms: int, limits: Mapping[str, int]) -> None:
        """Note the limits that were written and are in force."""
        for uid, limit in limits.items():
            state = self._pods.get(uid)
            if state is None:
                continue
            if limit != state.current_millicores:
                state.changed_ms = now_ms
            state.current_millicores, state.adopted = limit, True

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
    def restore(cls, config: CpuConfig, stored: Mapping[str, Any]) -> Self:
        """A governor that goes on where `export` left off; raises `BadState` on anything else."""
        if stored.get("version") != STATE_VERSION:
            raise BadState(f"the state's version must be {STATE_VERSION}")
        governor = cls(config)
        try:
            governor._mode = None if stored["mode"] is None else Mode(stored["mode"])
            governor._reserved_millicores = int(stored["reserved_millicores"])
            states = [PodState.restore(pod) for pod in stored["pods"]]
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise BadState(f"the state cannot be read: {error}") from error
        governor._pods = {state.uid: state for state in states}
        return governor


def _pod(state: PodState) -> Pod:
    """One pod's seat in the snapshot. The signal is good if any reading of the window was."""
    usage = state.window_usage
    return Pod(
        uid=state.uid,
        min_millicores=state.min_millicores,
        max_millicores=state.max_millicores,
        demand=state.demand or 0.0,
        weight=state.weight,
        usage_millicores=sum(usage) // len(usage) if usage else None,
        current_millicores=state.current_millicores,
        headroom_misses=state.misses,
        signal_ok=bool(usage),
    )
