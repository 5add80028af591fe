"""Requests and replies of the API as types; the OpenAPI document is derived from them."""

from typing import Annotated, Any, Literal, get_args

import msgspec
from msgspec import Meta, field

from fairlead.core.units import INTEGER_MAX
from fairlead.schema.objects import GPUS_MAX, LABEL_MAX, Label

NAME = r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,252}$"
"""Of an agent, a node or a route group."""
Count = Annotated[int, Meta(ge=0, le=INTEGER_MAX)]
Positive = Annotated[int, Meta(ge=1, le=INTEGER_MAX)]
By = Literal["owner", "envelope", "budget", "run"]
Period = Literal["day", "week", "month", "quarter"]
ResolverMode = Literal["off", "dry-run", "enforce"]
ObjectKind = Literal["Budget", "Run", "Node", "Reservation", "Lease"]
RunVerb = Literal["cancel", "pause", "resume", "nominate", "withdraw", "shrink", "resolve"]
NodeVerb = Literal["cordon", "uncordon", "drain", "fail"]
Verb = Literal[RunVerb, NodeVerb]
VERBS: dict[str, tuple[str, ...]] = {"Run": get_args(RunVerb), "Node": get_args(NodeVerb)}
"""The verbs of each kind."""


class Shape(msgspec.Struct, forbid_unknown_fields=True):
    """Strict: an unknown field is an error."""


class ErrorBody(Shape):
    """A code for programs, the offending field, a sentence for people."""

    code: str
    path: str | None
    message: str


class Error(Shape):
    """The body of every error reply."""

    error: ErrorBody


class ObjectMetadata(Shape, rename="camel"):
    """The identity of an object. A dry run has no version yet."""

    name: str
    labels: dict[str, str]
    uid: str
    generation: int
    resource_version: int | None = None
    creation_timestamp: str | None = None


class ObjectDocument(Shape, rename="camel"):
    """One object. The command and variables of a run are hidden from other owners."""

    api_version: str
    kind: ObjectKind
    metadata: ObjectMetadata
    spec: dict[str, Any]
    status: dict[str, Any]


class ObjectList(Shape):
    """Objects of a kind, sorted by name. `next`: the cursor of the page after, if any."""

    items: list[ObjectDocument]
    next: str | None


class Change(Shape):
    """A changed object; `preview` holds the effects of a dry run, `warnings` what is allowed and
    almost surely not meant."""

    object: ObjectDocument
    change: Literal["created", "configured", "unchanged", "deleted"]
    preview: dict[str, Any] | None
    warnings: list[str] = field(default_factory=list)


class ApplyBody(Shape):
    """Several manifests; all of them are applied, or none is."""

    manifests: Annotated[list[Any], Meta(min_length=1, max_length=1000)]
    dry_run: bool = False


class YamlBody(Shape):
    """Manifests as YAML or JSON, separated by `---`."""

    text: Annotated[str, Meta(max_length=2**20)]


class Manifests(Shape):
    """The same as JSON, to plan or to apply."""

    manifests: list[Any]


class Changes(Shape):
    """One change for each manifest, in order."""

    items: list[Change]


class RunPlan(Shape):
    """Who would pay for a run and where it would run, or why it is not funded."""

    funded: bool
    gpus: int
    plan: list[Any]
    refusal: dict[str, Any] | None
    placement: dict[str, Any] | None
    starts: bool
    recall: dict[str, int] | None
    """Leases and GPUs of others on its owner's envelopes that would lose their funding for it."""
    overdraft: dict[str, str] | None
    """Budget and envelope whose overdraft it would be: it may start unfunded, and would."""
    warnings: list[str]
    """Hints for the owner: an unknown owner or flavor, a window that closes before the run ends."""


class Event(Shape):
    """One entry of the ledger, as an event."""

    seq: int
    time: str
    kind: str
    author: str
    object: dict[str, str] | None
    owner: str | None
    reason: str | None
    message: str
    body: dict[str, Any]


class Events(Shape):
    """Events after a number; continue with `next`."""

    items: list[Event]
    next: int


class HeadDocument(Shape):
    """The checkpoint (signed tree head) of the ledger."""

    ledger: str
    epoch: int
    size: int
    root: str
    time_ms: int
    key_id: str
    signature: str


class Consistency(Shape):
    """Proof that the log of the new size continues the one of the old size."""

    old: int
    new: int
    proof: list[str]


