"""Groups whose backends are looked up: a name in DNS, every address it has now.

A look-up that fails changes nothing: a name server that is down must not empty a group.
"""

import asyncio
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future

from fairlead.node.traffic.outreach import Outreach
from fairlead.ports.dataplane import Backend
from fairlead.ports.faults import TemporaryFault


class Services:
    """Looks names up, now and then."""

    def __init__(self, outreach: Outreach, *, every_ms: int) -> None:
        self.failures = 0
        self._lock = threading.Lock()
        self._found: dict[str, tuple[Backend, ...]] = {}
        self._tasks: dict[tuple[str, str, int], Future[None]] = {}
        self._outreach, self._every_ms = outreach, every_ms

    def follow(self, services: Mapping[str, tuple[str, int]]) -> Callable[[], None]:
        """Look these names up, at once and then again and again, and no others.

        Returns what puts everything back as it was: whoever cannot use the new names goes on with
        the addresses that the old ones had.
        """
        tasks, found = set(self._tasks), dict(self._found)
        wanted = {(group, host, port) for group, (host, port) in services.items()}
        fresh = {key: self._look_up(*key) for key in wanted - self._tasks.keys()}
        for key in self._tasks.keys() - wanted:
            self._tasks.pop(key).cancel()
        with self._lock:
            self._found = {group: self._found[group] for group in services if group in self._found}
            self._found |= {group: found for (group, _, _), found in fresh.items()}
        for key in fresh:
            self._tasks[key] = self._begin(*key)

        def undo() -> None:
            for key in self._tasks.keys() - tasks:
                self._tasks.pop(key).cancel()
            with self._lock:
                self._found = found
            for key in tasks - self._tasks.keys():
                self._tasks[key] = self._begin(*key)

        return undo

    def _look_up(self, group: str, host: str, port: int) -> tuple[Backend, ...]:
        try:
            return backends_of(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except OSError as error:
            message = f"group {group!r}: {host} cannot be looked up: {error}"
            raise TemporaryFault(message, retry_after_ms=self._every_ms) from error

    def members(self, group: str) -> tuple[Backend, ...] | None:
        """The backends of a group that is looked up; None where it is not."""
        with self._lock:
            return self._found.get(group)

    def _begin(self, group: str, host: str, port: int) -> Future[None]:
        async def ask() -> None:
            loop = asyncio.get_running_loop()
            try:
                found = backends_of(await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM))
            except OSError:
                self.failures += 1
                return
            with self._lock:
                self._found[group] = found

        return self._outreach.repeat(self._every_ms, ask, phase=f"service {group}")


def backends_of(found: Sequence[tuple[object, ...]]) -> tuple[Backend, ...]:
    """A backend for every address, named by it, in a fixed order."""
    places = {(str(place[0]), int(place[1])) for *_, place in found if isinstance(place, tuple)}
    return tuple(
        Backend(f"[{host}]:{port}" if ":" in host else f"{host}:{port}", host, port)
        for host, port in sorted(places)
    )
