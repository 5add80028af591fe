"""Tables, the ledger's head, users and tokens."""

import csv
import io
from typing import Any

from starlette.responses import Response

from fairlead import __version__
from fairlead.api.access import User
from fairlead.api.chargeback import period_of, usage_rows
from fairlead.api.endpoint import ANONYMOUS, Call, Endpoint, problem
from fairlead.api.idle import idle_rows
from fairlead.api.metrics import CONTENT_TYPE, render
from fairlead.api.queries import (
    ConsistencyQuery,
    DryRunQuery,
    EntriesQuery,
    ReportQuery,
    SponsorsQuery,
)
from fairlead.api.rows import BudgetRow, LeaseRow, OwesRow, ReportRow, SponsorRow
from fairlead.api.service import Service
from fairlead.api.shapes import (
    Consistency,
    HeadDocument,
    Health,
    NewToken,
    OwnEntry,
    TokenBody,
    TokenRow,
    UserBody,
    UserRow,
    WhoAmI,
)
from fairlead.engine.gpu import Forbidden
from fairlead.schema.border import BadInput
from fairlead.schema.times import parse_now

REPORT_DAYS = 30
DAY_MS = 86_400_000
OWN_ENTRIES_MAX = 10_000


def report(service: Service, call: Call) -> Any:
    """GPU-hours for chargeback, then idle devices; as rows or as CSV."""
    query: ReportQuery = call.query
    end_ms = service.now_ms() if query.until is None else parse_now(query.until, "query.until")
    if query.since is None:
        start_ms = period_of(query.period, max(0, end_ms - REPORT_DAYS * DAY_MS)).start_ms
    else:
        start_ms = parse_now(query.since, "query.since")
    if start_ms > end_ms:
        raise BadInput("query.since", "must not be after the end")
    start_ms -= start_ms % DAY_MS  # charges are kept by day
    rows = usage_rows(service, query.by, query.period, start_ms, end_ms)
    rows += idle_rows(service, query.period, start_ms, end_ms)
    if query.format == "json":
        return rows
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(ReportRow.__struct_fields__))
    writer.writeheader()
    writer.writerows([{key: _cell(value) for key, value in row.items()} for row in rows])
    return Response(text.getvalue(), media_type="text/csv")


def _cell(value: Any) -> Any:
    """A spreadsheet takes what begins like a formula for one; owners and nodes are only names."""
    if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r"):
        return "'" + value
    return value


def consistency(service: Service, call: Call) -> dict[str, Any]:
    """Proof that nothing before was changed."""
    old, new, size = call.query.old, call.query.new, service.ledger.head().head.size
    if not old <= new <= size:
        raise BadInput("query.new", f"must lie between {old} and {size}")
    proof = service.ledger.consistency(old, new)
    return {"old": old, "new": new, "proof": [each.hex() for each in proof]}


def own_entries(service: Service, call: Call) -> list[dict[str, Any]]:
    """How the ledger began, and the keys and epochs since: whom to believe, and why."""
    newest = service.ledger.head().head.size
    size = call.query.size or newest
    if size > newest:
        raise BadInput("query.size", f"must be at most {newest}")
    found = [
        entry
        for kind in ("ledger.created", "key.rotated", "ledger.epoch")
        for entry in service.ledger.entries(0, OWN_ENTRIES_MAX, kind=kind)
        if entry.seq <= size
    ]
    return [
        {
            "seq": entry.seq,
            "entry": entry.data.decode(),
            "proof": [each.hex() for each in service.ledger.inclusion(entry.seq, size)],
        }
        for entry in sorted(found, key=lambda each: each.seq)
    ]


def whoami(service: Service, call: Call) -> dict[str, Any]:
    """Who the server takes the caller for."""
    author = call.author
    return {
        "user": author.user,
        "owners": sorted(author.owners),
        "admin": author.admin,
        "anonymous": author is ANONYMOUS,
    }


def health(service: Service, call: Call) -> Any:
    """Alive, and whether what is asked of it can be recorded; 503 when not."""
    plane, failure = service.plane, service.ledger.failure() or service.fault
    if failure:
        return problem(503, "Degraded", f"nothing can be recorded just now: {failure}")
    return {
        "ok": True,
        "version": __version__,
        "size": plane.seq,
        "resolver": plane.config.resolver,
        "faults": dict(plane.faults),
    }


def bind_user(service: Service, call: Call) -> dict[str, Any]:
    """For which owners a user acts."""
    _refuse_token(call)
    user = User(call.path["name"], call.body.owners, call.body.admin)
    return service.access.bind(user, author=call.author.user, dry_run=call.query.dry_run)


