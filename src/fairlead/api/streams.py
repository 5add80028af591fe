"""Streams: events as they happen, and the output of runs while it grows."""

import asyncio
import os
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
from starlette.responses import Response, StreamingResponse

from fairlead.api.access import Unauthenticated
from fairlead.api.endpoint import Call, Routes
from fairlead.api.feed import BATCH, visible_event
from fairlead.api.objects import found
from fairlead.api.service import GATHER_S, Service
from fairlead.api.shapes import Event, Events, EventsQuery, LogsQuery, WatchQuery
from fairlead.engine.gpu import Author, Forbidden, job_prefix
from fairlead.schema.border import BadInput

routes = Routes()
ALIVE_S = 15  # an empty line detects a client that is gone
POLL_S = 0.2
CHUNK = 64 * 1024
_LOOKS = 10  # at files that are renamed while they are opened


@routes("GET /v1/events", Events, EventsQuery)
async def events(service: Service, call: Call) -> Response:
    """List events after a number; with `wait_s`, as soon as there are some."""
    query = call.query
    if query.wait_s:
        await service.signal.above(query.after, query.wait_s)
    items = await service.work_for(
        call.account, read_events, service, call.author, query.after, query.limit
    )
    following = items[-1]["seq"] if items else query.after
    body = msgspec.json.encode({"items": items, "next": following})
    return Response(body, media_type="application/json")


@routes(
    "GET /v1/watch", Event, WatchQuery, media="application/x-ndjson", also=("text/event-stream",)
)
async def watch(service: Service, call: Call) -> Response:
    """Stream events as server-sent events or, by default, as JSON lines."""
    sse = "text/event-stream" in call.request.headers.get("accept", "")
    after = service.signal.seq if call.query.after is None else call.query.after
    # A browser that reconnects sends the number of its last event.
    after = _resumed(call.request.headers.get("last-event-id"), after)
    lines = _lines(service, call.author, after, call.query.limit, sse=sse)
    return streamed(service, call, lines, sse=sse)


def streamed(service: Service, call: Call, lines: AsyncIterator[bytes], *, sse: bool) -> Response:
    """A reply that does not end by itself. Over TCP a peer has so many at a time: they would take
    the connections by which it only asks."""
    media = "text/event-stream" if sse else "application/x-ndjson"
    if call.request.state.peer is None:
        lines = service.streams.count(lines, call.request.state.place)
    return StreamingResponse(lines, media_type=media, headers={"Cache-Control": "no-store"})


def _resumed(last: str | None, otherwise: int) -> int:
    if last is None:
        return otherwise
    if not (last.isascii() and last.isdigit() and len(last) < 16):
        raise BadInput("headers.last-event-id", "must be the number of an event")
    return int(last)


def read_events(service: Service, author: Author, after: int, limit: int) -> list[dict[str, Any]]:
    """Events without token digests, and without details that only their owner may see."""
    return [visible_event(event, author) for event in service.plane.events.read(after, limit)]


async def _lines(
    service: Service, author: Author, after: int, limit: int | None, *, sse: bool
) -> AsyncIterator[bytes]:
    left, lane = limit, service.signal.lane()
    yield b": fairlead\n\n" if sse else b""
    while not service.signal.closed:
        batch = await service.feed.at(after)
        shown = batch[:left]
        if shown:
            after = shown[-1].seq
            # Without an event name, so that a page gets every kind, also unknown ones.
            texts = [(event.seq, event.text(author)) for event in shown]
            if sse:
                yield b"".join(b"id: %d\ndata: %s\n\n" % pair for pair in texts)
            else:
                yield b"".join(text + b"\n" for _, text in texts)
        if left is not None:
            left -= len(shown)
            if not left:
                return
        if len(batch) == BATCH:
            continue
        if not await lane.above(after, ALIVE_S):
            yield b": alive\n\n" if sse else b"\n"
        elif not batch:
            await asyncio.sleep(GATHER_S)  # it was there, and could not be read yet


@routes("GET /v1/runs/{name}/logs", str, LogsQuery, needs="user", own_run=True, media="text/plain")
async def logs(service: Service, call: Call) -> Response:
    """Stream the output of a run, to users that act for its owner."""
    name = call.path["name"]
    run = await service.work_for(call.account, found, service, "Run", name)
    if not call.author.may_see(name, run["spec"]["owner"]):
        raise Forbidden(f"{call.author.user} may not read the output of {name!r}")
    lines = _output(service, call, run)
    return StreamingResponse(lines, media_type="text/plain", headers={"Cache-Control": "no-store"})


