"""Preemption: resolves by hand, previews, outcomes and the entropy of their lottery.

Previews and outcomes are readable like runs and leases. An export opens names: a tenant gets those
of its own owners only.
"""

from typing import Annotated, Any, Literal

from msgspec import Meta, field
from starlette.responses import Response

from fairlead.api.endpoint import Call, Routes
from fairlead.api.listing_shapes import PageLimit
from fairlead.api.service import Service
from fairlead.api.shapes import DryRunQuery, Positive, ResolverMode, Shape
from fairlead.core.gpu import Scope
from fairlead.core.units import INTEGER_MAX
from fairlead.engine.gpu import NotFound
from fairlead.engine.gpu.resolver.preview import Forecast, RunForecast
from fairlead.schema.border import BadInput
from fairlead.schema.objects import GPUS_MAX, Label

routes = Routes()
Stage = Literal["committed", "drawn", "applied", "void"]


class CapName(Shape):
    """An aggregate cap, or an envelope as a cap of its own."""

    budget: Label
    name: Label


class ResolveBody(Shape):
    """Free GPUs of a flavor in a location, or what an exceeded cap no longer funds.

    With `budget`: all of its exceeded caps, one after the other by name, then the GPUs, if any.
    """

    flavor: Label | None = None
    location: dict[Label, Label] = field(default_factory=dict)
    gpus: Annotated[int, Meta(ge=1, le=GPUS_MAX)] | None = None
    cap: CapName | None = None
    budget: Label | None = None


class ResolveStep(Shape):
    """One resolve of several; each starts after the one before it.

    Passed: no preemption is needed any more, or it is impossible; the events say why. The forecast
    is from before the first step.
    """

    kind: Literal["aggregate", "envelope", "place"]
    name: str | None
    state: Literal["forecast", "begun", "waits", "passed"]
    outcome: int | None
    forecast: Forecast


class Resolved(Shape):
    """The result of a resolve; no outcome: a dry run, no deficit, or the resolver is not enforced.

    For a budget, outcome and forecast are those of the first step.
    """

    outcome: int | None
    resolver: ResolverMode
    forecast: Forecast
    steps: list[ResolveStep] = field(default_factory=list)


class OutcomeRow(Shape):
    """One outcome of preemption."""

    outcome: int
    stage: Stage
    flavor: str
    k: int
    cause: str
    deficit_gpus: int = field(name="deficitGPUs")
    label: str | None
    committed: str


class OutcomesQuery(Shape):
    """`cursor`: `next` of the page before, which is an outcome."""

    limit: PageLimit = 50
    cursor: Positive | None = None


class OutcomePage(Shape):
    """Outcomes, newest first."""

    items: list[OutcomeRow]
    total: int
    next: int | None


class OutcomeDocument(Shape, rename="camel"):
    """One outcome in full. Names are pseudonyms; `names` opens the caller's own."""

    outcome: int
    stage: Stage
    chain: str
    k: int
    voids: int
    committed: str
    answered: str | None
    final_seq: int | None
    cause: str | None
    run: str | None
    reservation: str | None
    scope: dict[str, Any]
    deficit_gpus: int = field(name="deficitGPUs")
    beacon: dict[str, Any] | None
    owner_weighting: Literal["owners", "tokens", "stake"]
    label: str | None
    seed: str | None
    reason: str | None
    tokens: list[dict[str, Any]]
    result: dict[str, Any] | None
    names: dict[str, str]


Signature = Annotated[str, Meta(pattern="^[0-9a-f]{128}$")]


class VoidBody(Shape):
    """Why an outcome is voided; recorded with the caller's name."""

    reason: Annotated[str, Meta(min_length=1, max_length=1000)]
    beacon_lost: bool = field(default=False, name="beaconLost")
    """The network will never sign the round: the next outcome has none, and needs trust."""


class Voided(Shape):
    """The voided outcome."""

    outcome: int
    stage: Stage


class NonceBody(Shape):
    """An owner's entropy for its next lottery, signed with the owner's key."""

    nonce: Annotated[str, Meta(pattern="^([0-9a-f]{2}){1,64}$")]
    size: Annotated[int, Meta(ge=0)]
    """The number of entries of the checkpoint that the owner saw last."""
    signature: Signature


class Nonce(Shape):
    """The recorded nonce."""

    owner: str
    nonce: str
    size: int
    signature: str


class OwnerKeyBody(Shape):
    """A key that an owner signs its nonces with: Ed25519."""

    public_key: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")] = field(name="publicKey")
    signature: Signature
    """Made with that key."""
    approval: Signature | None = None
    """Made with the key before; null: it is the owner's first."""


class RegisteredKey(Shape):
    """The recorded key."""

    owner: str
    public_key: str
    signature: str
    approval: str | None


class BeaconBody(Shape):
    """The value of a network's round: its signature, as the network publishes it."""

    source: Label
    round: Positive
    value: Annotated[str, Meta(pattern="^[0-9a-f]{96}$")]


class ExportQuery(Shape):
    """Whose names to open (default: the caller's own; public: none), and kept checkpoints."""

    owner: Label | None = None
    public: bool = False
    head: (
        Annotated[
            str,
            Meta(pattern="^[1-9][0-9]{0,15}:[0-9a-f]{64}(,[1-9][0-9]{0,15}:[0-9a-f]{64}){0,99}$"),
        ]
        | None
    ) = None
    """SIZE:ROOT, separated by commas: the export proves that the log only grew since."""