def _refuse_token(call: Call) -> None:
    """Revoking a token that leaked must end what leaked: it gives nobody rights that outlive it."""
    if "authorization" in call.request.headers:
        raise Forbidden("a token gives no rights: ask on this machine's socket, without one")


def unbind_user(service: Service, call: Call) -> dict[str, Any]:
    """A user acts for nobody any more."""
    name, dry_run = call.path["name"], call.query.dry_run
    return service.access.unbind(name, author=call.author.user, dry_run=dry_run)


def list_tokens(service: Service, call: Call) -> list[dict[str, Any]]:
    """An admin sees all, a user their own."""
    return service.access.tokens(None if call.author.admin else call.author.user)


def create_token(service: Service, call: Call) -> dict[str, Any]:
    """A token for oneself, asked for on this machine; an admin makes them for anybody."""
    _refuse_token(call)
    user = call.body.user or call.author.user
    if user != call.author.user and not call.author.admin:
        raise Forbidden(f"{call.author.user} may not make tokens for {user!r}")
    if not (call.author.admin or call.author.owners):
        # It would open nothing; and whoever may only look must not fill the ledger.
        raise Forbidden(f"{user} acts for no owner, and needs no token")
    return service.access.create_token(
        user, call.body.note, author=call.author.user, dry_run=call.query.dry_run
    )


def revoke_token(service: Service, call: Call) -> dict[str, Any]:
    """A token opens nothing any more."""
    token = call.path["id"]
    if not call.author.admin and service.access.token_user(token) != call.author.user:
        raise Forbidden(f"token {token!r} is not one of {call.author.user}")
    return service.access.revoke(token, author=call.author.user, dry_run=call.query.dry_run)


def _metrics(service: Service, call: Call) -> Response:
    return Response(render(service.plane), media_type=CONTENT_TYPE)


ENDPOINTS = (
    Endpoint(
        "GET",
        "/v1/budgets",
        "What every envelope grants, uses and has left",
        lambda service, _: service.plane.reports.budgets(),
        list[BudgetRow],
    ),
    Endpoint(
        "GET",
        "/v1/leases",
        "Open leases",
        lambda service, _: service.plane.reports.leases(),
        list[LeaseRow],
    ),
    Endpoint(
        "GET",
        "/v1/sponsors",
        "Envelopes that lend to an owner",
        lambda service, call: service.plane.reports.sponsors(call.query.owner, call.query.flavor),
        list[SponsorRow],
        SponsorsQuery,
    ),
    Endpoint(
        "GET",
        "/v1/owes",
        "Who owes whom",
        lambda service, _: service.plane.reports.owes(),
        list[OwesRow],
    ),
    Endpoint(
        "GET",
        "/v1/report",
        "GPU-hours for chargeback, and idle devices",
        report,
        list[ReportRow],
        ReportQuery,
        errors=(409,),
        also=("text/csv",),
    ),
    Endpoint(
        "GET",
        "/v1/head",
        "The signed head of the ledger",
        lambda service, _: service.ledger.head().as_document(),
        HeadDocument,
    ),
    Endpoint(
        "GET",
        "/v1/consistency",
        "Proof that the past was not changed",
        consistency,
        Consistency,
        ConsistencyQuery,
    ),
    Endpoint(
        "GET",
        "/v1/ledger",
        "The ledger's beginning, keys and epochs, with proofs",
        own_entries,
        list[OwnEntry],
        EntriesQuery,
    ),
    Endpoint("GET", "/v1/whoami", "Who the server takes the caller for", whoami, WhoAmI),
    Endpoint(
        "GET",
        "/v1/users",
        "Users and their owners",
        lambda service, _: service.access.users(),
        list[UserRow],
        needs="admin",
    ),
    Endpoint(
        "PUT",
        "/v1/users/{name}",
        "Say for which owners a user acts",
        bind_user,
        UserRow,
        DryRunQuery,
        UserBody,
        "admin",
    ),
    Endpoint(
        "DELETE",
        "/v1/users/{name}",
        "Forget a user",
        unbind_user,
        UserRow,
        DryRunQuery,
        needs="admin",
    ),
    Endpoint(
        "GET",
        "/v1/tokens",
        "Tokens, without their secrets",
        list_tokens,
        list[TokenRow],
        needs="user",
    ),
    Endpoint(
        "POST", "/v1/tokens", "Make a token", create_token, NewToken, DryRunQuery, TokenBody, "user"
    ),
    Endpoint(
        "DELETE",
        "/v1/tokens/{id}",
        "Revoke a token",
        revoke_token,
        TokenRow,
        DryRunQuery,
        needs="user",
        errors=(409,),
    ),
    Endpoint("GET", "/healthz", "Alive, and able to record", health, Health),
    Endpoint("GET", "/metrics", "Metrics for Prometheus", _metrics, str, media="text/plain"),
)
