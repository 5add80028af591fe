"""Who gives way, and why: resolves by hand, forecasts, outcomes and what goes into their chance.

Reading is for everybody who may look, as with runs and leases. An export opens names, and so it
asks who wants it: a tenant is given those of its own owners and no others.
"""

from typing import Any

from starlette.responses import Response

from fairlead.api.endpoint import Call, Endpoint
from fairlead.api.giving_way_shapes import (
    BeaconBody,
    ExportQuery,
    Nonce,
    NonceBody,
    OutcomeDocument,
    OutcomeRow,
    Outlook,
    ResolveBody,
    Resolved,
    VoidBody,
    Voided,
)
from fairlead.api.queries import DryRunQuery
from fairlead.api.service import Service
from fairlead.core.gpu import Scope
from fairlead.core.units import INTEGER_MAX
from fairlead.engine.gpu import NotFound
from fairlead.schema.border import BadInput


def resolve(service: Service, call: Call) -> dict[str, Any]:
    """By hand, for a scope, for a cap, or for all caps of a budget and then a scope."""
    body: ResolveBody = call.body
    author, dry_run = call.author, call.query.dry_run
    placed = body.flavor is not None or body.gpus is not None or bool(body.location)
    if body.budget is not None and body.cap is not None:
        raise BadInput("cap", "is one of the budget's; give one or the other")
    if body.budget is not None and not placed:
        found = service.plane.resolver.resolve_budget(body.budget, author=author, dry_run=dry_run)
    elif body.cap is not None:
        if placed:
            raise BadInput("cap", "says flavor and GPUs itself; give one or the other")
        found = service.plane.resolver.resolve_cap(
            body.cap.budget, body.cap.name, author=author, dry_run=dry_run
        )
    elif body.flavor is None or body.gpus is None:
        missing = "flavor" if body.flavor is None else "gpus"
        raise BadInput(missing, "is required where there is no cap")
    elif body.budget is not None:
        place = (Scope(body.flavor, body.location), body.gpus)
        found = service.plane.resolver.resolve_budget(
            body.budget, author=author, place=place, dry_run=dry_run
        )
    else:
        found = service.plane.resolver.resolve(
            flavor=body.flavor,
            gpus=body.gpus,
            location=body.location,
            author=author,
            dry_run=dry_run,
        )
    service.wake.set()
    return {**found, "resolver": service.plane.config.resolver}


def forecast_run(service: Service, call: Call) -> dict[str, Any]:
    """What starting a run would take now."""
    return service.plane.resolver.preview("Run", call.path["name"])


def forecast_reservation(service: Service, call: Call) -> dict[str, Any]:
    """What activating a reservation would take, as things are now."""
    return service.plane.resolver.preview("Reservation", call.path["name"])


def get_outcome(service: Service, call: Call) -> dict[str, Any]:
    """One, from its commitment to its end."""
    return service.plane.outcome_reports.get(_seq(call), author=call.author)


def export_outcome(service: Service, call: Call) -> Response:
    """The file that `verify/` checks, to the byte."""
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


def void_outcome(service: Service, call: Call) -> dict[str, Any]:
    """Give up one that waits; what it would have been is disclosed."""
    found = service.plane.outcomes.void(
        _seq(call), call.body.reason, author=call.author, dry_run=call.query.dry_run
    )
    service.wake.set()
    return found


def put_nonce(service: Service, call: Call) -> dict[str, Any]:
    """An owner's part of the next seed."""
    return service.plane.outcomes.add_nonce(
        call.path["owner"], call.body.nonce, author=call.author, dry_run=call.query.dry_run
    )


def add_beacon(service: Service, call: Call) -> dict[str, Any]:
    """What a public source said; outcomes that waited for it go on."""
    body: BeaconBody = call.body
    found = service.plane.outcomes.add_beacon(
        body.source, body.round, body.value, author=call.author, dry_run=call.query.dry_run
    )
    service.wake.set()
    return found


def _seq(call: Call) -> int:
    given = call.path["seq"]
    if not (given.isascii() and given.isdigit() and 0 < int(given[:20]) <= INTEGER_MAX):
        raise NotFound("outcome", given)
    return int(given)


_ONE = "/v1/outcomes/{seq}"
ENDPOINTS = (
    Endpoint(
        "POST",
        "/v1/resolve",
        "Have runs give way in a scope, or under caps",
        resolve,
        Resolved,
        DryRunQuery,
        ResolveBody,
        "admin",
        errors=(404, 409),
    ),
    Endpoint(
        "GET",
        "/v1/runs/{name}/forecast",
        "What starting a run would take now",
        forecast_run,
        Outlook,
        errors=(409,),
    ),
    Endpoint(
        "GET",
        "/v1/reservations/{name}/forecast",
        "Who would give way for a reservation",
        forecast_reservation,
        Outlook,
        errors=(409,),
    ),
    Endpoint(
        "GET",
        "/v1/outcomes",
        "Resolves that are kept at hand, oldest first",
        lambda service, _: service.plane.outcome_reports.list(),
        list[OutcomeRow],
    ),
    Endpoint(
        "GET", _ONE, "One outcome; names of others stay pseudonyms", get_outcome, OutcomeDocument
    ),
    Endpoint(
        "GET",
        _ONE + "/export",
        "An outcome as a file that verifies without Fairlead",
        export_outcome,
        dict[str, Any],
        ExportQuery,
        errors=(409,),
    ),
    Endpoint(
        "POST",
        _ONE + "/void",
        "Give up an outcome that waits for its beacon",
        void_outcome,
        Voided,
        DryRunQuery,
        VoidBody,
        "admin",
        errors=(409,),
    ),
    Endpoint(
        "PUT",
        "/v1/nonces/{owner}",
        "An owner's own bytes for the next outcome",
        put_nonce,
        Nonce,
        DryRunQuery,
        NonceBody,
        "user",
        errors=(404,),
    ),
    Endpoint(
        "POST",
        "/v1/beacons",
        "The value of a public beacon's round",
        add_beacon,
        BeaconBody,
        DryRunQuery,
        BeaconBody,
        "admin",
        errors=(409,),
    ),
)
