"""Replies of the fleet's endpoints as types: nodes, route groups, their series and decisions."""

from typing import Annotated, Any, Literal

from msgspec import Meta, field

from fairlead.api.shapes import Count, Positive, Shape
from fairlead.schema.reports import BackendOrder, GroupReport, NodeReport


class ReportTaken(Shape):
    """How many moments were new, and what the operator ordered, by group and backend."""

    taken: int
    orders: dict[str, dict[str, BackendOrder]]


class AgentQuery(Shape):
    """The agent, where several report the same; default: the one that was heard of last."""

    agent: Annotated[str, Meta(max_length=253)] | None = None


class FleetQuery(Shape):
    """`recent`: with the last moments of each row, to draw them."""

    recent: bool = False


class AgentDecisionQuery(AgentQuery):
    """The same; `at` (milliseconds since 1970): an agent that lost its record counts anew, so the
    decision of that number that is nearest to this time. Default: the newest."""

    at: Count | None = None


class GroupSeriesQuery(AgentQuery):
    """Moments after this time (milliseconds since 1970), at most `limit` of them, the newest."""

    after: Count = 0
    limit: Annotated[int, Meta(ge=1, le=3_600)] = 600


class NodeSeriesQuery(GroupSeriesQuery):
    """The same; `pod`: of this pod instead of the whole node."""

    pod: Annotated[str, Meta(max_length=253)] | None = None


class ReportsQuery(Shape):
    """Nodes or groups, or the one of a name; end after `limit` lines. Without a kind: both, and
    only which of them changed."""

    kind: Literal["node", "group"] | None = None
    name: Annotated[str, Meta(max_length=253)] | None = None
    limit: Positive | None = None


class Heard(Shape, kw_only=True):
    """How a node or group is known. `stale_since`: its last report, where no more came in time."""

    agent: str
    time: str
    received: str
    stale_since: str | None
    every_ms: int
    dropped: int
    decision: int | None


class CpuRow(Heard, kw_only=True):
    """The CPU governor of a node, in millicores. `throttling` is the worst pod's. `recent`, where
    it is asked for: times in milliseconds since 1970, and the need then."""

    mode: str
    policy: str
    capacity_millicores: int
    need_millicores: int
    allocation_millicores: int
    usage_millicores: int
    limits_millicores: int
    throttling: float | None
    shadow_price: float | None
    pods: int
    observed_only: bool
    problems: list[str]
    recent: list[tuple[int, float | None]] = field(default_factory=list)


class GpuRow(Shape):
    """The devices of a node."""

    flavor: str
    location: dict[str, str]
    devices: int
    free: int | None
    cordoned: bool
    virtual: bool


class MachineRow(Shape):
    """A machine: its GPU devices, and its CPU governor, where it has either."""

    name: str
    gpu: GpuRow | None
    cpu: CpuRow | None


class NodeDetail(MachineRow):
    """The same with the newest state of every pod."""

    state: NodeReport | None


class GroupRow(Heard, kw_only=True):
    """A route group as its agent last reported it. `recent`, where it is asked for: times in
    milliseconds since 1970, and `p95_ms` then."""

    name: str
    plane: str
    mode: str
    regime: str
    stall: bool
    ttf_s: float | None
    conductance: float | None
    rate_per_s: float | None
    scale_hint: bool
    liveness: str | None
    admitted: int | None
    refused: int | None
    backends: int
    ejected: list[str]
    p95_ms: float | None
    error_rate: float | None
    reasons: list[str]
    fault: str
    recent: list[tuple[int, float | None]] = field(default_factory=list)


class ReportNews(Shape):
    """A node or group that was reported, or that has become stale; `cpu` or `group` is as in the
    lists."""

    kind: Literal["node", "group"]
    name: str
    agent: str
    cpu: CpuRow | None
    group: GroupRow | None


class GroupDetail(GroupRow, kw_only=True):
    """The same with every backend, and the orders that the agent is to carry out."""

    state: GroupReport
    orders: dict[str, BackendOrder]


class NodePoint(Shape):
    """A node, or one of its pods, at a moment; in millicores."""

    time_ms: int
    decision: int | None
    mode: str
    capacity: int
    need: int
    allocation: int
    limit: int | None
    usage: int | None
    throttling: float | None
    price: float | None


class BackendPoint(Shape):
    """A backend at a moment."""

    slots: int
    pressure: dict[str, float]
    queue: float | None
    p95_ms: float | None
    error_rate: float | None
    isolated: str | None


class GroupPoint(Shape):
    """A group at a moment; counters since the dataplane's start."""

    time_ms: int
    decision: int | None
    mode: str
    regime: str
    stall: bool
    conductance: float | None
    admitted: int | None
    refused_soft: int | None
    refused_hard: int | None
    reasons: list[str]
    backends: dict[str, BackendPoint]


class NodeSeries(Shape):
    """Moments, oldest first."""

    agent: str
    points: list[NodePoint]


class GroupSeries(Shape):
    """Moments, oldest first."""

    agent: str
    points: list[GroupPoint]


class AgentDecision(Shape):
    """A decision that an agent recorded: its input and output, which run again on their own."""

    subject: Literal["node", "group"]
    name: str
    agent: str
    number: int
    time: str
    kind: str
    version: int
    input: dict[str, Any]
    output: dict[str, Any]
    applied: bool
    note: str


class AgentReplay(Shape):
    """A reported decision decided again, compared byte by byte (canonical JSON)."""

    number: int
    kind: str
    version: int
    verdict: Literal["same", "different", "unknown"]
    detail: str
    """The first field that differs, or why nothing can be said."""
    recorded_sha256: str = field(name="recordedSHA256")
    decided_sha256: str | None = field(name="decidedSHA256")
    bytes: int
    """The length of what was reported."""
    decided: dict[str, Any] | None


class Ordered(Shape):
    """What an admin ordered for a backend. The agent carries it out with its next report."""

    group: str
    backend: str
    order: BackendOrder | None
    change: Literal["ordered", "unchanged"]
