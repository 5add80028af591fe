"""Border types of the traffic harness: a scenario as a strict document.

    name: slow
    duration_s: 60
    backends:
      - {name: a, latency_ms: 20, concurrency: 8}
      - {name: b, latency_ms: 20, concurrency: 8}
    load: {per_s: 200}
    events:
      - {at_s: 20, backend: b, latency_factor: 10}
    expect:
      - {what: share, backend: b, most: 0.05, from_s: 28}

Times are seconds of the play. What an event sets stays until another one sets it anew.
"""

import re
from enum import StrEnum
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from fairlead.core.reasons import TrafficReason
from fairlead.core.traffic import AdmissionMode, Config
from fairlead.schema.border import BadInput, check_shape
from fairlead.schema.traffic import AGENT_DEFAULTS, read_config
from fairlead.schema.yaml import parse_yaml

BACKENDS_MAX = 64
_SLUG = re.compile(r"[a-z0-9][a-z0-9-]{0,62}", re.ASCII)

Name = Annotated[str, Meta(min_length=1, max_length=63)]
Seconds = Annotated[float, Meta(ge=0, le=86_400)]
Share = Annotated[float, Meta(ge=0, le=1)]
Factor = Annotated[float, Meta(ge=0, le=1_000)]
Count = Annotated[int, Meta(ge=0, le=1_000_000)]


class Blind(StrEnum):
    """What can no longer be seen."""

    NOTHING = "nothing"
    LATENCY = "latency"
    ERRORS = "errors"
    QUEUE = "queue"


