"""Border type of a tick's state: opaque to callers, checked as strictly as anything else.

What is not the `state` of one of our outputs is bad input, with the path of what is wrong in it.
"""

from typing import Annotated, Any

import msgspec
from msgspec import Meta
from msgspec.structs import asdict

from fairlead.core.traffic.config import SLOTS_MAX
from fairlead.core.traffic.state import (
    HALVINGS_MAX,
    VERSION,
    AdmissionMode,
    AdmissionState,
    BackendMemory,
    Guard,
    NodeMemory,
    Regime,
    State,
    StepGate,
    Trail,
)
from fairlead.core.units import FLOAT_MAX, INTEGER_MAX, OutOfRange
from fairlead.schema.border import BadInput

Time = Annotated[int, Meta(ge=0, le=INTEGER_MAX, description="milliseconds")]
Ordinal = Annotated[int, Meta(ge=1, le=INTEGER_MAX)]
Ratio = Annotated[float, Meta(ge=0, le=1)]
Measure = Annotated[float, Meta(ge=0, le=FLOAT_MAX)]
_ADMISSION = "door"  # recorded format: the name in documents and recorded states
Slots = Annotated[int, Meta(ge=0, le=SLOTS_MAX)]


class BackendMemoryDocument(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Slots, weight and the last error rate that counted."""

    id: str
    slots: Slots
    weight: Ratio
    error_rate: Ratio | None
    error_ms: Time | None


class TrailDocument(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A resource's smoothed use. `history` is by clock: a tick adds one member and drops one."""

    name: str
    ewma: Measure
    history: dict[str, Any]


class NodeMemoryDocument(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Ordinals of stalled samples, and trails."""

    id: str
    stalled: list[Ordinal]
    trails: list[TrailDocument]


class GateDocument(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Hysteresis."""

    since_ms: Time | None
    stepping: bool


class GuardDocument(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The monotonic guard."""

    halvings: Annotated[int, Meta(ge=0, le=HALVINGS_MAX)]
    since_ms: Time


class AdmissionStateDocument(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Admission."""

    mode: AdmissionMode
    regime: Regime
    calm_since_ms: Time | None
    rate_base: Measure | None


class StateDocument(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The `state` of an output of `traffic.tick`."""

    version: Annotated[int, Meta(ge=VERSION, le=VERSION)]
    now_ms: Time
    clock_ms: Time
    samples: Ordinal
    s_total: Annotated[int, Meta(ge=1, le=SLOTS_MAX)]
    parked: bool
    backends: list[BackendMemoryDocument]
    nodes: list[NodeMemoryDocument]
    gate: GateDocument
    guard: GuardDocument
    admission: AdmissionStateDocument = msgspec.field(name=_ADMISSION)


def to_state(document: StateDocument) -> State:
    """Core's value, or `BadInput` with a path below `state`."""
    try:
        return State(
            now_ms=document.now_ms,
            clock_ms=document.clock_ms,
            samples=document.samples,
            s_total=document.s_total,
            parked=document.parked,
            backends=tuple(BackendMemory(**asdict(backend)) for backend in document.backends),
            nodes=tuple(_node(node, f"nodes[{i}]") for i, node in enumerate(document.nodes)),
            gate=StepGate(**asdict(document.gate)),
            guard=Guard(**asdict(document.guard)),
            admission=AdmissionState(**asdict(document.admission)),
        )
    except OutOfRange as error:
        field = error.field.replace("admission.", f"{_ADMISSION}.", 1)
        raise BadInput(f"state.{field}", error.message) from error


def _node(document: NodeMemoryDocument, path: str) -> NodeMemory:
    trails = tuple(
        Trail(trail.name, trail.ewma, _history(trail.history, f"{path}.trails[{i}].history"))
        for i, trail in enumerate(document.trails)
    )
    return NodeMemory(document.id, tuple(document.stalled), trails)


def _history(document: dict[str, Any], path: str) -> tuple[tuple[int, float], ...]:
    """By number, not by text: "9800" comes before "10000"."""
    for key, value in document.items():
        # Only the plain form: "007" would be the same time as "7".
        if not (key.isascii() and key.isdigit() and len(key) <= 16 and str(int(key)) == key):
            raise OutOfRange(f"{path}.{key}", "must be named by a time in milliseconds")
        if type(value) not in (int, float):
            raise OutOfRange(f"{path}.{key}", f"must be a number, got {value!r}")
    try:
        return tuple((at, float(document[str(at)])) for at in sorted(map(int, document)))
    except OverflowError:
        raise OutOfRange(path, "must hold finite numbers") from None


def plain(value: object) -> Any:
    """A value of core as JSON has it: objects and lists. Faster by way of the text than by hand."""
    return msgspec.json.decode(msgspec.json.encode(value))


def from_state(state: State) -> dict[str, Any]:
    """The document of a state."""
    document: dict[str, Any] = plain(state)
    for node in document["nodes"]:
        for trail in node["trails"]:
            trail["history"] = {str(at): value for at, value in trail["history"]}
    admission = document.pop("admission")
    return {**document, "version": VERSION, _ADMISSION: admission}
