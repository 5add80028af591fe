"""Reports of agents as they come: one line for each node or group that changed, as it is now.

A reader that is slow misses nothing that it could still use. It gets the newest state of each once,
and what lies between is in the series (`/v1/nodes/{name}/series`), which are read by time.
"""

import asyncio
import re
from collections.abc import AsyncIterator

import msgspec
from starlette.responses import Response

from fairlead.api import fleet_shapes as shapes
from fairlead.api.endpoint import Call, Routes
from fairlead.api.feed import ReportLine, ReportPlace, SharedReads
from fairlead.api.fleet import cpu_row, group_row
from fairlead.api.fleet_history import Subject
from fairlead.api.service import Service
from fairlead.api.streams import ALIVE_S, streamed
from fairlead.schema.border import BadInput

routes = Routes()
PACE_S = 0.25
"""Agents report when they want. What comes within this is told together."""
_ID = re.compile(r"(?P<life>[0-9a-f]{8})\.(?P<version>\d{1,15})")


@routes(
    "GET /v1/reports",
    shapes.ReportNews,
    shapes.ReportsQuery,
    media="application/x-ndjson",
    also=("text/event-stream",),
    errors=(503,),
)
async def follow_reports(service: Service, call: Call) -> Response:
    """Stream what agents report: everything at first, then every change."""
    sse = "text/event-stream" in call.request.headers.get("accept", "")
    last = call.request.headers.get("last-event-id")
    place = ReportPlace(call.query.kind, call.query.name, _resumed(service.fleet.life, last))
    return streamed(service, call, _lines(service, place, call.query.limit, sse=sse), sse=sse)


def _resumed(life: str, last: str | None) -> int:
    """The version to go on from; 0, which is everything, after a restart of the control plane."""
    if last is None:
        return 0
    found = _ID.fullmatch(last)
    if found is None:
        raise BadInput("headers.last-event-id", "must be the id of a report")
    return int(found["version"]) if found["life"] == life else 0


def report_feed(service: Service) -> SharedReads[ReportPlace, ReportLine]:
    """Lines after a change, made once for all readers that are there at the moment: what a node was
    before would be told to the next one as if it were now."""

    def read(place: ReportPlace) -> list[ReportLine]:
        version, found = service.fleet.news(*place)
        if version == place.version:
            return []
        whole = place.kind is not None
        lines = [ReportLine(at, _text(service, subject, whole=whole)) for at, subject in found]
        return [*lines, ReportLine(version, b"")]

    return SharedReads(read, keep=False)


def _text(service: Service, subject: Subject, *, whole: bool) -> bytes:
    kind, name, agent = subject.key
    cpu = cpu_row(service, subject) if whole and kind == "node" else None
    shown = whole and kind == "group"
    group = shapes.GroupRow(**group_row(service, subject)) if shown else None
    return msgspec.json.encode(shapes.ReportNews(kind, name, agent, cpu, group))


async def _lines(
    service: Service, place: ReportPlace, limit: int | None, *, sse: bool
) -> AsyncIterator[bytes]:
    left, lane, life = limit, service.reported.lane(), service.fleet.life.encode()
    yield b": fairlead\n\n" if sse else b""
    while not service.reported.closed:
        lines = await service.report_feed.at(place)
        if lines:
            place = place._replace(version=lines[-1].version)
        shown = lines[:-1][:left]
        if sse:
            yield b"".join(b"id: %s.%d\ndata: %s\n\n" % (life, *line) for line in shown)
        else:
            yield b"".join(line.text + b"\n" for line in shown)
        if left is not None:
            left -= len(shown)
            if not left:
                return
        if await lane.above(place.version, ALIVE_S):
            await asyncio.sleep(PACE_S)
        else:
            yield b": alive\n\n" if sse else b"\n"