@routes(
    "POST /v1/resolve", Resolved, DryRunQuery, body=ResolveBody, needs="admin", errors=(404, 409)
)
def resolve(service: Service, call: Call) -> dict[str, Any]:
    """Preempt runs to free GPUs in a scope, or under caps."""
    body: ResolveBody = call.body
    resolver, by = service.plane.resolver, call.by
    in_scope = body.flavor is not None or body.gpus is not None or bool(body.location)
    if body.cap is not None:
        if body.budget is not None or in_scope:
            other = "the budget" if body.budget is not None else "flavor, location and gpus"
            raise BadInput("cap", f"cannot be combined with {other}")
        reply = resolver.resolve_cap(body.cap.budget, body.cap.name, **by)
    elif body.budget is not None and not in_scope:
        reply = resolver.resolve_budget(body.budget, **by)
    elif body.flavor is None or body.gpus is None:
        missing = "flavor" if body.flavor is None else "gpus"
        raise BadInput(missing, "is required without a cap")
    elif body.budget is not None:
        place = (Scope(body.flavor, body.location), body.gpus)
        reply = resolver.resolve_budget(body.budget, place=place, **by)
    else:
        reply = resolver.resolve(flavor=body.flavor, gpus=body.gpus, location=body.location, **by)
    return {**reply, "resolver": service.plane.config.resolver}


@routes("GET /v1/runs/{name}/forecast", RunForecast, errors=(409,))
def forecast_run(service: Service, call: Call) -> dict[str, Any]:
    """Preview the start of a run: candidates and odds."""
    return service.plane.resolver.preview("Run", call.path["name"])


@routes("GET /v1/reservations/{name}/forecast", RunForecast, errors=(409,))
def forecast_reservation(service: Service, call: Call) -> dict[str, Any]:
    """Preview the start of a reservation: candidates and odds."""
    return service.plane.resolver.preview("Reservation", call.path["name"])


@routes("GET /v1/outcomes", OutcomePage, OutcomesQuery)
def list_outcomes(service: Service, call: Call) -> dict[str, Any]:
    """List outcomes by page, newest first."""
    return service.plane.outcome_reports.page(call.query.limit, call.query.cursor)


_ONE = "/v1/outcomes/{seq}"


@routes(f"GET {_ONE}", OutcomeDocument)
def get_outcome(service: Service, call: Call) -> dict[str, Any]:
    """Show an outcome; other owners' names stay pseudonyms."""
    return service.plane.outcome_reports.get(_seq(call), author=call.author)


@routes(f"GET {_ONE}/export", dict[str, Any], ExportQuery, errors=(409,))
def export_outcome(service: Service, call: Call) -> Response:
    """Export an outcome as a file that verifies without Fairlead."""
    query: ExportQuery = call.query
    heads = [head.split(":") for head in (query.head or "").split(",") if head]
    try:
        data = service.plane.outcome_reports.export(
            _seq(call),
            author=call.author,
            owner=query.owner,
            public=query.public,
            heads=tuple((int(size), root) for size, root in heads),
        )
    except BadInput as error:
        raise BadInput(f"query.{error.path}", error.message) from None
    return Response(data, media_type="application/json")


@routes(f"POST {_ONE}/void", Voided, DryRunQuery, body=VoidBody, needs="admin", errors=(409,))
def void_outcome(service: Service, call: Call) -> dict[str, Any]:
    """Void an outcome that waits for its beacon."""
    body: VoidBody = call.body
    return service.plane.outcomes.void(
        _seq(call), body.reason, beacon_lost=body.beacon_lost, **call.by
    )


@routes(
    "PUT /v1/nonces/{owner}", Nonce, DryRunQuery, body=NonceBody, needs="user", errors=(404, 409)
)
def put_nonce(service: Service, call: Call) -> dict[str, Any]:
    """Add an owner's entropy to its next lottery."""
    body: NonceBody = call.body
    return service.plane.contributions.add_nonce(
        call.path["owner"], body.nonce, size=body.size, signature=body.signature, **call.by
    )


@routes(
    "PUT /v1/owner-keys/{owner}",
    RegisteredKey,
    DryRunQuery,
    body=OwnerKeyBody,
    needs="user",
    grants=True,
    errors=(404, 409),
)
def put_owner_key(service: Service, call: Call) -> dict[str, Any]:
    """Register the key that an owner signs its nonces with."""
    body: OwnerKeyBody = call.body
    return service.plane.contributions.add_key(
        call.path["owner"],
        body.public_key,
        signature=body.signature,
        approval=body.approval,
        **call.by,
    )


@routes("POST /v1/beacons", BeaconBody, DryRunQuery, body=BeaconBody, needs="admin", errors=(409,))
def add_beacon(service: Service, call: Call) -> dict[str, Any]:
    """Supply the value of a public beacon's round."""
    body: BeaconBody = call.body
    return service.plane.contributions.add_beacon(body.source, body.round, body.value, **call.by)


def _seq(call: Call) -> int:
    text = call.path["seq"]
    if not (text.isascii() and text.isdigit() and 0 < int(text[:20]) <= INTEGER_MAX):
        raise NotFound("outcome", text)
    return int(text)
