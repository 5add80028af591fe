"""GET and connect for an event loop that asks hundreds of backends a second, each under a deadline.

Blocking requests would need a thread each (`http`). HTTP/1.0, so that no server answers in chunks.
"""

import asyncio

from fairlead.host.http import NoReply

HEAD_BYTES_MAX, BODY_BYTES_MAX = 64 * 2**10, 4 * 2**20
_LINE_BYTES_MAX = 16 * 2**10


async def get(host: str, port: int, path: str, *, timeout_ms: int) -> tuple[int, bytes]:
    """The status and body of an HTTP GET; `NoReply` for everything else that may come."""
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            return await _get(host, port, path)
    except (OSError, ValueError, asyncio.IncompleteReadError, TimeoutError) as error:
        raise NoReply(f"{host}:{port}{path}: {str(error) or 'no reply in time'}") from error


async def connect(host: str, port: int, *, timeout_ms: int) -> None:
    """Open a connection and close it; `NoReply` when that fails."""
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            _, writer = await asyncio.open_connection(host, port)
            writer.close()
    except (OSError, TimeoutError) as error:
        raise NoReply(f"{host}:{port}: {str(error) or 'no reply in time'}") from error


async def _get(host: str, port: int, path: str) -> tuple[int, bytes]:
    reader, writer = await asyncio.open_connection(host, port, limit=_LINE_BYTES_MAX)
    try:
        name = f"[{host}]" if ":" in host else host
        writer.write(
            f"GET {path} HTTP/1.0\r\nHost: {name}:{port}\r\nConnection: close\r\n\r\n".encode()
        )
        status, size = await _head(reader)
        body = await reader.readexactly(size) if size is not None else await _rest(reader)
    finally:
        writer.close()
    return status, body


async def _head(reader: asyncio.StreamReader) -> tuple[int, int | None]:
    fields = (await reader.readline()).split(None, 2)
    if len(fields) < 2 or not fields[0].startswith(b"HTTP/"):
        raise ValueError("the reply is not HTTP")
    size, read = None, 0
    while (line := await reader.readline()) not in (b"\r\n", b"\n", b""):
        read += len(line)
        if read > HEAD_BYTES_MAX:
            raise ValueError("the reply's head has no end")
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-length":
            size = int(value)
    if size is not None and not 0 <= size <= BODY_BYTES_MAX:
        raise ValueError(f"the reply has {size} bytes")
    return int(fields[1]), size


async def _rest(reader: asyncio.StreamReader) -> bytes:
    body = b""
    while more := await reader.read(2**16):
        body += more
        if len(body) > BODY_BYTES_MAX:
            raise ValueError("the reply has no end")
    return body
