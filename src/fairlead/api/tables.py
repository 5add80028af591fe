"""Usage tables, the ledger's checkpoint and proofs, users, tokens, health and metrics."""

import csv
import io
from collections.abc import Iterator
from functools import partial
from typing import Any

from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from starlette.responses import Response

from fairlead import __version__
from fairlead.api import shapes
from fairlead.api.access import AGENT, is_user
from fairlead.api.endpoint import ANONYMOUS, Call, Routes, problem
from fairlead.api.reports import idle_rows, period_of, usage_rows
from fairlead.api.service import Service
from fairlead.core.gpu.usage import DAY_MS
from fairlead.engine.gpu import Forbidden
from fairlead.engine.gpu.warnings import similar
from fairlead.schema.border import BadInput
from fairlead.schema.exposition import TableCollector, exposed
from fairlead.schema.metrics import Process
from fairlead.schema.samples import Samples
from fairlead.schema.times import format_duration, parse_now

routes = Routes()
REPORT_DAYS = 30
OWN_ENTRIES_MAX = 10_000
Rows = list[dict[str, Any]]


@routes("GET /v1/budgets", list[shapes.BudgetRow])
def budgets(service: Service, call: Call) -> Rows:
    """List what each envelope grants, uses and has left."""
    return service.plane.reports.budgets()


@routes("GET /v1/leases", list[shapes.LeaseRow])
def leases(service: Service, call: Call) -> Rows:
    """List open leases."""
    return service.plane.reports.leases()


@routes("GET /v1/sponsors", list[shapes.SponsorRow], shapes.SponsorsQuery)
def sponsors(service: Service, call: Call) -> Rows:
    """List envelopes that lend to an owner."""
    return service.plane.reports.sponsors(call.query.owner, call.query.flavor)


@routes("GET /v1/owes", list[shapes.OwesRow])
def owes(service: Service, call: Call) -> Rows:
    """List who owes whom."""
    return service.plane.reports.owes()


@routes(
    "GET /v1/report", list[shapes.ReportRow], shapes.ReportQuery, errors=(409,), also=("text/csv",)
)
def report(service: Service, call: Call) -> Any:
    """Report GPU-hours for chargeback, then idle devices."""
    query: shapes.ReportQuery = call.query
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
    writer = csv.DictWriter(text, fieldnames=list(shapes.ReportRow.__struct_fields__))
    writer.writeheader()
    writer.writerows([{key: _cell(value) for key, value in row.items()} for row in rows])
    return Response(text.getvalue(), media_type="text/csv")


def _cell(value: Any) -> Any:
    """Quote what a spreadsheet would take for a formula; owners and nodes are only names."""
    if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r"):
        return "'" + value
    return value


@routes("GET /v1/head", shapes.HeadDocument)
def head(service: Service, call: Call) -> dict[str, Any]:
    """Show the ledger's checkpoint (signed tree head)."""
    return service.ledger.head().as_document()


@routes("GET /v1/consistency", shapes.Consistency, shapes.ConsistencyQuery)
def consistency(service: Service, call: Call) -> dict[str, Any]:
    """Prove that a larger log continues a smaller one."""
    old, new, size = call.query.old, call.query.new, service.ledger.head().head.size
    if not old <= new <= size:
        raise BadInput("query.new", f"must be between {old} and {size}")
    proof = service.ledger.consistency(old, new)
    return {"old": old, "new": new, "proof": [node.hex() for node in proof]}


@routes("GET /v1/ledger", list[shapes.OwnEntry], shapes.EntriesQuery)
def own_entries(service: Service, call: Call) -> Rows:
    """List the ledger's creation, keys and epochs, with proofs."""
    newest = service.ledger.head().head.size
    size = call.query.size or newest
    if size > newest:
        raise BadInput("query.size", f"must be at most {newest}")
    entries = [
        entry
        for kind in ("ledger.created", "key.rotated", "ledger.epoch")
        for entry in service.ledger.entries(0, OWN_ENTRIES_MAX, kind=kind)
        if entry.seq <= size
    ]
    return [
        {
            "seq": entry.seq,
            "entry": entry.data.decode(),
            "proof": [node.hex() for node in service.ledger.inclusion(entry.seq, size)],
        }
        for entry in sorted(entries, key=lambda entry: entry.seq)
    ]


@routes("GET /v1/whoami", shapes.WhoAmI)
def whoami(service: Service, call: Call) -> dict[str, Any]:
    """Show the caller as the server authenticated it."""
    author = call.author
    return {
        "user": author.user,
        "owners": sorted(author.owners),
        "admin": author.admin,
        "anonymous": author is ANONYMOUS,
        "in_run": author.in_run,
        "run": author.run,
        "session": author.session,
    }


@routes("GET /v1/users", list[shapes.UserRow], needs="admin")
def list_users(service: Service, call: Call) -> list[shapes.UserRow]:
    """List users and their owners."""
    return service.access.users()


@routes(
    "PUT /v1/users/{name}",
    shapes.BoundUser,
    shapes.DryRunQuery,
    body=shapes.UserBody,
    needs="admin",
    grants=True,
)
def bind_user(service: Service, call: Call) -> shapes.BoundUser:
    """Bind a user to owners."""
    user = shapes.UserRow(call.path["name"], call.body.owners, call.body.admin)
    bound = service.access.bind(user, **call.by)
    warnings = list(_unknown(service, bound))
    return shapes.BoundUser(bound.name, bound.owners, bound.admin, warnings)


