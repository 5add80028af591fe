"""Border types of the traffic governor: the `traffic.tick` contract as documents.

A null signal is a missing signal, and so is one that is left out; what a sensor cannot know it
should not have to invent. Rubbish (NaN, a negative latency, a rate above 1) is bad input.
"""

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from msgspec.structs import asdict

from fairlead.core import traffic
from fairlead.core.reasons import TrafficReason
from fairlead.core.units import FLOAT_MAX, INTEGER_MAX, SIZE_MAX, OutOfRange
from fairlead.schema.border import BadInput
from fairlead.schema.traffic_config import (
    DEFAULT,
    AgentConfigDocument,
    ConfigDocument,
    from_config,
    to_config,
)
from fairlead.schema.traffic_state import Slots, StateDocument, from_state, plain, to_state

Measure = Annotated[float, Meta(ge=0, le=FLOAT_MAX)]
Ratio = Annotated[float, Meta(ge=0, le=1)]
Count = Annotated[int, Meta(ge=0, le=SIZE_MAX)]
Time = Annotated[int, Meta(ge=0, le=INTEGER_MAX, description="milliseconds")]
Age = Annotated[int, Meta(ge=0, le=SIZE_MAX, description="milliseconds")]


class BackendDocument(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """One backend of the group, as seen in the last window."""

    id: str
    queue: Measure | None = None
    p95_ms: Annotated[Measure | None, Meta(description="of successes")] = None
    error_rate: Ratio | None = None
    requests: Count | None = None
    isolated: bool = False
    age_ms: Age | None = None
    rtt_ms: Measure | None = None
    retrans_rate: Measure | None = None
    jitter_ms: Measure | None = None
    node: str | None = None


class PsiDocument(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Shares of the last 10 s in which some or all tasks stood still."""

    cpu_some: Ratio | None = None
    mem_some: Ratio | None = None
    mem_full: Ratio | None = None
    io_some: Ratio | None = None
    io_full: Ratio | None = None


class ResourceDocument(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Something that can run out; `cpu` is accepted and ignored."""

    name: str
    limit: Measure | None
    used: Measure | None


class NodeDocument(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A machine under the group."""

    id: str
    psi: PsiDocument | None = None
    resources: list[ResourceDocument] = []
    stall_score: Measure | None = None
    iowait_ratio: Ratio | None = None


class TickDocument(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Input of `traffic.tick`: a group as it was seen, and the state of its last tick."""

    now_ms: Time
    group: str
    backends: Sequence[BackendDocument]
    nodes: list[NodeDocument] = []
    retry_index: Measure | None = None
    config: ConfigDocument = DEFAULT
    state: StateDocument | None = None


class AgentBackendDocument(BackendDocument, frozen=True):
    """With what only the agent can see: what piled up, and how fast it is worked off."""

    debt: Measure | None = None
    drain_per_s: Measure | None = None


class AgentTickDocument(TickDocument, frozen=True):
    """The second version of the input, which the agent records where debt is weighed."""

    backends: Sequence[AgentBackendDocument]
    config: AgentConfigDocument = AgentConfigDocument()


class AdmissionDocument(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Admission; both numbers are null in normal."""

    mode: traffic.AdmissionMode
    rate_per_s: float | None
    burst: float | None


class TickResult(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Output of `traffic.tick`; objects are by backend id."""

    state: StateDocument
    slots: dict[str, int]
    weights: dict[str, float]
    target: dict[str, int]
    pressure: dict[str, dict[str, float]]
    admission: AdmissionDocument
    regime: traffic.Regime
    ttf_s: float | None
    stall: bool
    skew: float | None
    conductance: float
    applied: bool
    scale_hint: bool
    bypass: list[str]
    reasons: list[TrafficReason]


class ConfigureDocument(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Input of `traffic.configure`: a group whose backends were configured."""

    group: str
    backends: list[str]
    slots: Annotated[dict[str, Slots], Meta(description="in force, by backend id")] = {}
    isolated: list[str] = []


class ConfigureResult(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Output of `traffic.configure`: what the group goes by until the first tick."""

    slots: dict[str, int]
    fallback: list[str]


def decide_configure(document: ConfigureDocument) -> dict[str, Any]:
    """Who gets what before the first tick, and which backends serve without an agent."""
    first: dict[str, int] = {}
    for index, name in enumerate(document.backends):
        if first.setdefault(name, index) != index:
            raise BadInput(f"backends[{index}]", f"repeats backends[{first[name]}], {name!r}")
    return from_split(traffic.split(document.backends, document.slots, document.isolated))


def from_split(split: traffic.Split) -> dict[str, Any]:
    """The document of a split."""
    return {"slots": dict(split.slots), "fallback": list(split.members)}


def decide_tick(document: TickDocument) -> dict[str, Any]:
    """The whole contract: document in, result document out."""
    return from_plan(traffic.tick(to_snapshot(document)))


def to_snapshot(document: TickDocument) -> traffic.Snapshot:
    """A checked document as core's frozen value; what only core can see is refused by path too."""
    config = to_config(document.config)
    state = None if document.state is None else to_state(document.state)
    nodes = tuple(_node(node, f"nodes[{index}]") for index, node in enumerate(document.nodes))
    try:
        return traffic.Snapshot(
            now_ms=document.now_ms,
            group=document.group,
            backends=tuple(traffic.Backend(**asdict(backend)) for backend in document.backends),
            nodes=nodes,
            retry_index=document.retry_index,
            config=config,
            state=state,
        )
    except OutOfRange as error:
        raise BadInput(error.field, error.message) from error


def _node(document: NodeDocument, path: str) -> traffic.Node:
    psi = document.psi
    try:
        return traffic.Node(
            document.id,
            None if psi is None else traffic.Psi(**asdict(psi)),
            tuple(traffic.Resource(**asdict(resource)) for resource in document.resources),
            document.stall_score,
            document.iowait_ratio,
        )
    except OutOfRange as error:
        raise BadInput(f"{path}.{error.field}", error.message) from error


def from_snapshot(snapshot: traffic.Snapshot) -> dict[str, Any]:
    """The document of a snapshot, signals spelled out: what a recorder stores."""
    shape = AgentBackendDocument if version_of(snapshot) > 1 else BackendDocument
    return {
        "now_ms": snapshot.now_ms,
        "group": snapshot.group,
        "backends": [
            {name: getattr(backend, name) for name in shape.__struct_fields__}
            for backend in snapshot.backends
        ],
        "nodes": plain(snapshot.nodes),
        "retry_index": snapshot.retry_index,
        "config": from_config(snapshot.config),
        "state": None if snapshot.state is None else from_state(snapshot.state),
    }


def version_of(snapshot: traffic.Snapshot) -> int:
    """Of the input's shape."""
    return 2 if snapshot.config.w_debt else 1


def from_plan(plan: traffic.TickPlan) -> dict[str, Any]:
    """The document of a plan."""
    return {
        "state": from_state(plan.state),
        "slots": plan.slots,
        "weights": plan.weights,
        "target": plan.target,
        "pressure": {name: from_pressure(terms) for name, terms in plan.pressure.items()},
        "admission": plain(plan.admission),
        "regime": plan.regime.value,
        "ttf_s": plan.ttf_s,
        "stall": plan.stall,
        "skew": plan.skew,
        "conductance": plan.conductance,
        "applied": plan.applied,
        "scale_hint": plan.scale_hint,
        "bypass": list(plan.bypass),
        "reasons": [reason.value for reason in plan.reasons],
    }


def from_pressure(pressure: traffic.Pressure) -> dict[str, float]:
    """The labelled terms of a pressure."""
    terms: dict[str, Any] = pressure._asdict()
    layers = terms.pop("layers")
    return {**terms, **dict(layers)}
