"""Lists that are paged and filtered here, for pages and clients with many runs."""

from collections.abc import Iterator
from typing import Any

from fairlead.api import listing_shapes as shapes
from fairlead.api.endpoint import Call, Routes
from fairlead.api.feed import redact, visible_event
from fairlead.api.reports import entries_of
from fairlead.api.service import Service
from fairlead.core.gpu.usage import DAY_MS
from fairlead.engine.gpu import Author
from fairlead.engine.gpu.burndown import BurnDownRow
from fairlead.engine.gpu.device_map import NodeFilter, NodePage, Timeline
from fairlead.engine.gpu.entries import RunsUsed
from fairlead.engine.gpu.listings import ExitReasons, QueuePage, RunFilter, RunPage, RunRow
from fairlead.engine.gpu.status import PHASES
from fairlead.engine.gpu.utilisation import UseReading
from fairlead.schema.border import BadInput
from fairlead.schema.times import format_time, parse_now

routes = Routes()
TIMELINE_MS_MAX = 31 * DAY_MS
USED_MS = 2 * DAY_MS
Values = dict[str, Any]


@routes("GET /v1/runs", RunPage, shapes.RunsQuery)
def runs(service: Service, call: Call) -> RunPage:
    """List runs by page, filtered, with counts per phase."""
    query: shapes.RunsQuery = call.query
    phases = frozenset(filter(None, query.phase.split(",")))
    if unknown := sorted(phases.difference(PHASES)):
        raise BadInput("query.phase", f"must be of {', '.join(PHASES)}, got {unknown[0]!r}")
    fold = query.ended == "fold"
    wanted = RunFilter(phases, query.owner, query.flavor, query.text, fold)
    page, exit_reasons = service.plane.listings.runs(wanted, query.limit, query.cursor)
    _hide(call.author, page.items, exit_reasons)
    return page


@routes("GET /v1/queue", QueuePage, shapes.QueueQuery)
def queue(service: Service, call: Call) -> QueuePage:
    """List waiting runs by page, in the order of the queue."""
    page, exit_reasons = service.plane.listings.queue(call.query.limit, call.query.cursor)
    _hide(call.author, page.items, exit_reasons)
    return page


def _hide(author: Author, rows: list[RunRow], exit_reasons: ExitReasons) -> None:
    """Take out why commands did not start, where the author does not act for their owner."""
    for row in rows:
        if not author.may_see(row.name, row.owner):
            row.message = redact(row.message, exit_reasons[row.name])


def _nodes(query: shapes.NodesQuery) -> NodeFilter:
    return NodeFilter(query.flavor, query.text, query.limit, query.cursor)


@routes("GET /v1/devices", NodePage, shapes.NodesQuery)
def devices(service: Service, call: Call) -> NodePage:
    """List nodes by page, with what each device does."""
    return service.plane.device_map.devices(_nodes(call.query))


@routes("GET /v1/timeline", Timeline, shapes.TimelineQuery)
def timeline(service: Service, call: Call) -> Timeline:
    """Show leases over time by node, reservations, and expected starts."""
    query: shapes.TimelineQuery = call.query
    now_ms = service.now_ms()
    since_ms = now_ms - DAY_MS if query.since is None else parse_now(query.since, "query.since")
    until_ms = now_ms + DAY_MS if query.until is None else parse_now(query.until, "query.until")
    if not since_ms < until_ms <= since_ms + TIMELINE_MS_MAX:
        days = TIMELINE_MS_MAX // DAY_MS
        raise BadInput("query.until", f"must be after `since`, by at most {days} days")
    return service.plane.device_map.timeline(since_ms, until_ms, _nodes(query))


@routes("GET /v1/burndown", list[BurnDownRow], shapes.BurnDownQuery)
def burn_down(service: Service, call: Call) -> list[BurnDownRow]:
    """Show how the hours of each envelope go down over its period."""
    return service.plane.burn_down.series(call.query.budget)


@routes("GET /v1/runs/{name}/history", shapes.RunHistoryPage, shapes.HistoryQuery)
def history(service: Service, call: Call) -> Values:
    """Show attempts, events and utilisation of a run."""
    name, query = call.path["name"], call.query
    found = service.plane.history.of(name, query.limit, query.cursor)
    first = found.use[0].time if found.use else None
    earlier = [row for row in _recorded_use(service, name) if first is None or row.time < first]
    events = [visible_event(event, call.author) for event in found.events]
    return {**found._asdict(), "events": events, "use": [*earlier, *found.use]}


def _recorded_use(service: Service, run: str) -> Iterator[UseReading]:
    """Means of what was recorded in the last two days, up to the newest start."""
    attempts = service.plane.objects.get("Run", run)
    started = None if attempts is None else attempts["status"]["startTime"]
    if started is None:
        return
    since_ms = max(service.now_ms() - USED_MS, parse_now(started))
    for entry, body in entries_of(service.ledger, RunsUsed, since_ms):
        rows = [row for row in body.rows if row.run == run]
        read_ms = sum(row.read_ms for row in rows)
        if read_ms:
            busy_ms = sum(row.busy_ms for row in rows)
            percent = round(100 * busy_ms / read_ms, 1)
            yield UseReading(format_time(entry.time_ms), percent, None, minutes=15)
