"""Border types of the traffic governor: the `traffic.tick` contract as documents.

A null signal is a missing signal, and so is one that is left out; what a sensor cannot know it
should not have to invent. Rubbish (NaN, a negative latency, a rate above 1) is bad input. A state
is opaque to callers and checked as strictly as anything else. Every parameter of the equations can
be overridden by its name.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from fairlead.core import traffic
from fairlead.core.reasons import TrafficReason
from fairlead.core.traffic import state as states
from fairlead.core.traffic.config import DEFAULT_CONFIG, NAMES, NUMBER_MAX, SLOTS_MAX, Config, Theta
from fairlead.schema.border import BadInput, check_shape
from fairlead.schema.derive import Fields, Style

AGENT_ONLY: Fields = {
    Config: {"w_debt", "t_ref_s", "debt_max"},
    traffic.Backend: {"debt", "drain_per_s"},
    traffic.Snapshot: {"confirm"},
}
"""Backlog debt: only the agent sees it, and `traffic.tick` as a contract does not have it."""
_STRICT = frozenset(
    {
        states.State,
        states.BackendMemory,
        states.NodeMemory,
        states.StepGate,
        states.Guard,
        states.AdmissionState,
    }
)
_DESCRIBED: Mapping[type, Mapping[str, str]] = {traffic.Backend: {"p95_ms": "of successes"}}
TICK = Style(strict=_STRICT, left_out=AGENT_ONLY, described=_DESCRIBED)
AGENT = Style(strict=_STRICT, left_out={traffic.Snapshot: {"confirm"}}, described=_DESCRIBED)
"""The second version of the input, which the agent records where debt is weighed."""
CONFIRMING = Style(strict=_STRICT, described=_DESCRIBED)
"""The third version: everything that the agent's tick looks at."""


_Slots = Annotated[int, Meta(ge=0, le=SLOTS_MAX)]


class ThetaDocument(msgspec.Struct):
    """Stall thresholds by PSI field, merged over the defaults; `io_some` never stalls anything."""

    io_some: Annotated[float, Meta(ge=0, le=NUMBER_MAX)] = 1.0


class StateDocument(msgspec.Struct):
    """The `state` of an output of `traffic.tick`."""

    version: Annotated[int, Meta(ge=states.VERSION, le=states.VERSION)]


for _style in (TICK, AGENT, CONFIRMING):
    _style.derived(Theta)(ThetaDocument)
    _style.document(states.StepGate, "GateDocument")
    _style.derived(states.State)(StateDocument)


@TICK.derived(Config)
class ConfigDocument(msgspec.Struct):
    """Parameters by name; what is left out keeps its default."""


@TICK.derived(traffic.Snapshot)
class TickDocument(msgspec.Struct):
    """Input of `traffic.tick`: a group as it was seen, and the state of its last tick."""


AgentTickDocument = AGENT.document(traffic.Snapshot)
ConfirmingTickDocument = CONFIRMING.document(traffic.Snapshot, "ConfirmingTickDocument")
AgentConfigDocument = AGENT.document(Config)
AGENT_DEFAULTS: Mapping[str, Any] = {"warmup_ms": 15_000, "error_requests_min": 1_000}
"""Where the agent departs from the tick's own defaults, unless the operator sets them. Half the
warm-up, because a backend that comes back has been probed first, and is to be back within 20 s. A
raw rate only where it means something: one error of 200 requests is chance, and weighs 1.5."""


class AdmissionDocument(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Admission; both numbers are null in normal."""

    mode: traffic.AdmissionMode
    rate_per_s: float | None
    burst: float | None


class TickResult(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Output of `traffic.tick`; objects are by backend id."""

    state: TICK.document(states.State)  # type: ignore[valid-type]  # derived
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
    slots: Annotated[dict[str, _Slots], Meta(description="in force, by backend id")] = {}
    isolated: list[str] = []


class ConfigureResult(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Output of `traffic.configure`: what the group goes by until the first tick."""

    slots: dict[str, int]
    fallback: list[str]


def decide_configure(document: ConfigureDocument) -> dict[str, Any]:
    """Split a group's slots over backends that were just configured."""
    first: dict[str, int] = {}
    for index, name in enumerate(document.backends):
        if first.setdefault(name, index) != index:
            raise BadInput(f"backends[{index}]", f"repeats backends[{first[name]}], {name!r}")
    return from_split(traffic.split(document.backends, document.slots, document.isolated))


def from_split(split: traffic.Split) -> dict[str, Any]:
    """The document of a split."""
    return {"slots": dict(split.slots), "fallback": list(split.members)}


def decide_tick(document: Any) -> dict[str, Any]:
    """Move a group's slots between its backends and set admission, with reasons."""
    return from_plan(traffic.tick(to_snapshot(document)))


def to_snapshot(document: Any) -> traffic.Snapshot:
    """A checked document, of either version, as core's frozen value."""
    style = TICK if isinstance(document, TickDocument) else AGENT
    style = CONFIRMING if isinstance(document, ConfirmingTickDocument) else style
    return style.to_core(traffic.Snapshot, document)


def from_snapshot(snapshot: traffic.Snapshot) -> dict[str, Any]:
    """The document of a snapshot, signals spelled out: what a recorder stores."""
    style = AGENT if version_of(snapshot) > 1 else TICK
    return {
        "now_ms": snapshot.now_ms,
        "group": snapshot.group,
        "backends": [style.from_core(backend) for backend in snapshot.backends],
        "nodes": plain(snapshot.nodes),
        "retry_index": snapshot.retry_index,
        "config": from_config(snapshot.config),
        "state": None if snapshot.state is None else from_state(snapshot.state),
    }


def from_whole_snapshot(snapshot: traffic.Snapshot) -> dict[str, Any]:
    """The document of version 3, which runs again as the agent's own tick ran."""
    backends = [CONFIRMING.from_core(backend) for backend in snapshot.backends]
    return {**from_snapshot(snapshot), "backends": backends, "confirm": snapshot.confirm}


def version_of(snapshot: traffic.Snapshot) -> int:
    """Of the input's shape."""
    return 2 if snapshot.config.w_debt else 1


def from_plan(plan: traffic.TickPlan) -> dict[str, Any]:
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
    terms: dict[str, Any] = pressure._asdict()
    layers = terms.pop("layers")
    return {**terms, **dict(layers)}


def from_state(state: states.State) -> dict[str, Any]:
    return {**TICK.from_core(state), "version": states.VERSION}


def plain(value: object) -> Any:
    """A value of core as JSON has it: objects and lists. Faster by way of the text than by hand."""
    return msgspec.json.decode(msgspec.json.encode(value))


def read_config(config: Mapping[str, Any], path: str) -> Config:
    """The parameters that a configuration file sets, over the defaults; `path` is theirs in it."""
    try:
        return AGENT.to_core(Config, check_shape(dict(config), AgentConfigDocument))
    except BadInput as error:
        raise BadInput(f"{path}.{error.path}", error.message) from error


def from_config(config: Config) -> dict[str, Any]:
    """The document of the parameters: what differs from the defaults, by name."""
    document = _differing(config, DEFAULT_CONFIG, NAMES)
    if "theta" in document:
        names = [threshold.name for threshold in fields(Theta)]
        document["theta"] = _differing(config.theta, DEFAULT_CONFIG.theta, names)
    return document


def _differing(value: Any, default: Any, names: Sequence[str]) -> dict[str, Any]:
    return {
        name: getattr(value, name)
        for name in names
        if getattr(value, name) != getattr(default, name)
    }
