"""The values of a tick: a group's signals in (`Snapshot`), slots and admission out (`TickPlan`).

`None` is a signal that is missing. The order of the lists never matters.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from fairlead.core import units
from fairlead.core.reasons import TrafficReason
from fairlead.core.traffic.config import DEFAULT_CONFIG, Config, LatencyMs
from fairlead.core.traffic.state import AdmissionMode, Regime, State
from fairlead.core.units import FLOAT_MAX, OutOfRange

_MEASURES = ("queue", "p95_ms", "rtt_ms", "retrans_rate", "jitter_ms", "debt", "drain_per_s")
STALL_KINDS = ("cpu_some", "mem_some", "mem_full", "io_some", "io_full")


@dataclass(frozen=True, slots=True)
class Backend:
    """One place that can serve the group's requests, as it was seen in the last window."""

    id: str
    queue: float | None = None
    p95_ms: LatencyMs | None = None
    """Of successes: a backend that fails fast must not look fast."""
    error_rate: float | None = None
    requests: int | None = None
    isolated: bool = False
    age_ms: int | None = None
    """Since it joined or came back; None: long ago."""
    rtt_ms: LatencyMs | None = None
    retrans_rate: float | None = None
    jitter_ms: LatencyMs | None = None
    node: str | None = None
    debt: float | None = None
    """Requests that piled up; only the agent knows it, as `drain_per_s`."""
    drain_per_s: float | None = None

    def __post_init__(self) -> None:
        units.name(self.id, "id")
        for field in _MEASURES:
            value = getattr(self, field)
            if value is not None and not (type(value) is float and 0 <= value <= FLOAT_MAX):
                object.__setattr__(self, field, units.weight(value, field))
        if self.error_rate is not None:
            object.__setattr__(self, "error_rate", units.ratio(self.error_rate, "error_rate"))
        units.size_or_none(self.requests, "requests")
        units.size_or_none(self.age_ms, "age_ms")
        if type(self.isolated) is not bool:
            raise OutOfRange("isolated", f"must be true or false, got {self.isolated!r}")
        if self.node is not None:
            units.name(self.node, "node")


@dataclass(frozen=True, slots=True)
class Psi:
    """Shares of the last 10 s in which some or all tasks of a node stood still."""

    cpu_some: float | None = None
    mem_some: float | None = None
    mem_full: float | None = None
    io_some: float | None = None
    io_full: float | None = None

    def __post_init__(self) -> None:
        for field in STALL_KINDS:
            value = getattr(self, field)
            if value is not None:
                object.__setattr__(self, field, units.ratio(value, field))


@dataclass(frozen=True, slots=True)
class Resource:
    """Something of a node that can run out. `cpu` never does: full is fine until it stalls."""

    name: str
    limit: float | None
    used: float | None

    def __post_init__(self) -> None:
        units.name(self.name, "name")
        for field in ("limit", "used"):
            value = getattr(self, field)
            if value is not None:
                object.__setattr__(self, field, units.weight(value, field))


@dataclass(frozen=True, slots=True)
class Node:
    """A machine under the group's backends."""

    id: str
    psi: Psi | None = None
    resources: tuple[Resource, ...] = ()
    stall_score: float | None = None
    """None: taken from `psi`."""
    iowait_ratio: float | None = None

    def __post_init__(self) -> None:
        units.name(self.id, "id")
        object.__setattr__(self, "resources", tuple(self.resources))
        _refuse_repeats([resource.name for resource in self.resources], "resources", "name")
        if self.stall_score is not None:
            object.__setattr__(self, "stall_score", units.weight(self.stall_score, "stall_score"))
        if self.iowait_ratio is not None:
            iowait = units.ratio(self.iowait_ratio, "iowait_ratio")
            object.__setattr__(self, "iowait_ratio", iowait)


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """All that a tick looks at. `state` is the previous plan's, None at first."""

    now_ms: int
    group: str
    backends: tuple[Backend, ...]
    nodes: tuple[Node, ...] = ()
    retry_index: float | None = None
    """Retries per success."""
    config: Config = DEFAULT_CONFIG
    state: State | None = None

    def __post_init__(self) -> None:
        if type(self.now_ms) is not int or not 0 <= self.now_ms <= units.INTEGER_MAX:
            raise OutOfRange("now_ms", f"must be an integer of at least 0, got {self.now_ms!r}")
        units.name(self.group, "group")
        object.__setattr__(self, "backends", tuple(self.backends))
        object.__setattr__(self, "nodes", tuple(self.nodes))
        _refuse_repeats([backend.id for backend in self.backends], "backends", "id")
        _refuse_repeats([node.id for node in self.nodes], "nodes", "id")
        if self.retry_index is not None:
            object.__setattr__(self, "retry_index", units.weight(self.retry_index, "retry_index"))


class Pressure(NamedTuple):
    """P of a backend, floored, and the labelled terms that it is made of."""

    total: float
    queue: float
    latency: float
    error: float
    penalty: float
    layers: tuple[tuple[str, float], ...] = ()
    """Terms of the optional layers that are switched on."""


@dataclass(frozen=True, slots=True)
class Admission:
    """In normal there is no bucket, soft and hard have both numbers."""

    mode: AdmissionMode = AdmissionMode.NORMAL
    rate_per_s: float | None = None
    burst: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TickPlan:
    """What a tick decides and why; mappings are by backend id."""

    state: State
    slots: Mapping[str, int]
    weights: Mapping[str, float]
    """Desired shares, not scaled by warm-up."""
    target: Mapping[str, int]
    pressure: Mapping[str, Pressure]
    admission: Admission
    regime: Regime
    ttf_s: float | None
    stall: bool
    skew: float | None
    conductance: float
    applied: bool
    """Did slots change, or were they placed for the first time?"""
    scale_hint: bool
    bypass: tuple[str, ...]
    """Backends whose slots moved without waiting and without slew."""
    reasons: tuple[TrafficReason, ...]


def _refuse_repeats(names: Sequence[str], field: str, what: str) -> None:
    seen: dict[str, int] = {}
    for index, name in enumerate(names):
        first = seen.setdefault(name, index)
        if first != index:
            raise OutOfRange(
                f"{field}[{index}].{what}", f"repeats {field}[{first}].{what}, {name!r}"
            )