class OwnEntry(Shape):
    """An entry about the ledger itself (created, new key, new epoch), with its proof."""

    seq: int
    entry: str
    """The canonical bytes that were hashed."""
    proof: list[str]
    """Inclusion in the log of the requested size."""


class WhoAmI(Shape):
    """The caller as the server authenticated it."""

    user: str
    owners: list[str]
    admin: bool
    anonymous: bool
    in_run: bool = False
    """Whether it is a process of a run: it may read, and act on `run` only."""
    run: str | None = None
    session: str | None = None
    """The id of the session that asks, where a browser is signed in."""


class Health(Shape):
    """State of the server; `faults` are the executor's latest errors."""

    ok: bool
    version: str
    size: int
    resolver: ResolverMode
    faults: dict[str, str]
    demo: bool = False
    """Whether GET /v1/story tells what happens."""


class PreemptionRules(Shape):
    """When runs may be preempted, and what a tenant may ask for; durations like `1h30m`."""

    resolver: ResolverMode
    min_notice: str = field(name="minNotice")
    max_reservations: int = field(name="maxReservations")
    min_runtime: str = field(name="minRuntime")
    cooldown: str
    grace: str
    max_grace: str = field(name="maxGrace")
    max_clock_jump: str = field(name="maxClockJump")
    max_open_runs: int | None = field(name="maxOpenRuns")
    """Of one owner; null: not bounded here."""
    max_manifest_bytes: int | None = field(name="maxManifestBytes")
    max_requests_per_s: int | None = field(name="maxRequestsPerSecond")
    """Of one user; admins are exempt."""
    owner_weighting: str = field(name="ownerWeighting")
    may_resolve: list[str] = field(name="mayResolve")


class ClockReport(Shape):
    """Ledger time and the machine's clock. `held`: they differ by more than the bound, and no run
    is started; `offset`: they differ, and an operator let them."""

    state: Literal["steady", "held", "offset"]
    ledger_time: str = field(name="ledgerTime")
    wall_time: str = field(name="wallTime")
    difference_ms: int = field(name="differenceMs")
    bound_ms: int = field(name="boundMs")
    message: str


class ClockBody(Shape):
    """Whether the machine's clock is right."""

    judgement: Literal["accept", "reject"]


class UserRow(Shape):
    """A user and the owners it acts for."""

    name: str
    owners: list[str]
    admin: bool


class BoundUser(UserRow):
    """A user as it was bound; a user that this machine does not know is warned of."""

    warnings: list[str] = field(default_factory=list)


class UserBody(Shape):
    """The owners that a user acts for."""

    owners: Annotated[list[Label], Meta(max_length=1000)] = field(default_factory=list)
    admin: bool = False


class TokenBody(Shape):
    """A token for a user; for the caller when none is named."""

    user: Label | None = None
    note: Annotated[str, Meta(max_length=200)] = ""
    agent: Annotated[str, Meta(pattern=NAME)] | None = None
    """Instead of a user: a node or traffic agent, which reports and does nothing else."""
    groups: Annotated[list[Annotated[str, Meta(pattern=NAME)]], Meta(max_length=1000)] = field(
        default_factory=list
    )
    """The route groups that the agent may report, beside the node of its name."""


class TokenRow(Shape):
    """A token, without its secret."""

    id: str
    user: str
    note: str
    created: str
    revoked: str | None
    reports: list[str] = field(default_factory=list)
    """Of an agent's: what it may report."""


class NewToken(TokenRow, kw_only=True):
    """A new token with its secret; id and secret are empty in a dry run."""

    token: str


class BudgetRow(Shape):
    """Limits and usage of one envelope."""

    budget: str
    owner: str
    envelope: str
    flavor: str
    location: dict[str, str]
    limit_gpus: int
    used_gpus: int
    free_gpus: int
    lent_gpus: int
    limit_gpu_hours: float | None
    used_gpu_hours: float
    held_gpu_hours: float
    free_gpu_hours: float | None
    overdraft_gpu_hours: float
    period_end: str | None
    conditions: list[str]


class LeaseRow(Shape):
    """One open lease."""

    lease: str
    run: str
    owner: str
    role: str
    group: int
    slots: list[str]
    gpus: int
    budget: str
    envelope: str
    borrowed: bool
    funded: bool
    virtual: bool
    """Its devices are not there."""
    start: str
    expected_end: str | None
    gpu_hours: float


