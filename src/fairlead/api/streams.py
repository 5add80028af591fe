"""Replies that go on: events as they happen, and the output of runs."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import closing
from typing import Any

import msgspec
from starlette.concurrency import iterate_in_threadpool, run_in_threadpool
from starlette.responses import Response, StreamingResponse

from fairlead.api.endpoint import Call, Endpoint
from fairlead.api.gate import Unauthenticated
from fairlead.api.objects import untold
from fairlead.api.output import Output
from fairlead.api.queries import EventsQuery, LogsQuery, WatchQuery
from fairlead.api.service import Service
from fairlead.api.shapes import Event, Events
from fairlead.engine.gpu import Author, Forbidden, NotFound, job_prefix
from fairlead.schema.border import BadInput

BATCH = 200
ALIVE_S = 15  # a line now and then finds out that nobody listens any more
POLL_S = 0.2


async def events(service: Service, call: Call) -> Response:
    """Events after a number; with `wait_s`, as soon as there are some."""
    query = call.query
    if query.wait_s:
        await service.bell.above(query.after, query.wait_s)
    found = await run_in_threadpool(_read, service, call.author, query.after, query.limit)
    following = found[-1]["seq"] if found else query.after
    return _json({"items": found, "next": following})


async def watch(service: Service, call: Call) -> Response:
    """Events as they happen: server-sent events if the caller accepts those, else JSON lines."""
    sse = "text/event-stream" in call.request.headers.get("accept", "")
    after = service.bell.seq if call.query.after is None else call.query.after
    # A browser that was cut off asks for the same address, and says what it heard last.
    after = _resumed(call.request.headers.get("last-event-id"), after)
    media = "text/event-stream" if sse else "application/x-ndjson"
    lines = _lines(service, call.author, after, call.query.limit, sse=sse)
    return StreamingResponse(lines, media_type=media, headers={"Cache-Control": "no-store"})


def _resumed(given: str | None, otherwise: int) -> int:
    """Where a browser that was cut off goes on."""
    if given is None:
        return otherwise
    if not (given.isascii() and given.isdigit() and len(given) < 16):
        raise BadInput("headers.last-event-id", "must be the number of an event")
    return int(given)


def _read(service: Service, author: Author, after: int, limit: int) -> list[dict[str, Any]]:
    """Events without what only the server, or those who act for the owner, need of them."""
    found = service.plane.events.read(after, limit)
    for event in found:
        body, reason = event["body"], event["body"].get("exit_reason")
        body.pop("digest", None)
        if reason is not None and not author.may_act_for(event["owner"] or ""):
            event["message"] = body["message"] = untold(event["message"], reason)
            body["exit_reason"] = None
    return found


async def _lines(
    service: Service, author: Author, after: int, limit: int | None, *, sse: bool
) -> AsyncIterator[bytes]:
    left = limit
    yield b": fairlead\n\n" if sse else b""
    while not service.bell.closed:
        found = await run_in_threadpool(_read, service, author, after, BATCH)
        for event in found[:left]:
            after = event["seq"]
            text = msgspec.json.encode(event)
            # Without a name: a page then hears of every kind, also of those it never heard of.
            yield b"id: %d\ndata: %s\n\n" % (after, text) if sse else text + b"\n"
        if left is not None:
            left -= len(found[:left])
            if not left:
                return
        if len(found) < BATCH and not await service.bell.above(after, ALIVE_S):
            yield b": alive\n\n" if sse else b"\n"


async def logs(service: Service, call: Call) -> Response:
    """What a run wrote; for those who act for its owner."""
    name = call.path["name"]
    found = await run_in_threadpool(service.plane.objects.get, "Run", name)
    if found is None:
        raise NotFound("Run", name)
    owner = found["spec"]["owner"]
    if not call.author.may_act_for(owner):
        raise Forbidden(f"{call.author.user} may not read the output of {name!r}")
    lines = _output(service, call, found)
    return StreamingResponse(lines, media_type="text/plain", headers={"Cache-Control": "no-store"})


async def _output(service: Service, call: Call, run: dict[str, Any]) -> AsyncIterator[bytes]:
    query: LogsQuery = call.query
    name, uid, owner = run["metadata"]["name"], run["metadata"]["uid"], run["spec"]["owner"]
    yield b""
    # Of this run alone: one that had the name before may have been somebody else's.
    jobs = job_prefix(name, uid)
    with closing(Output(lambda: service.log_parts(name, jobs), query.tail)) as reader:
        while True:
            # Asked before reading: what was written before it ended is then surely read.
            over = not query.follow or await run_in_threadpool(_ended, service, name, uid)
            async for chunk in iterate_in_threadpool(reader.chunks()):
                yield chunk
            if over or service.bell.closed or not _may_still_read(call, owner):
                return
            await asyncio.sleep(POLL_S)


def _may_still_read(call: Call, owner: str) -> bool:
    """A token that was revoked, or a user that was unbound, hears nothing more."""
    try:
        return call.again().may_act_for(owner)
    except (Unauthenticated, Forbidden):
        return False


def _ended(service: Service, name: str, uid: str) -> bool:
    found = service.plane.objects.get("Run", name)
    if found is None or found["metadata"]["uid"] != uid:
        return True
    return found["status"]["phase"] in ("Completed", "Failed")


def _json(value: Any) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")


def _unused(service: Service, call: Call) -> None:
    raise AssertionError("a stream answers itself")


ENDPOINTS = (
    Endpoint(
        "GET",
        "/v1/events",
        "What happened after a number; waits if asked to",
        _unused,
        Events,
        EventsQuery,
        stream=events,
    ),
    Endpoint(
        "GET",
        "/v1/watch",
        "What happens: server-sent events, or a line of JSON for each",
        _unused,
        Event,
        WatchQuery,
        stream=watch,
        media="application/x-ndjson",
        also=("text/event-stream",),
    ),
    Endpoint(
        "GET",
        "/v1/runs/{name}/logs",
        "What a run wrote",
        _unused,
        str,
        LogsQuery,
        needs="user",
        stream=logs,
        media="text/plain",
    ),
)
