"""What the API takes and gives, as types: the OpenAPI document is written from these."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, field

from fairlead.core.units import INTEGER_MAX
from fairlead.schema.objects import Label

Count = Annotated[int, Meta(ge=0, le=INTEGER_MAX)]
ObjectKind = Literal["Budget", "Run", "Node", "Reservation", "Lease"]
Verb = Literal[
    "cancel",
    "pause",
    "resume",
    "nominate",
    "withdraw",
    "shrink",
    "resolve",
    "cordon",
    "uncordon",
    "drain",
    "fail",
]
VERBS: dict[str, tuple[Verb, ...]] = {
    "Run": ("cancel", "pause", "resume", "nominate", "withdraw", "shrink", "resolve"),
    "Node": ("cordon", "uncordon", "drain", "fail"),
}
"""What can be asked of an object of each kind."""


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
    """What became of an object; `preview` is what a dry run would have led to."""

    object: ObjectDocument
    change: Literal["created", "configured", "unchanged", "deleted"]
    preview: dict[str, Any] | None


class ApplyBody(Shape):
    """Several manifests, judged together: all of them are applied, or none is."""

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
    warnings: list[str]
    """What the plan does not decide and its owner should know, such as a window that ends."""


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


class OwnEntry(Shape):
    """An entry about the ledger itself (its beginning, a new key, a new epoch), and its proof."""

    seq: int
    entry: str
    """The canonical bytes that were hashed."""
    proof: list[str]
    """Inclusion in the log of the size that was asked for."""


class WhoAmI(Shape):
    """Who the server takes the caller for."""

    user: str
    owners: list[str]
    admin: bool
    anonymous: bool


class Health(Shape):
    """Alive; `faults` are what the executor last failed at; `resolver` whether it is enforced."""

    ok: bool
    version: str
    size: int
    resolver: Literal["off", "dry-run", "enforce"]
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
    """A token and, this once, its secret; id and secret are empty in a dry run."""

    token: str
