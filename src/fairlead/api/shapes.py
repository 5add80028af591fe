"""What the API takes and gives, as types: the OpenAPI document is written from these."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, field

from fairlead.core.units import INTEGER_MAX
from fairlead.schema.objects import Label

Count = Annotated[int, Meta(ge=0, le=INTEGER_MAX)]
ObjectKind = Literal["Budget", "Run", "Node", "Lease"]


class Shape(msgspec.Struct, forbid_unknown_fields=True):
    """All of them are strict."""


class ErrorBody(Shape):
    """What was wrong: a code for programs, the field, a sentence for people."""

    code: str
    path: str | None
    message: str


class Error(Shape):
    """Every reply that is not a success."""

    error: ErrorBody


class ObjectMetadata(Shape, rename="camel"):
    """Who an object is. A dry run has no version yet."""

    name: str
    labels: dict[str, str]
    uid: str
    generation: int
    resource_version: int | None = None
    creation_timestamp: str | None = None


class ObjectDocument(Shape, rename="camel"):
    """One object. Whoever may not act for a run's owner does not see its command and variables."""

    api_version: str
    kind: ObjectKind
    metadata: ObjectMetadata
    spec: dict[str, Any]
    status: dict[str, Any]


class ObjectList(Shape):
    """Objects of a kind, by name."""

    items: list[ObjectDocument]


class Change(Shape):
    """What became of a manifest; `preview` is what a dry run would have led to."""

    object: ObjectDocument
    change: Literal["created", "configured", "unchanged"]
    preview: dict[str, Any] | None


class ApplyBody(Shape):
    """Several manifests; all are checked before the first is applied."""

    manifests: Annotated[list[Any], Meta(min_length=1, max_length=1000)]
    dry_run: bool = False


class Changes(Shape):
    """One for each manifest, in order."""

    items: list[Change]


class Plan(Shape):
    """What submitting a run would lead to now: who pays and where it runs, or why not."""

    funded: bool
    gpus: int
    plan: list[Any]
    refusal: dict[str, Any] | None
    placement: dict[str, Any] | None
    starts: bool


class BudgetRow(Shape):
    """One envelope."""

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
    """What one owner borrowed of another: GPUs now, GPU-hours ever."""

    borrower: str
    lender: str
    gpus: int
    gpu_hours: float


class ReportRow(Shape):
    """GPU-hours of a day, owner and envelope; or the idle devices of a node."""

    kind: Literal["usage", "idle"]
    day: str
    owner: str | None
    payer: str | None
    budget: str | None
    envelope: str | None
    borrowed: bool
    gpu_hours: float
    overdraft_gpu_hours: float
    node: str | None
    idle_gpus: int


class Event(Shape):
    """One entry of the ledger, for people who watch."""

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
    """Events after a number; ask again with `next`."""

    items: list[Event]
    next: int


class HeadDocument(Shape):
    """The signed head of the ledger."""

    ledger: str
    epoch: int
    size: int
    root: str
    time_ms: int
    key_id: str
    signature: str


class Consistency(Shape):
    """Proof that the log of the old size begins the one of the new size."""

    old: int
    new: int
    proof: list[str]


class WhoAmI(Shape):
    """Who the server takes the caller for."""

    user: str
    owners: list[str]
    admin: bool
    anonymous: bool


class Health(Shape):
    """Alive; `faults` are what the executor last failed at."""

    ok: bool
    version: str
    size: int
    faults: dict[str, str]


class UserRow(Shape):
    """A user and the owners that they act for."""

    name: str
    owners: list[str]
    admin: bool


class UserBody(Shape):
    """For whom a user acts."""

    owners: Annotated[list[Label], Meta(max_length=1000)] = field(default_factory=list)
    admin: bool = False


class TokenBody(Shape):
    """A token for a user; for oneself when none is named."""

    user: Label | None = None
    note: Annotated[str, Meta(max_length=200)] = ""


class TokenRow(Shape):
    """A token, without its secret."""

    id: str
    user: str
    note: str
    created: str
    revoked: str | None


class NewToken(TokenRow):
    """A token and, this once, its secret."""

    token: str


class Nothing(Shape):
    """No parameters."""


class OwnerQuery(Shape):
    """Only those of an owner."""

    owner: Label | None = None


class DryRunQuery(Shape):
    """Whether to say only what would happen."""

    dry_run: bool = False


class PutQuery(DryRunQuery):
    """`expected_version`: only if the object is still in that version; 0: only if there is none."""

    expected_version: Count | None = None


class EventsQuery(Shape):
    """Where to begin, and how long to wait for something new."""

    after: Count = 0
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100
    wait_s: Annotated[int, Meta(ge=0, le=60)] = 0


class WatchQuery(Shape):
    """Where to begin; without it, now. `limit`: end after so many."""

    after: Count | None = None
    limit: Annotated[int, Meta(ge=1, le=INTEGER_MAX)] | None = None


class LogsQuery(Shape):
    """`follow`: go on until the run has ended. `tail`: begin so many lines before the end."""

    follow: bool = False
    tail: Annotated[int, Meta(ge=0, le=100_000)] | None = None


class SponsorsQuery(Shape):
    """Who asks, and for what."""

    owner: Label
    flavor: Label


class ReportQuery(Shape):
    """From and to as RFC 3339; the days that they touch. Default: the last 30 days."""

    start: str | None = None
    end: str | None = None
    format: Literal["json", "csv"] = "json"


class ConsistencyQuery(Shape):
    """Two sizes."""

    old: Annotated[int, Meta(ge=1, le=INTEGER_MAX)]
    new: Annotated[int, Meta(ge=1, le=INTEGER_MAX)]
