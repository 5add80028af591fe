"""The states of many groups as columns: core's `State`, one row per group, backend, machine and
resource.

What does not fit the columns (a machine that is no longer reported but still remembered, say) stays
a core `State` in `odd`; such a group is ticked by core until it fits again.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from fairlead.core.traffic.config import Config
from fairlead.core.traffic.modes import Mode, Regime
from fairlead.core.traffic.state import BackendMemory, Door, Gate, Guard, NodeMemory, State, Trail
from fairlead.fleet.columns import UNKNOWN, Bools, Codes, Floats, Ints
from fairlead.fleet.roster import Roster

MODES, REGIMES = tuple(Mode), tuple(Regime)
MODE_CODE = {mode: code for code, mode in enumerate(MODES)}
REGIME_CODE = {regime: code for code, regime in enumerate(REGIMES)}


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class TrafficState:
    """All that the groups remember. `UNKNOWN` and NaN stand for core's `None`.

    `stalled[i, k]` is the sample before the last k ones of machine i. `history_ms` and `history`
    hold one column per call, the newest last; `UNKNOWN` marks calls without a sample.
    """

    roster: Roster
    machines: Roster
    resources: Roster
    now_ms: Ints
    clock_ms: Ints
    samples: Ints
    s_total: Ints
    parked: Bools
    gate_since_ms: Ints
    stepping: Bools
    halvings: Ints
    guard_since_ms: Ints
    mode: Codes
    regime: Codes
    calm_since_ms: Ints
    rate_base: Floats
    slots: Ints
    weight: Floats
    error_rate: Floats
    error_ms: Ints
    stalled: Bools
    ewma: Floats
    history_ms: Ints
    history: Floats
    odd: Mapping[int, State]

    @classmethod
    def blank(
        cls, roster: Roster, machines: Roster, resources: Roster, config: Config
    ) -> "TrafficState":
        """Before the first tick."""
        groups, backends, rows = roster.nodes, roster.pods, resources.pods
        return cls(
            roster=roster,
            machines=machines,
            resources=resources,
            now_ms=np.zeros(groups, dtype=np.int64),
            clock_ms=np.zeros(groups, dtype=np.int64),
            samples=np.zeros(groups, dtype=np.int64),
            s_total=np.full(groups, config.s_total),
            parked=np.zeros(groups, dtype=np.bool_),
            gate_since_ms=np.full(groups, UNKNOWN),
            stepping=np.zeros(groups, dtype=np.bool_),
            halvings=np.zeros(groups, dtype=np.int64),
            guard_since_ms=np.zeros(groups, dtype=np.int64),
            mode=np.full(groups, MODE_CODE[Mode.NORMAL], dtype=np.int8),
            regime=np.full(groups, REGIME_CODE[Regime.LAMINAR], dtype=np.int8),
            calm_since_ms=np.full(groups, UNKNOWN),
            rate_base=np.full(groups, np.nan),
            slots=np.zeros(backends, dtype=np.int64),
            weight=np.zeros(backends),
            error_rate=np.full(backends, np.nan),
            error_ms=np.full(backends, UNKNOWN),
            stalled=np.zeros((machines.pods, config.stall_m), dtype=np.bool_),
            ewma=np.full(rows, np.nan),
            history_ms=np.full((rows, 0), UNKNOWN),
            history=np.zeros((rows, 0)),
            odd={},
        )

    @property
    def groups(self) -> int:
        """How many groups there are."""
        return self.roster.nodes

    def group(self, index: int) -> State:
        """One group in core's values."""
        if index in self.odd:
            return self.odd[index]
        span = self.roster.span(index)
        rates, times = self.error_rate[span].tolist(), self.error_ms[span].tolist()
        columns = (self.slots[span].tolist(), self.weight[span].tolist(), rates, times)
        return State(
            now_ms=int(self.now_ms[index]),
            clock_ms=int(self.clock_ms[index]),
            samples=int(self.samples[index]),
            s_total=int(self.s_total[index]),
            parked=bool(self.parked[index]),
            backends=tuple(
                BackendMemory(
                    name,
                    slots,
                    weight,
                    None if at == UNKNOWN else rate,
                    None if at == UNKNOWN else at,
                )
                for name, slots, weight, rate, at in zip(
                    self.roster.uids[span], *columns, strict=True
                )
            ),
            nodes=self._nodes(index),
            gate=Gate(_time(self.gate_since_ms[index]), stepping=bool(self.stepping[index])),
            guard=Guard(int(self.halvings[index]), int(self.guard_since_ms[index])),
            door=self.door(index),
        )

    def door(self, index: int) -> Door:
        """The door of one group in core's values."""
        base = float(self.rate_base[index])
        return Door(
            MODES[self.mode[index]],
            REGIMES[self.regime[index]],
            _time(self.calm_since_ms[index]),
            None if np.isnan(base) else base,
        )

    def _nodes(self, index: int) -> tuple[NodeMemory, ...]:
        nodes, last = [], int(self.samples[index])
        span = self.machines.span(index)
        for machine in range(span.start, span.stop):
            places = np.flatnonzero(self.stalled[machine])[::-1].tolist()
            stalled = tuple(last - place for place in places)
            trails = tuple(self._trails(self.resources.span(machine)))
            if stalled or trails:
                nodes.append(NodeMemory(self.machines.uids[machine], stalled, trails))
        return tuple(nodes)

    def _trails(self, rows: slice) -> list[Trail]:
        trails = []
        for row in range(rows.start, rows.stop):
            at = self.history_ms[row]
            taken = at != UNKNOWN
            if taken.any():
                history = zip(at[taken].tolist(), self.history[row][taken].tolist(), strict=True)
                trails.append(
                    Trail(self.resources.uids[row], float(self.ewma[row]), tuple(history))
                )
        return trails

    def onto(
        self, roster: Roster, machines: Roster, resources: Roster, config: Config
    ) -> tuple["TrafficState", Bools]:
        """The same states in the rows of other rosters, and the groups whose members are the same.

        The rows of the other groups are blank; whoever needs their states asks `group` of this one.
        """
        rosters = (self.roster, self.machines, self.resources)
        if rosters == (roster, machines, resources) and self.stalled.shape[1] == config.stall_m:
            return self, np.ones(self.groups, dtype=np.bool_)
        rows = _matches(rosters, (roster, machines, resources))
        moved = TrafficState.blank(roster, machines, resources, config)
        for name in _GROUP_COLUMNS:
            getattr(moved, name)[:] = getattr(self, name)
        for name in _BACKEND_COLUMNS:
            getattr(moved, name)[rows.backends] = getattr(self, name)[rows.old_backends]
        width = min(config.stall_m, self.stalled.shape[1])
        moved.stalled[rows.machines, :width] = self.stalled[rows.old_machines, :width]
        history_ms = np.full((resources.pods, self.history_ms.shape[1]), UNKNOWN)
        history = np.zeros(history_ms.shape)
        moved.ewma[rows.resources] = self.ewma[rows.old_resources]
        history_ms[rows.resources] = self.history_ms[rows.old_resources]
        history[rows.resources] = self.history[rows.old_resources]
        moved = replace(moved, history_ms=history_ms, history=history, odd=self.odd)
        return moved, rows.same

    def fits(self, index: int, state: State) -> bool:
        """Can this state of core be written into the columns?"""
        span = self.machines.span(index)
        names = self.machines.uids[span]
        return all(node.id in names for node in state.nodes)

    def put(self, index: int, state: State) -> None:
        """Write a state of core into the columns; `fits` and enough columns of history first."""
        span = self.roster.span(index)
        self.now_ms[index], self.clock_ms[index] = state.now_ms, state.clock_ms
        self.samples[index], self.s_total[index] = state.samples, state.s_total
        self.parked[index] = state.parked
        self.gate_since_ms[index] = _column(state.gate.since_ms)
        self.stepping[index] = state.gate.stepping
        self.halvings[index], self.guard_since_ms[index] = (
            state.guard.halvings,
            state.guard.since_ms,
        )
        self.put_door(index, state.door)
        memories = state.backends
        self.slots[span] = [memory.slots for memory in memories]
        self.weight[span] = [memory.weight for memory in memories]
        rates = [memory.error_rate for memory in memories]
        self.error_rate[span] = [np.nan if rate is None else rate for rate in rates]
        self.error_ms[span] = [_column(memory.error_ms) for memory in memories]
        self._put_nodes(index, state)

    def put_door(self, index: int, door: Door) -> None:
        """Write a door of core into the columns."""
        self.mode[index], self.regime[index] = MODE_CODE[door.mode], REGIME_CODE[door.regime]
        self.calm_since_ms[index] = _column(door.calm_since_ms)
        self.rate_base[index] = np.nan if door.rate_base is None else door.rate_base

    def _put_nodes(self, index: int, state: State) -> None:
        span = self.machines.span(index)
        memories = {node.id: node for node in state.nodes}
        for machine in range(span.start, span.stop):
            name = self.machines.uids[machine]
            memory = memories.get(name) or NodeMemory(name)
            self.stalled[machine] = False
            self.stalled[machine, [state.samples - ordinal for ordinal in memory.stalled]] = True
            trails = {trail.name: trail for trail in memory.trails}
            rows = self.resources.span(machine)
            for row in range(rows.start, rows.stop):
                self._put_trail(row, trails.get(self.resources.uids[row]))

    def _put_trail(self, row: int, trail: Trail | None) -> None:
        self.history_ms[row] = UNKNOWN
        self.ewma[row] = np.nan
        if trail is not None:
            self.ewma[row] = trail.ewma
            taken = len(trail.history)
            self.history_ms[row, -taken:] = [at for at, _ in trail.history]
            self.history[row, -taken:] = [value for _, value in trail.history]