class SimBackendDocument(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A backend: so many at once, each for a lognormal time with this median."""

    name: Name
    latency_ms: Annotated[float, Meta(ge=0.1, le=60_000)] = 20.0
    sigma: Annotated[float, Meta(ge=0, le=2)] = 0.2
    concurrency: Annotated[int, Meta(ge=1, le=10_000)] = 8
    joins_s: Seconds = 0
    leaves_s: Seconds | None = None


class LoadDocument(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Clients: Poisson arrivals that do not wait for each other, and what they put up with."""

    per_s: Annotated[float, Meta(ge=0, le=5_000)]
    slo_ms: Annotated[float, Meta(ge=1, le=60_000)] = 250.0
    timeout_ms: Annotated[int, Meta(ge=10, le=60_000)] = 2_000
    retries: Annotated[int, Meta(ge=0, le=20)] = 0
    retry_after_ms: Annotated[int, Meta(ge=0, le=60_000)] = 100


class EventDocument(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Something that happens. What names a `backend` happens to it, else to all."""

    at_s: Seconds
    title: str = ""
    backend: Name | None = None
    latency_factor: Factor | None = None
    latency_ms: Annotated[float, Meta(ge=0.1, le=60_000)] | None = None
    error_rate: Share | None = None
    reachable: bool | None = None
    blind: Blind | None = None
    order: Annotated[str, Meta(description="isolate, drain or restore")] | None = None
    load_factor: Factor | None = None
    repeat: Share | None = None
    """Probability that clients repeat a request that succeeded: a bug of theirs, and a storm."""
    agent_dead_s: Seconds | None = None
    stall: Share | None = None
    memory_used: Share | None = None
    memory_per_s: Annotated[float, Meta(ge=-1, le=1)] | None = None


class What(StrEnum):
    """What an expectation is about."""

    SHARE = "share"
    """A backend's share of the slots, in every tick of the time."""
    MODE = "mode"
    """Admission is in this mode at least once in the time."""
    MODES_ONLY = "modes-only"
    """Admission is in none but this mode in the time."""
    REASON = "reason"
    """A reason is given at least once in the time."""
    GOODPUT = "goodput"
    """Answers within the SLO per arrival in the time."""
    THROUGHPUT = "throughput"
    """Answers within the SLO per second in the time, as a share of what the backends can do."""
    ERRORS = "errors"
    """Failures that clients see, per arrival in the time; explicit refusals are none."""
    REFUSED = "refused"
    """Explicit refusals per attempt in the time."""
    ISOLATED = "isolated"
    """A backend is isolated at least once in the time."""


class ExpectDocument(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A promise of the scenario, checked after the run."""

    what: What
    from_s: Seconds = 0
    to_s: Seconds | None = None
    backend: Name | None = None
    mode: AdmissionMode | None = None
    reason: TrafficReason | None = None
    least: Annotated[float, Meta(ge=0, le=1_000)] | None = None
    most: Annotated[float, Meta(ge=0, le=1_000)] | None = None
    virtual_only: bool = False
    """Too tight for a real machine that does other things too."""


class LimitsDocument(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Bounds that every run has to keep."""

    mode_changes_per_minute: Count = 2
    isolations_per_minute: Count = 2
    """Of each backend."""


class TrafficScenarioDocument(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A service, its clients, and what happens to them."""

    name: Name
    duration_s: Annotated[int, Meta(ge=1, le=3_600)]
    backends: Annotated[list[SimBackendDocument], Meta(min_length=1, max_length=BACKENDS_MAX)]
    load: LoadDocument
    about: str = ""
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] = 1
    tick_ms: Annotated[int, Meta(ge=50, le=10_000)] = 200
    config: dict[str, Any] = {}
    scrape: bool = False
    """Signals from the backends' own metrics also where a real dataplane has them."""
    events: list[EventDocument] = []
    expect: list[ExpectDocument] = []
    limits: LimitsDocument = LimitsDocument()


def read_traffic_scenario(data: bytes) -> TrafficScenarioDocument:
    """YAML (or JSON) bytes to a checked scenario; `BadInput` names the path of what is wrong."""
    scenario = check_shape(parse_yaml(data), TrafficScenarioDocument)
    if not _SLUG.fullmatch(scenario.name):
        raise BadInput("name", "must be lower-case letters, digits and dashes, at most 63")
    scenario_config(scenario)
    names = [backend.name for backend in scenario.backends]
    for index, backend in enumerate(scenario.backends):
        if backend.name in names[:index]:
            raise BadInput(f"backends[{index}].name", f"repeats {backend.name!r}")
        if not _SLUG.fullmatch(backend.name):
            raise BadInput(f"backends[{index}].name", "must be lower-case letters, digits, dashes")
        if backend.leaves_s is not None and backend.leaves_s <= backend.joins_s:
            raise BadInput(f"backends[{index}].leaves_s", "must be after joins_s")
    _check_events(scenario, names)
    _check_expectations(scenario, names)
    return scenario


def scenario_config(scenario: TrafficScenarioDocument) -> Config:
    return read_config({**AGENT_DEFAULTS, **scenario.config}, "config")


def traffic_scenario_schema() -> dict[str, Any]:
    return msgspec.json.schema(TrafficScenarioDocument)


def _check_events(scenario: TrafficScenarioDocument, names: list[str]) -> None:
    for index, event in enumerate(scenario.events):
        path = f"events[{index}]"
        if event.backend is not None and event.backend not in names:
            raise BadInput(f"{path}.backend", f"no backend is called {event.backend!r}")
        if event.at_s > scenario.duration_s:
            raise BadInput(f"{path}.at_s", "must be within duration_s")
        if event.order not in (None, "isolate", "drain", "restore"):
            raise BadInput(f"{path}.order", f"must be isolate, drain or restore, got {event.order}")


def _check_expectations(scenario: TrafficScenarioDocument, names: list[str]) -> None:
    needs = {
        What.SHARE: "backend",
        What.ISOLATED: "backend",
        What.MODE: "mode",
        What.MODES_ONLY: "mode",
        What.REASON: "reason",
    }
    for index, expect in enumerate(scenario.expect):
        path = f"expect[{index}]"
        needed = needs.get(expect.what)
        if needed is not None and getattr(expect, needed) is None:
            raise BadInput(f"{path}.{needed}", f"is required for {expect.what.value}")
        if needed is None and expect.least is None and expect.most is None:
            raise BadInput(path, "must have least or most")
        if expect.backend is not None and expect.backend not in names:
            raise BadInput(f"{path}.backend", f"no backend is called {expect.backend!r}")
        if expect.to_s is not None and expect.to_s <= expect.from_s:
            raise BadInput(f"{path}.to_s", "must be after from_s")
