"""Border types of the agents' reports: what a node or traffic agent tells the control plane.

A report holds moments: the state after one clearing or tick, with the decision behind it as a
document that runs again on its own (`cpu.allocate`, `traffic.tick`). Sizes are bounded here, so
that an agent that lies can fill nothing but its own place.
"""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from fairlead.core.units import INTEGER_MAX, SIZE_MAX

VERSION = 1
NOT_LEADER = "NotLeader"
"""The code of a controller's refusal: another replica takes reports."""
PODS_MAX, BACKENDS_MAX, MOMENTS_MAX, SUBJECTS_MAX = 1_000, 1_000, 600, 256
_NUMBER_MAX = 1e15

Name = Annotated[str, Meta(min_length=1, max_length=253)]
Subject = Annotated[str, Meta(min_length=1, max_length=253, pattern=r"^(?!\.{1,2}$)[^/]+$")]
"""The name of a node or group: one part of an address."""
Text = Annotated[str, Meta(max_length=1_000)]
Word = Annotated[str, Meta(max_length=100)]
Words = Annotated[list[Word], Meta(max_length=50)]
Millis = Annotated[int, Meta(ge=0, le=INTEGER_MAX)]
Number = Annotated[int, Meta(ge=0, le=INTEGER_MAX)]
Millicores = Annotated[int, Meta(ge=0, le=SIZE_MAX)]
Total = Annotated[int, Meta(ge=0, le=INTEGER_MAX)]
Measure = Annotated[float, Meta(ge=-_NUMBER_MAX, le=_NUMBER_MAX)]
Ratio = Annotated[float, Meta(ge=0, le=1)]
BackendOrder = Literal["isolate", "drain"]
Every = Annotated[int, Meta(ge=10, le=3_600_000, description="milliseconds between two moments")]


class ReportSettings(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Where an agent reports to; in its configuration as `report`."""

    to: Annotated[str, Meta(min_length=1, max_length=1_000)]
    token_file: Annotated[str, Meta(min_length=1)] | None = None
    ca_file: Annotated[str, Meta(min_length=1)] | None = None
    """Certificates to trust, where `to` is https; default: the machine's."""
    agent: Name | None = None


class Report(msgspec.Struct, forbid_unknown_fields=True):
    """Strict: an unknown field is an error."""


class ReportedDecision(Report):
    """One recorded decision. Its input and output run again without the entries before them."""

    number: Number
    kind: Literal["cpu.allocate", "traffic.tick"]
    version: Annotated[int, Meta(ge=1, le=1_000)]
    input: dict[str, Any]
    output: dict[str, Any]
    applied: bool
    note: Text = ""
    """Why it was not applied, or which part of it was not."""


class PodReport(Report):
    """One pod after a clearing."""

    pod: Name
    need_millicores: Millicores
    allocation_millicores: Millicores
    limit_millicores: Millicores | None
    usage_millicores: Millicores | None
    throttling: Ratio | None
    min_millicores: Millicores
    max_millicores: Millicores
    reasons: Words
    bounds: Words = []
    """What held the allocation back: guardrails."""


class NodeReport(Report):
    """A node after a clearing."""

    mode: Literal["uncongested", "congested", "overloaded"]
    policy: Word
    node_millicores: Millicores
    capacity_millicores: Millicores
    shadow_price: Measure | None
    need_millicores: Total
    limits_millicores: Total
    observed_only: bool
    problems: Annotated[list[Text], Meta(max_length=20)]
    pods: Annotated[list[PodReport], Meta(max_length=PODS_MAX)]
    pods_left_out: Number = 0


class BackendReport(Report):
    """One backend after a tick. `pressure` is by term."""

    backend: Name
    slots: Annotated[int, Meta(ge=0, le=65_536)]
    target: Annotated[int, Meta(ge=0, le=65_536)]
    pressure: Annotated[dict[Word, Measure], Meta(max_length=20)]
    queue: Measure | None = None
    p95_ms: Measure | None = None
    error_rate: Measure | None = None
    requests: Measure | None = None
    isolated: Word | None = None
    """Why it is ejected; None: it serves."""
    order: BackendOrder | None = None


class GroupReport(Report):
    """A route group after a tick."""

    plane: Word
    mode: Literal["normal", "soft", "hard"]
    rate_per_s: Measure | None
    regime: Word
    stall: bool
    ttf_s: Measure | None
    conductance: Measure | None
    skew: Measure | None
    scale_hint: bool
    liveness: Word | None
    admitted: Number | None
    refused_soft: Number | None
    refused_hard: Number | None
    reasons: Words
    fault: Text
    backends: Annotated[list[BackendReport], Meta(max_length=BACKENDS_MAX)]
    backends_left_out: Number = 0


class NodeMoment(Report):
    """A node at a moment, and the decision of that clearing."""

    time_ms: Millis
    state: NodeReport
    decision: ReportedDecision | None = None


class GroupMoment(Report):
    """A group at a moment, and the decision of that tick."""

    time_ms: Millis
    state: GroupReport
    decision: ReportedDecision | None = None


class NodeMoments(Report):
    """What happened on a node since the last report."""

    name: Subject
    every_ms: Every
    moments: Annotated[list[NodeMoment], Meta(min_length=1, max_length=MOMENTS_MAX)]


class GroupMoments(Report):
    """What happened in a group since the last report."""

    name: Subject
    every_ms: Every
    moments: Annotated[list[GroupMoment], Meta(min_length=1, max_length=MOMENTS_MAX)]


class AgentReport(Report):
    """One report of one agent. `dropped` counts moments that it could not send since its start."""

    version: Literal[1]
    agent: Name
    started_ms: Millis
    dropped: Number
    nodes: Annotated[list[NodeMoments], Meta(max_length=SUBJECTS_MAX)] = []
    groups: Annotated[list[GroupMoments], Meta(max_length=SUBJECTS_MAX)] = []
