"""Border types of the simulator: a scenario as a strict document.

    name: tiny
    duration_s: 60
    node: {millicores: 4000}
    pods:
      - name: web
        request_millicores: 500
        limit_millicores: 2000
        want: [{kind: constant, millicores: 300}, {kind: spikes, millicores: 900, per_minute: 4}]

A pod's want is the sum of its traces. All times are whole seconds of virtual time.
"""

import re
from enum import StrEnum
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from fairlead.core.cpu import Policy
from fairlead.schema.border import BadInput, check_shape
from fairlead.schema.cpu import GuardrailsDocument, HeadroomDocument, Ratio, SmoothingDocument
from fairlead.schema.traces import TRACES, Seconds, Trace, check_trace
from fairlead.schema.yaml import parse_yaml

DURATION_S_MAX = 7 * 86_400
PODS_MAX = 2_000
_SLUG = re.compile(r"[a-z0-9][a-z0-9-]{0,62}", re.ASCII)

Name = Annotated[str, Meta(min_length=1, max_length=253)]
Milliseconds = Annotated[int, Meta(ge=0, le=86_400_000)]
Step = Annotated[int, Meta(ge=100, le=3_600_000, description="milliseconds")]


class FaultPoint(StrEnum):
    """The named places where the world may misbehave."""

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

    reserve: Ratio = 0.10
    sample_ms: Step = 1_000
    clear_ms: Step = 5_000
    hysteresis_band: Ratio = 0.05
    headroom: HeadroomDocument = HeadroomDocument()
    smoothing: SmoothingDocument = SmoothingDocument()
    guardrails: GuardrailsDocument = GuardrailsDocument()


class NodeDocument(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
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
    """A chapter of the story: a title from a time on, and perhaps another policy."""

    at_s: Seconds
    title: Name
    policy: Policy | None = None


class ScenarioDocument(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A virtual world: a node, its pods, and what goes wrong."""

    name: Name
    duration_s: Annotated[int, Meta(ge=1, le=DURATION_S_MAX)]
    node: NodeDocument
    pods: Annotated[list[SimPodDocument], Meta(max_length=PODS_MAX)]
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
    _check_traces(value)
    scenario = check_shape(value, ScenarioDocument)
    _check_whole(scenario)
    return scenario


def _check_traces(value: Any) -> None:
    """Traces first, each against the shape of its own kind, for messages that name the field."""
    pods = value.get("pods") if isinstance(value, dict) else None
    for index, pod in enumerate(pods if isinstance(pods, list) else ()):
        parts = pod.get("want") if isinstance(pod, dict) else None
        for place, part in enumerate(parts if isinstance(parts, list) else ()):
            check_trace(part, f"pods[{index}].want[{place}]")


def _check_whole(scenario: ScenarioDocument) -> None:
    """What no single field can show."""
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
    for index, fault in enumerate(scenario.faults):
        if not fault.at_s and not fault.probability:
            raise BadInput(f"faults[{index}]", "must have a probability or at_s")
        for place, name in enumerate(fault.pods):
            if name not in names:
                raise BadInput(f"faults[{index}].pods[{place}]", f"no pod is called {name!r}")


def scenario_schema() -> dict[str, Any]:
    """JSON Schema of a scenario, for editors."""
    return msgspec.json.schema(ScenarioDocument)


__all__ = [
    "TRACES",
    "ActDocument",
    "FaultDocument",
    "FaultPoint",
    "ScenarioDocument",
    "SimPodDocument",
    "read_scenario",
    "scenario_schema",
]
