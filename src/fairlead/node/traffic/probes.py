"""Probes of isolated backends, health checks of all where configured, and look-ups of backends."""

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import NamedTuple

from fairlead.core.traffic.limits import succeeded
from fairlead.core.traffic.sighting import Probed
from fairlead.host.http import NoReply
from fairlead.host.http_async import connect, get
from fairlead.node.traffic.poller import Poller, follow
from fairlead.ports.dataplane import Backend
from fairlead.ports.faults import TemporaryFault
from fairlead.schema.traffic_agent import CheckDocument, ProbeDocument, ProbeKind

LOOKUP_TIMEOUT_S = 2.0
"""Ticks wait for the first look-up, and after 3 s without a heartbeat the table is held."""


async def probe(
    backend: Backend, rules: ProbeDocument | CheckDocument
) -> tuple[bool, float | None]:
    """Whether it replied without an error, and how many milliseconds that took."""
    port, began = rules.port or backend.port, time.monotonic()
    try:
        if rules.kind is not ProbeKind.HTTP:
            await connect(backend.host, port, timeout_ms=rules.timeout_ms)
            ok = True
        else:
            status, _ = await get(backend.host, port, rules.path, timeout_ms=rules.timeout_ms)
            ok = succeeded(status)
    except NoReply:
        return False, None
    return ok, (time.monotonic() - began) * 1000


class NetworkProber:
    """The `Prober` port on real connections."""

    def __init__(self, poller: Poller) -> None:
        self._poller = poller
        self._lock = threading.Lock()
        self._results: list[Probed] = []
        self._checked: list[Probed] = []
        self._under_way: set[tuple[str, str]] = set()
        self._rules: dict[str, ProbeDocument] = {}
        self._members: dict[tuple[str, str], Backend] = {}
        self._checks: dict[tuple[str, Backend, CheckDocument], Future[None]] = {}
        self._answered: set[tuple[str, Backend, CheckDocument]] = set()
        """Checks that were made at least once, with whatever result."""

    def watch(
        self,
        rules: Mapping[str, ProbeDocument],
        checks: Mapping[str, CheckDocument],
        members: Mapping[str, Sequence[Backend]],
    ) -> None:
        """Know these backends and no others; check those of groups that want it."""
        self._rules = dict(rules)
        self._members = {
            (group, backend.id): backend
            for group, backends in members.items()
            for backend in backends
        }
        wanted = {
            (group, backend, check)
            for group, check in checks.items()
            for backend in members.get(group, ())
        }
        follow(self._checks, wanted, self._begin_check)
        with self._lock:
            self._answered &= wanted

    def unseen(self, group: str) -> set[str]:
        """Backends whose first check has no result yet."""
        with self._lock:
            waiting = set(self._checks) - self._answered
        return {backend.id for name, backend, _ in waiting if name == group}

    def probe(self, group: str, backends: Sequence[str]) -> None:
        """Probe each once, unless its last probe is still waiting for the reply."""
        for name in backends:
            key, backend = (group, name), self._members.get((group, name))
            with self._lock:
                if backend is None or key in self._under_way:
                    continue
                self._under_way.add(key)
            self._poller.once(partial(self._probe, group, backend, self._rules[group]))

    def results(self) -> Sequence[Probed]:
        with self._lock:
            results, self._results = self._results, []
        return results

    def checked(self) -> Sequence[Probed]:
        with self._lock:
            checked, self._checked = self._checked, []
        return checked

    async def _probe(self, group: str, backend: Backend, rules: ProbeDocument) -> None:
        ok, latency_ms = await probe(backend, rules)
        with self._lock:
            self._under_way.discard((group, backend.id))
            self._results.append(Probed(group, backend.id, ok, latency_ms))

    def _begin_check(self, group: str, backend: Backend, rules: CheckDocument) -> Future[None]:
        request, phase = partial(self._check, group, backend, rules), f"check {group}/{backend.id}"
        return self._poller.repeat(rules.every_ms, request, phase=phase)

    async def _check(self, group: str, backend: Backend, rules: CheckDocument) -> None:
        ok, latency_ms = await probe(backend, rules)
        with self._lock:
            self._checked.append(Probed(group, backend.id, ok, latency_ms))
            self._answered.add((group, backend, rules))


class DnsService(NamedTuple):
    """What to look up; `family` is of the addresses that are of use (0: any)."""

    host: str
    port: int
    family: int = socket.AF_UNSPEC


class DnsServices:
    """Groups whose backends are looked up: a name in DNS, every address it has now.

    A look-up that fails changes nothing: a name server that is down must not empty a group.
    """

    def __init__(self, poller: Poller, *, every_ms: int) -> None:
        self.failures = 0
        self._lock = threading.Lock()
        self._found: dict[str, tuple[Backend, ...]] = {}
        self._tasks: dict[tuple[str, DnsService], Future[None]] = {}
        self._poller, self._every_ms = poller, every_ms

    def follow(self, services: Mapping[str, DnsService]) -> Callable[[], None]:
        """Look these names up, at once and then again and again, and no others.

        Returns what puts everything back as it was: an agent that cannot use the new names goes on
        with the addresses that the old ones had.
        """
        tasks, before = set(self._tasks), dict(self._found)
        wanted = set(services.items())
        fresh = self._look_up(wanted - self._tasks.keys())
        follow(self._tasks, wanted, self._begin)
        with self._lock:
            self._found = {group: self._found[group] for group in services if group in self._found}
            self._found |= {group: backends for (group, _), backends in fresh.items()}

        def undo() -> None:
            follow(self._tasks, tasks, self._begin)
            with self._lock:
                self._found = before

        return undo

    def _look_up(
        self, wanted: Collection[tuple[str, DnsService]]
    ) -> dict[tuple[str, DnsService], tuple[Backend, ...]]:
        """All at once, and not for long: the agent's ticks wait for it."""
        backends: dict[tuple[str, DnsService], tuple[Backend, ...]] = {}

        async def request(group: str, service: DnsService) -> None:
            backends[group, service] = await addresses(service)

        futures = {key: self._poller.once(partial(request, *key)) for key in sorted(wanted)}
        deadline = time.monotonic() + LOOKUP_TIMEOUT_S
        for (group, service), future in futures.items():
            try:
                future.result(max(0.0, deadline - time.monotonic()))
            except (OSError, UnicodeError) as error:
                for other in futures.values():
                    other.cancel()
                problem = str(error) or f"no answer within {LOOKUP_TIMEOUT_S:g} s"
                message = f"group {group!r}: {service.host} cannot be looked up: {problem}"
                raise TemporaryFault(message, retry_after_ms=self._every_ms) from error
        return backends

    def members(self, group: str) -> tuple[Backend, ...] | None:
        """The backends of a group that is looked up; None where it is not."""
        with self._lock:
            return self._found.get(group)

    def _begin(self, group: str, service: DnsService) -> Future[None]:
        async def request() -> None:
            try:
                backends = await addresses(service)
            except (OSError, UnicodeError):
                self.failures += 1
                return
            with self._lock:
                self._found[group] = backends

        return self._poller.repeat(self._every_ms, request, phase=f"service {group}")


async def addresses(service: DnsService) -> tuple[Backend, ...]:
    """A backend for every address, named by it, in a fixed order."""
    answers = await asyncio.get_running_loop().getaddrinfo(
        service.host, service.port, family=service.family, type=socket.SOCK_STREAM
    )
    places = {(str(place[0]), int(place[1])) for *_, place in answers}
    return tuple(
        Backend(f"[{host}]:{port}" if ":" in host else f"{host}:{port}", host, port)
        for host, port in sorted(places)
    )
