"""The one thread of the traffic agent that waits for others: scrapes, probes, checks, look-ups.

    outreach = Outreach()
    task = outreach.repeat(1_000, ask, phase="web/a")      # `ask` is a coroutine function
    outreach.once(knock)
    outreach.close()

A tick never waits for what happens here. Whoever is asked late is simply asked less often.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any

from fairlead.core.traffic.admission import fnv1a

Ask = Callable[[], Coroutine[Any, Any, None]]
HEAD_BYTES_MAX, BODY_BYTES_MAX = 64 * 2**10, 4 * 2**20
_LINE_BYTES_MAX = 16 * 2**10


class NoAnswer(Exception):
    """Nobody answered in time, or not in HTTP."""


class Outreach:
    """An event loop in a daemon thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="outreach", daemon=True)
        self._thread.start()

    def repeat(self, every_ms: int, ask: Ask, *, phase: str) -> Future[None]:
        """Ask again and again; cancel the returned future to stop. The phase spreads the asking."""

        async def again() -> None:
            period_s = every_ms / 1000
            await asyncio.sleep(fnv1a(phase.encode()) % max(1, every_ms) / 1000)
            while True:
                due = self._loop.time() + period_s
                try:
                    await ask()
                except Exception as error:  # noqa: BLE001 - one bad answer must not be the last
                    self._loop.call_exception_handler(
                        {"message": f"asking {phase} failed", "exception": error}
                    )
                await asyncio.sleep(max(0.0, due - self._loop.time()))

        return asyncio.run_coroutine_threadsafe(again(), self._loop)

    def once(self, ask: Ask) -> Future[None]:
        """Ask once, soon."""
        return asyncio.run_coroutine_threadsafe(ask(), self._loop)

    def close(self) -> None:
        """Stop asking; what is under way is abandoned."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()

    def _run(self) -> None:
        try:
            self._loop.run_forever()
        finally:
            self._loop.run_until_complete(_end_all())
            self._loop.close()


async def _end_all() -> None:
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)


async def get(host: str, port: int, path: str, *, timeout_ms: int) -> tuple[int, bytes]:
    """The status and body of an HTTP GET; `NoAnswer` for everything else that may come."""
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            return await _get(host, port, path)
    except (OSError, ValueError, asyncio.IncompleteReadError, TimeoutError) as error:
        raise NoAnswer(f"{host}:{port}{path}: {error or 'no answer in time'}") from error


async def _get(host: str, port: int, path: str) -> tuple[int, bytes]:
    reader, writer = await asyncio.open_connection(host, port, limit=_LINE_BYTES_MAX)
    try:
        # 1.0, so that nobody answers in chunks.
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
    words = (await reader.readline()).split(None, 2)
    if len(words) < 2 or not words[0].startswith(b"HTTP/"):
        raise ValueError("the answer is not HTTP")
    size, read = None, 0
    while (line := await reader.readline()) not in (b"\r\n", b"\n", b""):
        read += len(line)
        if read > HEAD_BYTES_MAX:
            raise ValueError("the answer's head has no end")
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-length":
            size = int(value)
    if size is not None and not 0 <= size <= BODY_BYTES_MAX:
        raise ValueError(f"the answer has {size} bytes")
    return int(words[1]), size


async def _rest(reader: asyncio.StreamReader) -> bytes:
    body = b""
    while more := await reader.read(2**16):
        body += more
        if len(body) > BODY_BYTES_MAX:
            raise ValueError("the answer has no end")
    return body


async def connect(host: str, port: int, *, timeout_ms: int) -> None:
    """Open a connection and close it; `NoAnswer` when that fails."""
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            _, writer = await asyncio.open_connection(host, port)
            writer.close()
    except (OSError, TimeoutError) as error:
        raise NoAnswer(f"{host}:{port}: {error or 'no answer in time'}") from error
