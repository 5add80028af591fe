"""What the control plane and its launcher say to each other: one small format, with bounds.

A frame is its length (4 bytes) and a JSON object of at most `FRAME_BYTES_MAX`. The control plane
asks `{"call": name, "arguments": {...}, "evidence": {...}, "now_ms": ledger time}`; the launcher
answers `{"done": value}` or `{"fault": kind, "message": text}`. Every value is checked for its type
by the side that has more rights. Standard library only.
"""

import json
import socket
import struct
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from fairlead.ports.executor import Exit, Job, Widths

FRAME_BYTES_MAX = 32 * 2**20
"""A manifest has at most 4 MiB, and comes once in its entry and once in the job."""
_LENGTH = struct.Struct("!I")
Document = dict[str, Any]


class BadFrame(Exception):
    """The other side said something that is not in the format; the connection is of no use."""


def pack(document: Document) -> bytes:
    data = json.dumps(document).encode()
    if len(data) > FRAME_BYTES_MAX:
        raise BadFrame(f"a frame has at most {FRAME_BYTES_MAX} bytes, not {len(data)}")
    return _LENGTH.pack(len(data)) + data


def send(channel: socket.socket, document: Document) -> None:
    channel.sendall(pack(document))


def receive(channel: socket.socket) -> Document | None:
    """The next frame; None where the other side is gone."""
    head = _exactly(channel, _LENGTH.size)
    if head is None:
        return None
    (length,) = _LENGTH.unpack(head)
    if length > FRAME_BYTES_MAX:
        raise BadFrame(f"a frame has at most {FRAME_BYTES_MAX} bytes, not {length}")
    data = _exactly(channel, length)
    if data is None:
        return None
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BadFrame(f"not JSON: {type(error).__name__}") from error
    if not isinstance(document, dict):
        raise BadFrame("a frame holds one object")
    return document


def _exactly(channel: socket.socket, count: int) -> bytes | None:
    data = bytearray()
    while len(data) < count:
        try:
            more = channel.recv(min(count - len(data), 2**20))
        except ConnectionResetError:
            return None
        if not more:
            return None
        data += more
    return bytes(data)


# -- values ---------------------------------------------------------------------------------------
# A shape is a type, None, a tuple of shapes (any of them), [shape] or {str: shape} or {name: shape}

_MAYBE_TEXT, _MAYBE_COUNT = (str, None), (int, None)
JOB: Document = {
    "id": str,
    "run": str,
    "owner": str,
    "command": [str],
    "devices": [str],
    "leases": [str],
    "env": {str: str},
    "secret_env": {str: str},
    "user": _MAYBE_TEXT,
    "working_directory": _MAYBE_TEXT,
    "cpu_millicores": _MAYBE_COUNT,
    "memory_bytes": _MAYBE_COUNT,
    "pids": _MAYBE_COUNT,
    "umask": _MAYBE_COUNT,
    "terminal": bool,
    "warns": bool,
    "widths": ({"group_gpus": int, "min_gpus": int, "max_gpus": int}, None),
}
EXIT: Document = {
    "job": str,
    "run": str,
    "time_ms": int,
    "code": _MAYBE_COUNT,
    "signal": _MAYBE_COUNT,
    "lost": bool,
    "interrupted": bool,
    "reason": _MAYBE_TEXT,
    "stopped": bool,
    "boot": str,
    "since_boot_ms": int,
}


def check(value: Any, shape: Any, where: str) -> None:
    """Raises `BadFrame` unless a value has this shape; numbers are not bools, nothing is extra."""
    if isinstance(shape, tuple):
        if not any(_fits(value, one, where) for one in shape):
            raise BadFrame(f"{where} has another type")
    elif isinstance(shape, list):
        _require(where, fits=isinstance(value, list))
        for item in value:
            check(item, shape[0], where)
    elif isinstance(shape, dict):
        _require(where, fits=isinstance(value, dict))
        _check_members(value, shape, where)
    elif shape is None:
        _require(where, fits=value is None)
    else:
        _require(where, fits=type(value) is shape)
        if isinstance(value, str) and not _is_text(value):
            raise BadFrame(f"{where} is no text")
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise BadFrame(f"{where} is out of range")


def _check_members(value: Document, shape: dict[Any, Any], where: str) -> None:
    if str in shape:
        for name, item in value.items():
            check(name, str, where)
            check(item, shape[str], f"{where}.{name}")
        return
    if value.keys() != shape.keys():
        raise BadFrame(f"{where} has other members than {', '.join(shape)}")
    for name, one in shape.items():
        check(value[name], one, f"{where}.{name}")


def _is_text(value: str) -> bool:
    """Half a surrogate pair is a character to JSON, and to no file."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _fits(value: Any, shape: Any, where: str) -> bool:
    try:
        check(value, shape, where)
    except BadFrame:
        return False
    return True


def _require(where: str, *, fits: bool) -> None:
    if not fits:
        raise BadFrame(f"{where} has another type")


def job_document(job: Job) -> Document:
    return {**asdict(job), "env": dict(job.env), "secret_env": dict(job.secret_env)}


def job_of(document: Mapping[str, Any]) -> Job:
    check(document, JOB, "job")
    widths = document["widths"]
    lists = {name: tuple(document[name]) for name in ("command", "devices", "leases")}
    return Job(**{**document, **lists, "widths": None if widths is None else Widths(**widths)})


def exit_of(document: Mapping[str, Any]) -> Exit:
    check(document, EXIT, "exit")
    return Exit(**document)
