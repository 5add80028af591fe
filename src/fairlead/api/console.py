"""The output of a run from a known byte on, and what its owner types.

Each reply says where the next one continues (`Fairlead-Job`, `Fairlead-Next`), so a client reads on
where it was after a restart of the control plane, without a byte lost or repeated. What is typed is
not recorded: it may be a password.
"""

import asyncio
import base64
import binascii
from collections import deque
from contextlib import ExitStack
from typing import BinaryIO, NamedTuple

import msgspec
from starlette.responses import Response

from fairlead.api.endpoint import Call, Routes
from fairlead.api.objects import found
from fairlead.api.service import Console, Service
from fairlead.api.shapes import KeyboardBody, OutputQuery, Typed
from fairlead.api.streams import CHUNK, has_ended, seek_tail
from fairlead.core.invariant import known
from fairlead.engine.gpu import Forbidden, NotFound, Refused, job_prefix
from fairlead.ports.executor import JobOutput, Keyboard
from fairlead.schema.border import BadInput

routes = Routes()
READ_MAX = 2**20
POLL_S, TERMINAL_POLL_S = 0.2, 0.03
_LOOKS = 10  # at files that are renamed while they are opened


class _Piece(NamedTuple):
    job: str
    next: int
    data: bytes


async def _run_of(service: Service, call: Call) -> tuple[dict[str, object], Console]:
    run = await service.work_for(call.account, found, service, "Run", call.path["name"])
    name = call.path["name"]
    if not call.author.may_see(name, run["spec"]["owner"]):
        raise Forbidden(f"{call.author.user} may not read or type into run {name!r}")
    if service.console is None:
        raise Refused("NoConsole", "the runs of this control plane are pods: see `kubectl logs`")
    return run, service.console


@routes(
    "GET /v1/runs/{name}/output",
    str,
    OutputQuery,
    needs="user",
    own_run=True,
    media="text/plain",
    errors=(409,),
)
async def output(service: Service, call: Call) -> Response:
    """Read the output of a run from a known byte on."""
    run, console = await _run_of(service, call)
    query: OutputQuery = call.query
    name, meta, spec = call.path["name"], dict(run["metadata"]), dict(run["spec"])  # type: ignore[call-overload]  # objects
    loop, who = asyncio.get_running_loop(), call.account
    deadline = loop.time() + query.wait_s
    while True:
        # Before reading, so that everything written before the end is read.
        ended = query.previous or await service.work_for(who, has_ended, service, name, meta["uid"])
        prefix = job_prefix(name, meta["uid"])
        piece = await service.work_for(who, read_output, console, name, prefix, query)
        if piece.data or ended or loop.time() >= deadline or service.signal.closed:
            break
        await asyncio.sleep(TERMINAL_POLL_S if spec.get("terminal") else POLL_S)
    headers = {
        "Fairlead-Job": piece.job,
        "Fairlead-Next": str(piece.next),
        "Fairlead-Ended": "true" if ended and not piece.data else "false",
    }
    return Response(piece.data, media_type="text/plain", headers=headers)


@routes("POST /v1/runs/{name}/keyboard", Typed, body=KeyboardBody, needs="user", errors=(409,))
async def keyboard(service: Service, call: Call) -> Response:
    """Type into a run's terminal, interrupt a run, or resize its terminal."""
    _, console = await _run_of(service, call)
    body: KeyboardBody = call.body
    try:
        text = base64.b64decode(body.text, validate=True)
    except (binascii.Error, ValueError):
        raise BadInput("text", "must be base64") from None
    if (body.rows is None) != (body.columns is None):
        raise BadInput("rows", "must be given together with columns")
    size = None if body.rows is None or body.columns is None else (body.rows, body.columns)
    keys, name = Keyboard(text, body.interrupt, size), call.path["name"]
    taken = await service.work_for(call.account, console.press, name, keys)
    if taken is None:
        raise Refused("NotRunning", f"run {name!r} is not running")
    return Response(msgspec.json.encode(Typed(taken)), media_type="application/json")


def read_output(console: Console, run: str, prefix: str, query: OutputQuery) -> _Piece:
    """The next bytes. A job that is not the newest any more is read to its end first."""
    newest = console.newest_job(run)
    if not newest.startswith(prefix):
        newest = ""  # of an earlier run of the same name, perhaps another owner's
    job, after = query.job or newest, query.after
    if query.job is not None and not query.job.startswith(prefix):
        raise BadInput("query.job", "must be a job of this run")
    if query.previous and query.job is None:
        base, _, attempt = newest.rpartition(".")
        job = f"{base}.{int(attempt) - 1}" if newest else ""
        if not newest or console.output(job) is None:
            raise NotFound("output of an earlier start of run", run)
    piece = _read_job(console, job, after, query.tail if query.job is None else None)
    if piece.data or job == newest or query.previous:
        return piece
    return _read_job(console, newest, 0, None)


def _read_job(console: Console, job: str, after: int, tail: int | None) -> _Piece:
    with ExitStack() as stack:
        kept, files = _open(console, job, stack)
        first, sizes = 0 if kept is None else kept.dropped, [file.seek(0, 2) for file in files]
        if tail is not None and files:
            left = deque(files)
            seek_tail(left, tail)
            skipped = len(files) - len(left)
            after = first + sum(sizes[:skipped]) + left[0].tell()
        at, data, begin = max(after, first), b"", first
        for file, size in zip(files, sizes, strict=True):
            if at + len(data) < begin + size and len(data) < READ_MAX:
                file.seek(at + len(data) - begin)
                data += file.read(min(READ_MAX - len(data), max(CHUNK, size)))
            begin += size
        return _Piece(job, at + len(data), data)


def _open(console: Console, job: str, stack: ExitStack) -> tuple[JobOutput | None, list[BinaryIO]]:
    """The parts of a job's output as they were at one moment."""
    for _ in range(_LOOKS):
        kept, files = console.output(job) if job else None, list[BinaryIO]()
        try:
            parts = () if kept is None else kept.parts
            files = [stack.enter_context(part.open("rb")) for part in parts]
        except FileNotFoundError:
            continue
        if kept is None or console.output(job) == kept:
            return kept, files
    return known(kept, "a job that was looked up"), files
