"""Border types of the simulator: a scenario as a strict document.

    name: tiny
    duration_s: 60
    node: {millicores: 4000}
    pods:
      - name: web
        request_millicores: 500
        limit_millicores: 2000
        want: [{kind: constant, millicores: 300}, {kind: spikes, millicores: 900, per_minute: 4}]

A pod's want is the sum of its traces; outside [`from_s`, `until_s`) a trace wants nothing. All
times are whole seconds of virtual time.
"""

import re
from enum import StrEnum
from typing import Annotated, Any, get_args

import msgspec
from msgspec import Meta

from fairlead.core.cpu import Actuation, Policy
from fairlead.schema.border import BadInput, check_shape
from fairlead.schema.cpu import GuardrailsDocument, HeadroomDocument, Ratio, SmoothingDocument
from fairlead.schema.yaml import parse_yaml

Seconds = Annotated[int, Meta(ge=0, le=7 * 86_400, description="virtual seconds")]
SecondsAtLeastOne = Annotated[int, Meta(ge=1, le=7 * 86_400, description="virtual seconds")]
Level = Annotated[int, Meta(ge=0, le=10_000_000, description="thousandths of a CPU core")]


class TraceBase(
    msgspec.Struct, forbid_unknown_fields=True, frozen=True, tag_field="kind", kw_only=True
):
    """What all traces share: when they are on."""

    from_s: Seconds = 0
    until_s: Seconds | None = None


class Constant(TraceBase, frozen=True, tag="constant"):
    """Always the same."""

    millicores: Level


class Steps(TraceBase, frozen=True, tag="steps"):
    """One level after the other, `every_s` each, from the beginning again at the end."""

    every_s: SecondsAtLeastOne
    millicores: Annotated[list[Level], Meta(min_length=1)]


class Sine(TraceBase, frozen=True, tag="sine"):
    """A wave between a low and a high level, rising through the middle at `phase_s`."""

    low_millicores: Level
    high_millicores: Level
    period_s: SecondsAtLeastOne
    phase_s: Seconds = 0


class Bursty(TraceBase, frozen=True, tag="bursty"):
    """On and off by the seed; the means are of geometric times."""

    high_millicores: Level
    on_s: SecondsAtLeastOne
    off_s: SecondsAtLeastOne
    low_millicores: Level = 0


class Ramp(TraceBase, frozen=True, tag="ramp"):
    """From one level to another over `ramp_s` seconds after `from_s`; then it stays."""

    start_millicores: Level
    end_millicores: Level
    ramp_s: SecondsAtLeastOne