async def _output(service: Service, call: Call, run: dict[str, Any]) -> AsyncIterator[bytes]:
    query: LogsQuery = call.query
    name, uid, owner = run["metadata"]["name"], run["metadata"]["uid"], run["spec"]["owner"]
    yield b""
    # Of this run alone: an earlier run of the same name may have had another owner.
    jobs, who = job_prefix(name, uid), call.account
    with closing(OutputReader(lambda: service.log_parts(name, jobs), query.tail)) as reader:
        while True:
            # Before reading, so that everything written before the end is read.
            over = not query.follow or await service.work_for(who, has_ended, service, name, uid)
            chunks = reader.chunks()
            while (chunk := await service.work_for(who, next, chunks, b"")) != b"":
                yield chunk
            if over or service.signal.closed or not _may_still_read(call, name, owner):
                return
            await asyncio.sleep(POLL_S)


def _may_still_read(call: Call, run: str, owner: str) -> bool:
    """Whether the token is not revoked and the user still acts for the owner."""
    try:
        return call.authenticate().may_see(run, owner)
    except (Unauthenticated, Forbidden):
        return False


def has_ended(service: Service, name: str, uid: str) -> bool:
    run = service.plane.objects.get("Run", name)
    over = ("Completed", "Failed")
    return run is None or run["metadata"]["uid"] != uid or run["status"]["phase"] in over


# --- the output of a run


class OutputReader:
    """Reads the kept output of a run, or its last lines; then what is new.

    The executor renames a full part, so parts are identified by inode and not by name.
    """

    def __init__(self, parts: Callable[[], Sequence[Path]], tail: int | None) -> None:
        self._parts, self._tail = parts, tail
        self._files: deque[BinaryIO] = deque()

    def chunks(self) -> Iterator[bytes]:
        """What was not read yet. The newest part stays open: it may grow while it is renamed."""
        while self._look():
            while True:
                while data := self._files[0].read(CHUNK):
                    yield data
                if len(self._files) == 1:
                    break
                self._files.popleft().close()
        if self._files:
            yield from iter(lambda: self._files[0].read(CHUNK), b"")

    def close(self) -> None:
        while self._files:
            self._files.pop().close()

    def _look(self) -> bool:
        """Open the parts after the newest one that is open; returns whether there are any."""
        fresh = deque(self._open())
        if self._files:
            held, *names = _identities([self._files[-1], *fresh])
            for _ in range(names.index(held) + 1 if held in names else 0):
                fresh.popleft().close()
        elif self._tail is not None:
            seek_tail(fresh, self._tail)
        self._tail = None  # only the first time
        self._files.extend(fresh)
        return bool(fresh)

    def _open(self) -> list[BinaryIO]:
        files: list[BinaryIO] = []
        for _ in range(_LOOKS):
            for path in self._parts():
                with suppress(FileNotFoundError):
                    files.append(path.open("rb"))
            if _identities(self._parts()) == _identities(files):
                break
            while files:
                files.pop().close()
        return files


def _identities(parts: Iterable[BinaryIO | Path]) -> list[tuple[int, int]]:
    identities = []
    for part in parts:
        with suppress(FileNotFoundError):
            status = os.stat(part if isinstance(part, Path) else part.fileno())
            identities.append((status.st_dev, status.st_ino))
    return identities


def seek_tail(files: deque[BinaryIO], lines: int) -> None:
    """Seek to the last lines, from the end; earlier parts are closed."""
    left, kept = lines, list[BinaryIO]()
    while files and left > 0:
        kept.append(files.pop())
        left -= _seek_lines(kept[-1], left)
    if not kept and files:  # no old lines, only what comes next
        kept.append(files.pop())
        kept[0].seek(0, os.SEEK_END)
    while files:
        files.pop().close()
    files.extend(reversed(kept))


def _seek_lines(file: BinaryIO, lines: int) -> int:
    """Seek to the last lines of one file; returns how many it has of them. Each piece is looked at
    once and let go: a run may write a line as long as its file."""
    end = at = file.seek(0, os.SEEK_END)
    begun = 0
    while at > 0:
        step = min(CHUNK, at)
        at = file.seek(at - step)
        data = file.read(step)
        # A newline ends a line: the last byte begins none. Progress bars use carriage returns.
        place = end - 1 - at if at + step == end else step
        while (place := data.rfind(b"\n", 0, place)) >= 0:
            begun += 1
            if begun == lines:
                file.seek(at + place + 1)
                return lines
    file.seek(0)
    return begun + (end > 0)
