"""Many groups as columns: one row per group, per backend, per machine and per resource.

The columns carry core's names and are checked as core checks its values. NaN (and `UNKNOWN` where
a column holds integers) is a signal that is missing. One `Config` governs all groups of a call.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter

import numpy as np

from fairlead.core.traffic import Backend, Config, Node, Psi, Resource, Snapshot
from fairlead.core.traffic.ttf import ENDLESS
from fairlead.core.units import FLOAT_MAX, INTEGER_MAX, SIZE_MAX, OutOfRange
from fairlead.fleet.columns import UNKNOWN, Bools, Floats, Ints, truth, whole
from fairlead.fleet.roster import Roster
from fairlead.fleet.traffic_state import TrafficState

STALLS = ("cpu_some", "mem_some", "mem_full", "io_some", "io_full")
_MEASURES = ("queue", "p95_ms")


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class TrafficSnapshot:
    """All that a tick of many groups looks at.

    `roster` names the backends of each group, `machines` the nodes of each group, `resources` what
    can run out on each of those nodes (`cpu` is left out: it never does).
    """

    config: Config
    roster: Roster
    machines: Roster
    resources: Roster
    now_ms: Ints
    retry_index: Floats
    queue: Floats
    p95_ms: Floats
    error_rate: Floats
    requests: Ints
    isolated: Bools
    age_ms: Ints
    psi: Floats
    limit: Floats
    used: Floats
    state: TrafficState | None = None

    def __post_init__(self) -> None:
        if self.config.layered:
            raise OutOfRange("config", "the optional layers have no columns; tick them one by one")
        groups, backends = (self.roster.nodes,), (self.roster.pods,)
        if self.machines.nodes != groups[0] or self.resources.nodes != self.machines.pods:
            raise OutOfRange("machines", "must have one entry per group, resources one per machine")
        if self.state is not None and self.state.groups != groups[0]:
            raise OutOfRange("state", f"must be of {groups[0]} groups, got {self.state.groups}")
        rows = (self.resources.pods,)
        self._whole("now_ms", groups, 0, INTEGER_MAX)
        self._whole("requests", backends, UNKNOWN, SIZE_MAX)
        self._whole("age_ms", backends, UNKNOWN, SIZE_MAX)
        self._measure("retry_index", groups, FLOAT_MAX)
        for field in _MEASURES:
            self._measure(field, backends, FLOAT_MAX)
        self._measure("error_rate", backends, 1.0)
        self._measure("psi", (self.machines.pods, len(STALLS)), 1.0)
        self._measure("limit", rows, FLOAT_MAX)
        self._measure("used", rows, FLOAT_MAX)
        isolated = truth(self.isolated, "isolated", shape=backends)
        object.__setattr__(self, "isolated", isolated)

    def _whole(self, field: str, shape: tuple[int, ...], low: int, high: int) -> None:
        checked = whole(getattr(self, field), field, shape=shape, low=low, high=high)
        object.__setattr__(self, field, checked)

    def _measure(self, field: str, shape: tuple[int, ...], high: float) -> None:
        """Doubles in [0, high], or NaN."""
        column = np.ascontiguousarray(getattr(self, field), dtype=np.float64)
        if column.shape != shape:
            raise OutOfRange(field, f"must have the shape {shape}, got {column.shape}")
        outside = (column < 0) | (column > high)
        if outside.any():
            place = "".join(f"[{int(i)}]" for i in np.argwhere(outside)[0])
            raise OutOfRange(f"{field}{place}", f"must be between 0 and {high:g}, or NaN")
        column = column.view()
        column.flags.writeable = False
        object.__setattr__(self, field, column)

    @classmethod
    def from_snapshots(
        cls, snapshots: Sequence[Snapshot], config: Config, state: TrafficState | None = None
    ) -> "TrafficSnapshot":
        """The columns of core's snapshots; group i is `snapshots[i]`. Their own config and state
        are not looked at: a fleet has one config, and its state comes from its last plan.
        """
        members = [sorted(each.backends, key=attrgetter("id")) for each in snapshots]
        machines = [sorted(each.nodes, key=attrgetter("id")) for each in snapshots]
        backends, nodes = list(chain(*members)), list(chain(*machines))
        resources = [
            sorted((r for r in node.resources if r.name != ENDLESS), key=attrgetter("name"))
            for node in nodes
        ]
        rows = list(chain(*resources))
        psi = [[getattr(node.psi or Psi(), name) for name in STALLS] for node in nodes]
        return cls(
            config=config,
            roster=Roster.of([b.id for b in each] for each in members),
            machines=Roster.of([n.id for n in each] for each in machines),
            resources=Roster.of([r.name for r in each] for each in resources),
            now_ms=np.array([each.now_ms for each in snapshots], dtype=np.int64),
            retry_index=_floats([each.retry_index for each in snapshots]),
            queue=_floats([b.queue for b in backends]),
            p95_ms=_floats([b.p95_ms for b in backends]),
            error_rate=_floats([b.error_rate for b in backends]),
            requests=_ints([b.requests for b in backends]),
            isolated=np.array([b.isolated for b in backends], dtype=np.bool_),
            age_ms=_ints([b.age_ms for b in backends]),
            psi=np.array(psi, dtype=np.float64).reshape(len(nodes), len(STALLS)),
            limit=_floats([r.limit for r in rows]),
            used=_floats([r.used for r in rows]),
            state=state,
        )

    def group(self, index: int) -> Snapshot:
        """One group in core's values, its state included."""
        span = self.roster.span(index)
        columns = (self.queue, self.p95_ms, self.error_rate, self.requests)
        known = [_known(column[span]) for column in columns]
        ages = _known(self.age_ms[span])
        rows = zip(self.roster.uids[span], *known, self.isolated[span].tolist(), ages, strict=True)
        return Snapshot(
            now_ms=int(self.now_ms[index]),
            group=str(index),
            backends=tuple(Backend(*row) for row in rows),
            nodes=self._nodes(self.machines.span(index)),
            retry_index=_known(self.retry_index[index : index + 1])[0],
            config=self.config,
            state=None if self.state is None else self.state.group(index),
        )

    def _nodes(self, span: slice) -> tuple[Node, ...]:
        nodes = []
        for machine in range(span.start, span.stop):
            rows = self.resources.span(machine)
            names, limits, used = (
                self.resources.uids[rows],
                _known(self.limit[rows]),
                _known(self.used[rows]),
            )
            resources = tuple(map(Resource, names, limits, used))
            psi = Psi(*_known(self.psi[machine]))
            nodes.append(Node(self.machines.uids[machine], psi, resources))
        return tuple(nodes)


def _known(column: Floats | Ints) -> list[float | None] | list[int | None]:
    """A column as core has it: None where it is missing."""
    if column.dtype.kind == "i":
        return [None if value == UNKNOWN else value for value in column.tolist()]
    return [None if value != value else value for value in column.tolist()]  # noqa: PLR0124


def _floats(values: Sequence[float | None]) -> Floats:
    return np.array([np.nan if value is None else value for value in values], dtype=np.float64)


def _ints(values: Sequence[int | None]) -> Ints:
    return np.array([UNKNOWN if value is None else value for value in values], dtype=np.int64)
