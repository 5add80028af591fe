"""Groups whose backends are looked up: a name in DNS, every address it has now.

A look-up that fails changes nothing: a name server that is down must not empty a group.
"""

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import NamedTuple

from fairlead.node.traffic.outreach import Outreach
from fairlead.ports.dataplane import Backend
from fairlead.ports.faults import TemporaryFault

PATIENCE_S = 2.0
"""From 3 s without a heartbeat on a plane holds its table."""


class Service(NamedTuple):
    """What to look up; `family` is of the addresses that are of use (0: any)."""

    host: str
    port: int
    family: int = socket.AF_UNSPEC


class Services:
    """Looks names up, now and then."""

    def __init__(self, outreach: Outreach, *, every_ms: int) -> None:
        self.failures = 0
        self._lock = threading.Lock()
        self._found: dict[str, tuple[Backend, ...]] = {}
        self._tasks: dict[tuple[str, Service], Future[None]] = {}
        self._outreach, self._every_ms = outreach, every_ms

    def follow(self, services: Mapping[str, Service]) -> Callable[[], None]:
        """Look these names up, at once and then again and again, and no others.

        Returns what puts everything back as it was: whoever cannot use the new names goes on with
        the addresses that the old ones had.
        """
        tasks, found = set(self._tasks), dict(self._found)
        wanted = set(services.items())
        fresh = self._look_up(wanted - self._tasks.keys())
        for key in self._tasks.keys() - wanted:
            self._tasks.pop(key).cancel()
        with self._lock:
            self._found = {group: self._found[group] for group in services if group in self._found}
            self._found |= {group: found for (group, _), found in fresh.items()}
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

    def _look_up(
        self, wanted: Collection[tuple[str, Service]]
    ) -> dict[tuple[str, Service], tuple[Backend, ...]]:
        """All at once, and not for long: the agent's ticks wait for it."""
        found: dict[tuple[str, Service], tuple[Backend, ...]] = {}

        async def ask(group: str, service: Service) -> None:
            found[group, service] = await addresses(service)

        asked = {key: self._outreach.once(partial(ask, *key)) for key in sorted(wanted)}
        give_up = time.monotonic() + PATIENCE_S
        for (group, service), answer in asked.items():
            try:
                answer.result(max(0.0, give_up - time.monotonic()))
            except (OSError, UnicodeError) as error:
                for each in asked.values():
                    each.cancel()
                problem = str(error) or f"no answer within {PATIENCE_S:g} s"
                message = f"group {group!r}: {service.host} cannot be looked up: {problem}"
                raise TemporaryFault(message, retry_after_ms=self._every_ms) from error
        return found

    def members(self, group: str) -> tuple[Backend, ...] | None:
        """The backends of a group that is looked up; None where it is not."""
        with self._lock:
            return self._found.get(group)

    def _begin(self, group: str, service: Service) -> Future[None]:
        async def ask() -> None:
            try:
                found = await addresses(service)
            except (OSError, UnicodeError):
                self.failures += 1
                return
            with self._lock:
                self._found[group] = found

        return self._outreach.repeat(self._every_ms, ask, phase=f"service {group}")


async def addresses(service: Service) -> tuple[Backend, ...]:
    """Every address that the name has now."""
    found = await asyncio.get_running_loop().getaddrinfo(
        service.host, service.port, family=service.family, type=socket.SOCK_STREAM
    )
    return backends_of(found)


def backends_of(found: Sequence[tuple[object, ...]]) -> tuple[Backend, ...]:
    """A backend for every address, named by it, in a fixed order."""
    places = {(str(place[0]), int(place[1])) for *_, place in found if isinstance(place, tuple)}
    return tuple(
        Backend(f"[{host}]:{port}" if ":" in host else f"{host}:{port}", host, port)
        for host, port in sorted(places)
    )
