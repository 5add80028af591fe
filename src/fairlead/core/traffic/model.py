"""The values of a tick: a group's signals in (`Snapshot`), slots and admission out (`TickPlan`).

`None` is a signal that is missing. The order of the lists never matters.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from fairlead.core import units
from fairlead.core.reasons import TrafficReason
from fairlead.core.traffic.config import (
    DEFAULT_CONFIG,
    AgeMs,
    Config,
    LatencyMs,
    Measure,
    Requests,
    Share,
    TimeMs,
)
from fairlead.core.traffic.state import AdmissionMode, Regime, State
from fairlead.core.units import OutOfRange

STALL_KINDS = ("cpu_some", "mem_some", "mem_full", "io_some", "io_full")


@dataclass(frozen=True, slots=True)
class Backend:
    """One backend of the group, as seen in the last window."""

    id: str
    queue: Measure | None = None
    p95_ms: LatencyMs | None = None
    """Of successes: a backend that fails fast must not look fast."""
    error_rate: Share | None = None
    requests: Requests | None = None
    isolated: bool = False
    age_ms: AgeMs | None = None
    """Since it joined or came back; None: long ago."""
    rtt_ms: LatencyMs | None = None
    retrans_rate: Measure | None = None
    jitter_ms: LatencyMs | None = None
    node: str | None = None
    debt: Measure | None = None
    """Requests that piled up; only the agent knows it, as `drain_per_s`."""
    drain_per_s: Measure | None = None

    def __post_init__(self) -> None:
        units.check(self)


@dataclass(frozen=True, slots=True)
class Psi:
    """Shares of the last 10 s in which some or all tasks stood still."""

    cpu_some: Share | None = None
    mem_some: Share | None = None
    mem_full: Share | None = None
    io_some: Share | None = None
    io_full: Share | None = None

    def __post_init__(self) -> None:
        units.check(self)


@dataclass(frozen=True, slots=True)
class Resource:
    """Something that can run out; `cpu` is accepted and ignored."""

    name: str
    limit: Measure | None
    used: Measure | None

    def __post_init__(self) -> None:
        units.check(self)


@dataclass(frozen=True, slots=True)
class Node:
    """A machine under the group."""

    id: str
    psi: Psi | None = None
    resources: tuple[Resource, ...] = ()
    stall_score: Measure | None = None
    """None: taken from `psi`."""
    iowait_ratio: Share | None = None

    def __post_init__(self) -> None:
        units.check(self)
        _refuse_repeats([resource.name for resource in self.resources], "resources", "name")


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """All that a tick looks at. `state` is the previous plan's, None at first."""

    now_ms: TimeMs
    group: str
    backends: tuple[Backend, ...]
    nodes: tuple[Node, ...] = ()
    retry_index: Measure | None = None
    """Retries per success."""
    config: Config = DEFAULT_CONFIG
    state: State | None = None
    confirm: bool = False
    """Group admission asks for a second witness: what one backend reports costs its own share. Only
    the agent sets it."""

    def __post_init__(self) -> None:
        units.check(self)
        _refuse_repeats([backend.id for backend in self.backends], "backends", "id")
        _refuse_repeats([node.id for node in self.nodes], "nodes", "id")


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


@dataclass(frozen=True, slots=True)
class Bucket:
    """Tokens at a moment. A new bucket is full."""

    tokens: float
    at_us: int


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