def _unknown(service: Service, user: shapes.UserRow) -> Iterator[str]:
    """A user of this machine and owners with a budget are bound; others are allowed, for a token
    or for a budget that comes."""
    if not is_user(user.name):
        yield f"this machine has no user {user.name!r}: only a token can act as it"
    owners = {row["owner"] for row in service.plane.reports.budgets()}
    for owner in user.owners:
        if owner not in owners:
            yield f"owner {owner!r} has no budget{similar(owner, owners)}"


@routes("DELETE /v1/users/{name}", shapes.UserRow, shapes.DryRunQuery, needs="admin")
def unbind_user(service: Service, call: Call) -> shapes.UserRow:
    """Remove a user's bindings."""
    return service.access.unbind(call.path["name"], **call.by)


@routes("GET /v1/tokens", list[shapes.TokenRow], needs="user")
def list_tokens(service: Service, call: Call) -> Rows:
    """List the caller's tokens, for an admin all; without secrets."""
    return service.access.tokens(None if call.author.admin else call.author.user)


@routes(
    "POST /v1/tokens",
    shapes.NewToken,
    shapes.DryRunQuery,
    body=shapes.TokenBody,
    needs="user",
    grants=True,
    errors=(409,),
)
def create_token(service: Service, call: Call) -> dict[str, Any]:
    """Create a token for the caller; an admin creates them for any user."""
    body: shapes.TokenBody = call.body
    if body.agent is not None:
        return _create_agent_token(service, call, body.agent)
    if body.groups:
        raise BadInput("groups", "is for an agent's token: name the agent, too")
    user = body.user or call.author.user
    if user != call.author.user and not call.author.admin:
        raise Forbidden(f"{call.author.user} may not create tokens for {user!r}")
    if not (call.author.admin or call.author.owners):
        # It would open nothing, and a user without rights must not fill the ledger.
        raise Forbidden(f"{user} acts for no owner, and needs no token")
    return service.access.create_token(user, call.body.note, **call.by)


def _create_agent_token(service: Service, call: Call, agent: str) -> dict[str, Any]:
    if call.body.user is not None:
        raise BadInput("user", "must be left out: a token is a user's or an agent's")
    if not call.author.admin:
        raise Forbidden(f"{call.author.user} is not an admin: only admins create agents' tokens")
    reports = [f"node/{agent}", *(f"group/{group}" for group in call.body.groups)]
    create = service.access.create_token
    return create(f"{AGENT}{agent}", call.body.note, agent=agent, reports=reports, **call.by)


@routes("DELETE /v1/tokens/{id}", shapes.TokenRow, shapes.DryRunQuery, needs="user", errors=(409,))
def revoke_token(service: Service, call: Call) -> dict[str, Any]:
    """Revoke a token."""
    token = call.path["id"]
    if not call.author.admin and service.access.token(token).user != call.author.user:
        raise Forbidden(f"token {token!r} does not belong to {call.author.user}")
    return service.access.revoke(token, **call.by)


@routes("GET /v1/policy", shapes.PreemptionRules)
def policy(service: Service, call: Call) -> dict[str, Any]:
    """Show the operator's rules: notice, quotas, minimum runtime, cooldown, grace, rates."""
    config = service.plane.config
    rules, quota = config.preemption, config.quota
    return {
        "resolver": config.resolver,
        "minNotice": format_duration(rules.min_notice_ms),
        "maxReservations": rules.max_reservations,
        "minRuntime": format_duration(rules.min_runtime_ms),
        "cooldown": format_duration(rules.cooldown_ms),
        "grace": format_duration(config.grace_ms),
        "maxGrace": format_duration(config.max_grace_ms),
        "maxClockJump": format_duration(config.clock.jump_ms),
        "maxOpenRuns": None if quota is None else quota.max_open_runs,
        "maxManifestBytes": None if quota is None else quota.max_manifest_bytes,
        "maxRequestsPerSecond": service.requests_per_s,
        "ownerWeighting": config.owner_weighting.value,
        "mayResolve": sorted(config.may_resolve),
    }


@routes("GET /v1/clock", shapes.ClockReport)
def clock(service: Service, call: Call) -> dict[str, Any]:
    """Compare the machine's clock with ledger time."""
    return service.plane.clock.report()


@routes(
    "POST /v1/clock",
    shapes.ClockReport,
    shapes.DryRunQuery,
    body=shapes.ClockBody,
    needs="admin",
    errors=(409,),
)
def judge_clock(service: Service, call: Call) -> dict[str, Any]:
    """Accept or reject a jump of the clock; recorded with the caller's name."""
    return service.plane.clock.judge(call.body.judgement, **call.by)


@routes("GET /healthz", shapes.Health, unlimited=True)
def health(service: Service, call: Call) -> Any:
    """Check that the server is alive and can record; 503 if not."""
    plane, failure = service.plane, service.ledger.failure() or service.fault
    if failure:
        return problem(503, "Degraded", f"the ledger cannot be written now: {failure}")
    return {
        "ok": True,
        "version": __version__,
        "size": plane.seq,
        "resolver": plane.config.resolver,
        "faults": dict(plane.faults),
        "demo": service.story is not None,
    }


# --- metrics, computed when they are scraped


def control_plane_samples(service: Service) -> Samples:
    """The control plane's numbers, by metric."""
    plane = service.plane
    faults: Samples = {"fairlead_control_plane_faults": [({}, float(len(plane.faults)))]}
    fleet = service.fleet.samples(service.now_ms())
    return {**plane.reports.metrics(), **plane.measures.samples(), **fleet, **faults}


@routes("GET /metrics", str, media="text/plain")
def metrics(service: Service, call: Call) -> Response:
    """Export metrics for Prometheus."""
    samples = partial(control_plane_samples, service)
    text = exposed(TableCollector(Process.CONTROL_PLANE, samples))
    return Response(text, media_type=CONTENT_TYPE_PLAIN_0_0_4)