class Point(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A level from a time on."""

    at_s: Seconds
    millicores: Level


class Points(TraceBase, frozen=True, tag="points"):
    """Explicit levels; each holds until the next, or leads to it in a line if `linear`."""

    points: Annotated[list[Point], Meta(min_length=1)]
    linear: bool = False


class Spikes(TraceBase, frozen=True, tag="spikes"):
    """Short spikes at seeded Poisson times; those that overlap add up."""

    millicores: Level
    per_minute: Annotated[float, Meta(ge=0, le=300)]
    length_ms: Annotated[int, Meta(ge=100, le=3_600_000)] = 1_000


Trace = Constant | Steps | Sine | Bursty | Ramp | Points | Spikes
TRACES = [shape.__name__.lower() for shape in get_args(Trace)]

_SLUG = re.compile(r"[a-z0-9][a-z0-9-]{0,62}", re.ASCII)

Name = Annotated[str, Meta(min_length=1, max_length=253)]
Milliseconds = Annotated[int, Meta(ge=0, le=86_400_000)]
Step = Annotated[int, Meta(ge=100, le=3_600_000, description="milliseconds")]


class FaultPoint(StrEnum):
    """The named places where faults are injected."""

    SENSOR_MISSING = "sensor.missing"
    """A pod's counters cannot be read."""
    SENSOR_RESET = "sensor.reset"
    """A pod's counters start again at zero (its container was restarted)."""
    SENSOR_GARBAGE = "sensor.garbage"
    """A pod's counters are nonsense."""
    ACTUATOR_SLOW = "actuator.slow"
    """A limit takes `delay_ms` to come into force."""
    ACTUATOR_FAIL = "actuator.fail"
    """A limit cannot be written; the old one stays."""
    ACTUATOR_WRONG = "actuator.wrong"
    """A limit is written `factor` times too large: a bug on purpose, for the checkers to find."""
    AGENT_CRASH = "agent.crash"
    """The agent dies for `duration_s` and comes back with its stored state."""


class FaultDocument(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """When a fault point fires: with a probability at each opportunity, at given times, or both."""

    point: FaultPoint
    probability: Ratio = 0.0
    at_s: list[Seconds] = []
    duration_s: Seconds = 10
    pods: list[Name] = []
    from_s: Seconds = 0
    until_s: Seconds | None = None
    delay_ms: Milliseconds = 500
    factor: Annotated[int, Meta(ge=2, le=1000)] = 2


class GovernorDocument(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The governor's configuration; the defaults are the product's."""

    actuate: Actuation = Actuation.LIMITS
    reserve: Ratio = 0.10
    sample_ms: Step = 1_000
    clear_ms: Step = 5_000
    hysteresis_band: Ratio = 0.05
    headroom: HeadroomDocument = HeadroomDocument()
    smoothing: SmoothingDocument = SmoothingDocument()
    guardrails: GuardrailsDocument = GuardrailsDocument()


class SimNodeDocument(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The machine: all its cores, before the governor's reserve."""

    millicores: Annotated[int, Meta(ge=1, le=10_000_000)]


class SimPodDocument(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """One pod: what its user asked for, and what it really wants over time.

    `threads` is how many can run at once (default: enough for the highest want). Work that was not
    served waits up to `queue_core_s` core-seconds; the default 0 means that it is lost.
    """

    name: Name
    request_millicores: Annotated[int, Meta(ge=0, le=10_000_000)]
    want: Annotated[list[Trace], Meta(min_length=1)]
    limit_millicores: Annotated[int, Meta(ge=1, le=10_000_000)] | None = None
    priority: Annotated[int, Meta(ge=-(10**9), le=10**9)] = 0
    opted_out: bool = False
    threads: Annotated[int, Meta(ge=1, le=4096)] | None = None
    queue_core_s: Seconds = 0
    arrive_s: Seconds = 0
    leave_s: Seconds | None = None


class ActDocument(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A chapter of the run: a title from a time on, and perhaps another policy."""

    at_s: Seconds
    title: Name
    policy: Policy | None = None


class ScenarioDocument(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A simulated node, its pods, and the faults."""

    name: Name
    duration_s: SecondsAtLeastOne
    node: SimNodeDocument
    pods: Annotated[list[SimPodDocument], Meta(max_length=2_000)]
    about: str = ""
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] = 1
    policies: Annotated[list[Policy], Meta(min_length=1)] = msgspec.field(
        default_factory=lambda: [Policy.DEMAND_CAPPED]
    )
    governor: GovernorDocument = GovernorDocument()
    acts: list[ActDocument] = []
    faults: list[FaultDocument] = []


def read_scenario(data: bytes) -> ScenarioDocument:
    """YAML (or JSON) bytes to a checked scenario; `BadInput` names the path of what is wrong."""
    value = parse_yaml(data)
    _check_kinds(value)
    scenario = check_shape(value, ScenarioDocument)
    _check_whole(scenario)
    return scenario


def _check_kinds(value: Any) -> None:
    """The kind of every trace first: without it no shape says what is wrong."""
    pods = value.get("pods") if isinstance(value, dict) else None
    for index, pod in enumerate(pods if isinstance(pods, list) else ()):
        parts = pod.get("want") if isinstance(pod, dict) else None
        for place, part in enumerate(parts if isinstance(parts, list) else ()):
            if isinstance(part, dict) and part.get("kind") not in TRACES:
                required = "" if "kind" in part else "is required; "
                text = f"{required}must be one of {', '.join(TRACES)}"
                raise BadInput(f"pods[{index}].want[{place}].kind", text)


def _check_trace(trace: Trace, path: str) -> None:
    if isinstance(trace, Sine | Bursty) and trace.low_millicores > trace.high_millicores:
        raise BadInput(f"{path}.low_millicores", "must not be above high_millicores")
    if isinstance(trace, Points):
        times = [point.at_s for point in trace.points]
        if times != sorted(set(times)):
            raise BadInput(f"{path}.points", "must be in the order of at_s, no time twice")
    if trace.until_s is not None and trace.until_s <= trace.from_s:
        raise BadInput(f"{path}.until_s", "must be after from_s")


def _check_whole(scenario: ScenarioDocument) -> None:
    if not _SLUG.fullmatch(scenario.name):
        raise BadInput("name", "must be lower-case letters, digits and dashes, at most 63")
    if scenario.governor.clear_ms < scenario.governor.sample_ms:
        raise BadInput("governor.clear_ms", "must be at least governor.sample_ms")
    if len(set(scenario.policies)) != len(scenario.policies):
        raise BadInput("policies", "must differ from each other")
    names: dict[str, int] = {}
    for index, pod in enumerate(scenario.pods):
        first = names.setdefault(pod.name, index)
        if first != index:
            raise BadInput(f"pods[{index}].name", f"repeats pods[{first}].name, {pod.name!r}")
        if pod.leave_s is not None and pod.leave_s <= pod.arrive_s:
            raise BadInput(f"pods[{index}].leave_s", "must be after arrive_s")
        for place, trace in enumerate(pod.want):
            _check_trace(trace, f"pods[{index}].want[{place}]")
    for index, fault in enumerate(scenario.faults):
        if not fault.at_s and not fault.probability:
            raise BadInput(f"faults[{index}]", "must have a probability or at_s")
        for place, name in enumerate(fault.pods):
            if name not in names:
                raise BadInput(f"faults[{index}].pods[{place}]", f"no pod is called {name!r}")


def scenario_schema() -> dict[str, Any]:
    return msgspec.json.schema(ScenarioDocument)