class SponsorRow(Shape):
    """One envelope that lends to the owner."""

    owner: str
    budget: str
    envelope: str
    location: dict[str, str]
    free_gpus: int
    lent_gpus: int
    free_gpu_hours: float | None
    open: bool
    family: bool


class OwesRow(Shape):
    """What one owner borrowed from another: GPUs now, GPU-hours ever."""

    borrower: str
    lender: str
    gpus: int
    gpu_hours: float


class ReportRow(Shape):
    """GPU-hours of a period by owner, envelope, budget or run; or the idle devices of a node.

    Columns that the report does not group by are null. `idle_gpus` were idle at the end of the
    period, the longest of them since `idle_since`; `idle_gpu_hours` is of the whole period.
    `utilisation_percent` and `leased_idle_gpu_hours` are of leased devices, as far as their use was
    read (`read_gpu_hours`); null: it was not. `virtual`: on virtual nodes, at least in part.
    """

    kind: Literal["usage", "idle"]
    period: str
    start: str
    end: str
    owner: str | None
    run: str | None
    payer: str | None
    budget: str | None
    envelope: str | None
    borrowed: bool | None
    gpu_hours: float
    overdraft_gpu_hours: float
    node: str | None
    idle_gpus: int
    idle_gpu_hours: float
    idle_since: str | None
    read_gpu_hours: float
    utilisation_percent: float | None
    leased_idle_gpu_hours: float | None
    virtual: bool


class ListQuery(Shape):
    """Limit the list to one owner, or to objects with a label, as KEY=VALUE. `cursor`: `next`
    of the page before."""

    owner: Label | None = None
    label: Annotated[str, Meta(pattern="^[^=]+=", max_length=2 * LABEL_MAX)] | None = None
    limit: Annotated[int, Meta(ge=1, le=500)] = 500
    cursor: Annotated[str, Meta(max_length=253)] = ""


class DryRunQuery(Shape):
    """Preview; change nothing."""

    dry_run: bool = False


class ActionQuery(DryRunQuery):
    """`width`: the GPUs that `shrink` keeps. `force`: `cancel` kills at once, without the grace."""

    width: Annotated[int, Meta(ge=1, le=GPUS_MAX)] | None = None
    force: bool = False


class PutQuery(DryRunQuery):
    """`expected_version`: refuse if the object has another one; 0: if it exists."""

    expected_version: Count | None = None


class EventsQuery(Shape):
    """Start after this entry, and wait up to `wait_s` for new ones."""

    after: Count = 0
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100
    wait_s: Annotated[int, Meta(ge=0, le=60)] = 0


class WatchQuery(Shape):
    """Start after this entry (default: now); end after `limit` events."""

    after: Count | None = None
    limit: Positive | None = None


class LogsQuery(Shape):
    """`follow` until the run ends; start `tail` lines before the end."""

    follow: bool = False
    tail: Annotated[int, Meta(ge=0, le=100_000)] | None = None


class OutputQuery(Shape):
    """Output from byte `after` of a job on; of the newest without one, of the one before it with
    `previous`. Waits up to `wait_s` for more. `tail`: from so many lines before the end."""

    job: Annotated[str, Meta(max_length=200)] | None = None
    after: Count = 0
    wait_s: Annotated[int, Meta(ge=0, le=60)] = 0
    tail: Annotated[int, Meta(ge=0, le=100_000)] | None = None
    previous: bool = False


class KeyboardBody(Shape):
    """Text for a run's terminal, in base64; an interrupt (Ctrl-C); the terminal's size."""

    text: Annotated[str, Meta(max_length=8192)] = ""
    interrupt: bool = False
    rows: Annotated[int, Meta(ge=1, le=10_000)] | None = None
    columns: Annotated[int, Meta(ge=1, le=10_000)] | None = None


class Typed(Shape):
    """How many bytes the terminal took; the client sends the rest again."""

    taken: int


class SponsorsQuery(Shape):
    """The borrower and the flavor."""

    owner: Label
    flavor: Label


class ReportQuery(Shape):
    """UTC days, summed by period and grouped.

    `since` and `until` are RFC 3339 times; their whole days count. Default: until now, from the
    start of the period 30 days earlier.
    """

    by: By = "envelope"
    period: Period = "month"
    since: str | None = None
    until: str | None = None
    format: Literal["json", "csv"] = "json"


class EntriesQuery(Shape):
    """The size of the log to prove against (default: the newest)."""

    size: Positive | None = None


class ConsistencyQuery(Shape):
    """The two sizes of the log."""

    old: Positive
    new: Positive