_GROUP_COLUMNS = (
    "now_ms",
    "clock_ms",
    "samples",
    "s_total",
    "parked",
    "gate_since_ms",
    "stepping",
    "halvings",
    "guard_since_ms",
    "mode",
    "regime",
    "calm_since_ms",
    "rate_base",
)
_BACKEND_COLUMNS = ("slots", "weight", "error_rate", "error_ms")
_Rosters = tuple[Roster, Roster, Roster]


class _Rows(NamedTuple):
    """Groups with the same members, and where their rows are now and were before."""

    same: Bools
    backends: list[int]
    old_backends: list[int]
    machines: list[int]
    old_machines: list[int]
    resources: list[int]
    old_resources: list[int]


def _matches(old: _Rosters, new: _Rosters) -> _Rows:
    rows = _Rows(np.zeros(new[0].nodes, dtype=np.bool_), [], [], [], [], [], [])
    for group in range(new[0].nodes):
        was, now = old[0].span(group), new[0].span(group)
        was_on, now_on = old[1].span(group), new[1].span(group)
        same = old[0].uids[was] == new[0].uids[now] and old[1].uids[was_on] == new[1].uids[now_on]
        # The rows of all machines of a group lie side by side, and so do their resources.
        pairs = zip(_each(was_on), _each(now_on), strict=False)
        spans = [(old[2].span(a), new[2].span(b)) for a, b in pairs]
        if same and all(old[2].uids[a] == new[2].uids[b] for a, b in spans):
            rows.same[group] = True
            rows.old_backends.extend(_each(was))
            rows.backends.extend(_each(now))
            rows.old_machines.extend(_each(was_on))
            rows.machines.extend(_each(now_on))
            for a, b in spans:
                rows.old_resources.extend(_each(a))
                rows.resources.extend(_each(b))
    return rows


def _each(span: slice) -> range:
    return range(span.start, span.stop)


def _time(value: np.int64) -> int | None:
    return None if value == UNKNOWN else int(value)


def _column(value: int | None) -> int:
    return UNKNOWN if value is None else value
