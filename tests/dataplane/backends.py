"""Real backends on loopback: each answers its own id, or misbehaves as it is told."""

import asyncio
import contextlib
import threading
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

from fairlead.ports.dataplane import Backend

HOST = "127.0.0.1"


@dataclass
class Behaviour:
    """What a backend does with a request, from the next one on."""

    status: int = 200
    delay_s: float = 0.0
    requests: int = 0
    """How many it was sent so far."""
    inside: int = 0
    room: int | None = None
    """With more than this inside it answers 503 at once, as one that is overloaded does."""
    held: bool = False
    """Whether it keeps what it gets, until it is told otherwise."""


class Backends:
    """HTTP servers in one thread of their own."""

    def __init__(self, host: str = HOST) -> None:
        self._host = host
        self.behaviour: dict[str, Behaviour] = {}
        self.held = 0
        """Requests that are kept now."""
        self._servers: dict[str, asyncio.Server] = {}
        self._kept: dict[str, set[asyncio.StreamWriter]] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def start(self, id: str) -> Backend:
        """Open a backend on a free port."""
        self.behaviour[id], self._kept[id] = Behaviour(), set()

        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._serve(id, reader, writer)

        server = self._do(asyncio.start_server(handle, self._host, 0))
        self._servers[id] = server
        return Backend(id, self._host, server.sockets[0].getsockname()[1])

    def stop(self, id: str) -> None:
        """Close a backend and its connections; new ones to its port are refused from now on."""
        self._do(self._close(id))

    def close(self) -> None:
        """Close them all."""
        for id in list(self._servers):
            self.stop(id)
        self._do(self._hang_up())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _serve(
        self, id: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._kept[id].add(writer)
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                does = self.behaviour[id]
                does.requests += 1
                does.inside += 1
                status = does.status if does.room is None or does.inside <= does.room else 503
                if does.delay_s and status != 503:
                    await asyncio.sleep(does.delay_s)
                if does.held:
                    await self._hold(does)
                does.inside -= 1
                body = id.encode()
                writer.write(
                    b"HTTP/1.1 %d Here\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body)
                )
                await writer.drain()
                if b"connection: close" in head.lower():
                    break
        self._kept[id].discard(writer)
        writer.close()

    async def _hold(self, does: Behaviour) -> None:
        self.held += 1
        while does.held:
            await asyncio.sleep(0.01)
        self.held -= 1

    async def _close(self, id: str) -> None:
        self._servers.pop(id).close()
        for writer in self._kept[id]:
            writer.close()

    async def _hang_up(self) -> None:
        kept = asyncio.all_tasks() - {asyncio.current_task()}
        for task in kept:
            task.cancel()
        await asyncio.gather(*kept, return_exceptions=True)

    def _do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)
