"""Replies that go on: events as they happen, and the output of runs."""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response, StreamingResponse

from fairlead.api.endpoint import Call, Endpoint
from fairlead.api.service import Service
from fairlead.api.shapes import Event, Events, EventsQuery, LogsQuery, WatchQuery
from fairlead.engine.gpu import Forbidden, NotFound
from fairlead.schema.border import BadInput

BATCH = 200
ALIVE_S = 15  # a line now and then finds out that nobody listens any more
POLL_S = 0.2
CHUNK = 64 * 1024


async def events(service: Service, call: Call) -> Response:
    """Events after a number; with `wait_s`, as soon as there are some."""
    query = call.query
    if query.wait_s:
        await service.bell.above(query.after, query.wait_s)
    found = await run_in_threadpool(_read, service, query.after, query.limit)
    following = found[-1]["seq"] if found else query.after
    return _json({"items": found, "next": following})


async def watch(service: Service, call: Call) -> Response:
    """Events as they happen: server-sent events if the caller accepts those, else JSON lines."""
    sse = "text/event-stream" in call.request.headers.get("accept", "")
    after = call.query.after
    if after is None:
        after = _resumed(call.request.headers.get("last-event-id"), service.bell.seq)
    media = "text/event-stream" if sse else "application/x-ndjson"
    lines = _lines(service, after, call.query.limit, sse=sse)
    return StreamingResponse(lines, media_type=media, headers={"Cache-Control": "no-store"})


def _resumed(given: str | None, newest: int) -> int:
    """Where a browser that was cut off goes on."""
    if given is None:
        return newest
    if not (given.isascii() and given.isdigit() and len(given) < 16):
        raise BadInput("headers.last-event-id", "must be the number of an event")
    return int(given)


def _read(service: Service, after: int, limit: int) -> list[dict[str, Any]]:
    """Events without what only the server needs of them."""
    found = service.plane.events(after, limit)
    for event in found:
        event["body"].pop("digest", None)
    return found


async def _lines(
    service: Service, after: int, limit: int | None, *, sse: bool
) -> AsyncIterator[bytes]:
    left = limit
    yield b": fairlead\n\n" if sse else b""
    while not service.bell.closed:
        found = await run_in_threadpool(_read, service, after, BATCH)
        for event in found[:left]:
            after = event["seq"]
            text = msgspec.json.encode(event)
            yield b"id: %d\nevent: %s\ndata: %s\n\n" % (
                after, event["kind"].encode(), text,
            ) if sse else text + b"\n"  # fmt: skip
        if left is not None:
            left -= len(found[:left])
            if not left:
                return
        if len(found) < BATCH and not await service.bell.above(after, ALIVE_S):
            yield b": alive\n\n" if sse else b"\n"


async def logs(service: Service, call: Call) -> Response:
    """What a run wrote; for those who act for its owner."""
    name = call.path["name"]
    found = await run_in_threadpool(service.plane.get, "Run", name)
    if found is None:
        raise NotFound("Run", name)
    if not call.author.may_act_for(found["spec"]["owner"]):
        raise Forbidden(f"{call.author.user} may not read the output of {name!r}")
    lines = _output(service, name, call.query)
    return StreamingResponse(lines, media_type="text/plain", headers={"Cache-Control": "no-store"})


async def _output(service: Service, name: str, query: LogsQuery) -> AsyncIterator[bytes]:
    reader = _Output(service, name, query.tail)
    yield b""
    while True:
        # Asked before reading: what was written before it ended is then surely read.
        over = not query.follow or await run_in_threadpool(_ended, service, name)
        for chunk in await run_in_threadpool(lambda: list(reader.chunks())):
            yield chunk
        if over or service.bell.closed:
            reader.close()
            return
        await asyncio.sleep(POLL_S)


def _ended(service: Service, name: str) -> bool:
    found = service.plane.get("Run", name)
    return found is None or found["status"]["phase"] in ("Completed", "Failed")


class _Output:
    """Reads a run's output; goes on with the next file when the old one was put aside."""

    def __init__(self, service: Service, name: str, tail: int | None) -> None:
        self._service, self._name, self._tail = service, name, tail
        self._file: BinaryIO | None = None

    def chunks(self) -> Iterator[bytes]:
        """What is new."""
        while True:
            path = self._service.log_path(self._name)
            if self._file is None:
                self._file = _open(path, self._tail)
                self._tail = None
            if self._file is None:
                return
            while data := self._file.read(CHUNK):
                yield data
            if not _replaced(path, self._file):
                return
            self.close()

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            self._file.close()
            self._file = None


def _open(path: Path | None, tail: int | None) -> BinaryIO | None:
    try:
        file = path.open("rb") if path is not None else None
    except FileNotFoundError:
        return None
    if file is not None and tail is not None:
        _seek_tail(file, tail)
    return file


def _seek_tail(file: BinaryIO, lines: int) -> None:
    """To the beginning of the last lines, from behind."""
    end = at = file.seek(0, os.SEEK_END)
    data = b""
    while at > 0 and data.count(b"\n") <= lines:
        step = min(CHUNK, at)
        at = file.seek(at - step)
        data = file.read(step) + data
    parts = data.splitlines(keepends=True)
    kept = parts[-lines:] if lines else []
    file.seek(end - sum(map(len, kept)))


def _replaced(path: Path | None, file: BinaryIO) -> bool:
    try:
        return path is not None and path.stat().st_ino != os.fstat(file.fileno()).st_ino
    except FileNotFoundError:
        return False


def _json(value: Any) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")


def _unused(service: Service, call: Call) -> None:
    raise AssertionError("a stream answers itself")


ENDPOINTS = (
    Endpoint("GET", "/v1/events", "What happened after a number; waits if asked to", _unused,
             Events, EventsQuery, stream=events),
    Endpoint("GET", "/v1/watch", "What happens: server-sent events, or a line of JSON for each",
             _unused, Event, WatchQuery, stream=watch, media="application/x-ndjson"),
    Endpoint("GET", "/v1/runs/{name}/logs", "What a run wrote", _unused, str, LogsQuery,
             needs="user", stream=logs, media="text/plain"),
)  # fmt: skip
