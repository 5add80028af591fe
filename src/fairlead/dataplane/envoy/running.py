"""An Envoy that its operator runs: it asks this agent for the endpoints of its clusters.

Listeners, routes, filters, TLS and clusters stay in its own configuration. What EDS can express is
which hosts a cluster has and with which weights, so that is all that is decided here: a backend
without slots is left out of the list. It is not listed as draining, because Envoy ignores health
once half of the hosts are unhealthy (its panic threshold). There is no admission and no bound of
what is inside: circuit breakers are settings of a cluster, not of its endpoints.

Envoy judges no heartbeat, and keeps the last endpoints when the agent is gone. An agent that stops
leaves all backends with equal weights; `remove` does the same after another was killed.
"""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from fairlead.core.traffic.limits import Concurrency
from fairlead.core.traffic.sighting import GroupSeen, Liveness
from fairlead.dataplane import proxy, tables
from fairlead.dataplane.envoy import admin, documents
from fairlead.dataplane.envoy.xds import PATH, EndpointServer
from fairlead.dataplane.proxy import Place
from fairlead.dataplane.tables import Active, active
from fairlead.host.clock import monotonic_ms, wait_until
from fairlead.ports.dataplane import SCHEMA_VERSION, Backend, GroupRefused, Proto, RouteGroup, Table
from fairlead.ports.faults import PermanentFault, TemporaryFault

_ASK_S, _LEAVE_S = 20.0, 5.0
_SILENT_MS = 10_000
"""An Envoy that has not asked for so long no longer follows."""


@dataclass(frozen=True, slots=True)
class Kept:
    """What an agent leaves for the next one, or for `remove`."""

    backends: Mapping[str, tuple[Backend, ...]]
    """By cluster."""


class RunningEnvoyDataplane:
    """An Envoy of its operator's."""

    name = "envoy"

    def __init__(
        self,
        *,
        xds: str,
        admin_place: Place,
        folder: Path,
        cluster: str | None = None,
        requests: Path | None = None,
    ) -> None:
        """`cluster` is that of the only group; without it each group is the cluster of its name.
        `requests` is an access log with a line per request, for latencies."""
        self._xds, self._admin, self._folder = xds, admin_place, folder.absolute()
        self._cluster = cluster
        self._groups: dict[str, RouteGroup] = {}
        self._active: dict[str, Active] = {}
        self._server: EndpointServer | None = None
        self._log = None if requests is None else admin.EnvoyLog(requests, sided=False)
        latency = "none: name plane.envoy.requests, or scrape it"
        if requests is not None:
            latency = "access log: p95 of the duration of successes over 5 s"
        self.sources: Mapping[str, str] = {
            "requests": "/clusters: requests sent to each host",
            "queue": "/clusters: requests under way in each host; none wait for one",
            "latency": latency,
            "errors": "/clusters: 5xx, failed connects",
        }

    def schema_version(self) -> int:
        """Envoy keeps nothing of ours."""
        return SCHEMA_VERSION

    @proxy.as_fault
    def configure(self, groups: Sequence[RouteGroup]) -> None:
        tables.check_groups(groups, placed=False)
        for index, group in enumerate(groups):
            if group.proto is not Proto.TCP:
                problem = f"{group.proto} is not supported by envoy"
                raise GroupRefused(group.name, f"groups[{index}].proto: {problem}")
        self._check_admin()
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._server = self._server or EndpointServer(self._xds)
        before = self._groups, self._active
        self._groups = {group.name: group for group in groups}
        self._active = {
            group.name: active(
                group, self._active.get(group.name) or proxy.kept(self._folder, group.name)
            )
            for group in groups
        }
        try:
            self._offer()
            self._wait_for_envoy(groups)
        except PermanentFault:
            self._groups, self._active = before
            self._offer()
            raise
        members = {self._name(group): group.backends for group in groups}
        proxy.save(self._folder / "endpoints.json", Kept(members))
        for path in self._folder.glob("active-*.json"):
            if path not in {proxy.kept_path(self._folder, name) for name in self._groups}:
                path.unlink()

    @proxy.as_fault
    def apply(self, table: Table, *, decision: int | None) -> None:
        """Envoy has it with its next answer; what it has taken up is checked by `heartbeat`."""
        group = tables.check_table(table, self._groups)
        tables.check_flip(table, self._active[group.name].table.epoch, Liveness.NORMAL)
        self._active[group.name] = Active(table, decision)
        proxy.save(proxy.kept_path(self._folder, group.name), self._active[group.name])
        self._offer()

    def limit(self, group: str, bound: Concurrency, *, decision: int | None) -> None:
        """Endpoints have no bound. Checks only."""
        tables.configured(self._groups, group)

    def drain(self, group: str, backend: str, *, decision: int | None) -> None:
        """Without slots it is not listed, and what is in it ends there. Checks only."""
        tables.check_backend(self._groups, group, backend)

    def heartbeat(self) -> None:
        """Envoy judges none; one that no longer asks is a fault that may pass."""
        for group in self._groups.values():
            name = self._name(group)
            asked = self._server and self._server.asked(name)
            if not asked or monotonic_ms() - asked.at_ms > _SILENT_MS:
                raise TemporaryFault(f"Envoy has not asked for cluster {name!r} for 10 s")

    @proxy.as_fault
    def read(self) -> Mapping[str, GroupSeen]:
        now_ms = monotonic_ms()
        names = [self._name(group) for group in self._groups.values()]
        counted = admin.read_clusters(self._admin, names)
        if self._log is not None:
            self._log.catch_up(now_ms)
        return {
            name: self._seen(group, counted[self._name(group)], now_ms)
            for name, group in self._groups.items()
        }

    @proxy.as_fault
    def detach(self) -> None:
        """Leave all backends with equal weights, and stop answering."""
        if self._log is not None:
            self._log.close()
        if self._server is None:
            return
        kept = {self._name(group): group.backends for group in self._groups.values()}
        self._groups, self._active = {}, {}
        self._leave(kept)

    @proxy.as_fault
    def remove(self) -> None:
        """The same, also where an agent was killed: Envoy has its last endpoints."""
        if self._server is None:
            kept = proxy.load(self._folder / "endpoints.json", Kept)
            if kept is not None and kept.backends:
                self._check_admin()
                self._server = EndpointServer(self._xds)
                self._leave(kept.backends)
        else:
            self.detach()
        self._forget()
        with contextlib.suppress(OSError):
            self._folder.rmdir()

    # --- what Envoy is told

    def _offer(self) -> None:
        if self._server is not None:
            self._server.offer(
                {
                    self._name(group): documents.assignment(
                        self._name(group), group.backends, self._active[name].table.slots
                    )
                    for name, group in self._groups.items()
                }
            )

    def _wait_for_envoy(self, groups: Sequence[RouteGroup]) -> None:
        """Until it has the endpoints of every group, and serves."""
        server = self._server
        for index, group in enumerate(groups):
            name = self._name(group)
            if server and wait_until(partial(server.taken_up, name), within_s=_ASK_S):
                continue
            others = ", ".join(server.clusters()[:20] if server else ()) or "nothing"
            problem = f"Envoy did not take up the endpoints of cluster {name!r} within 20 s"
            hint = f"its cluster needs type EDS and a REST eds_config at {self._xds} ({PATH})"
            message = f"groups[{index}]: {problem}; it has asked for {others}; {hint}"
            raise GroupRefused(group.name, message)
        wait_until(self._is_live, within_s=_ASK_S, every_s=0.02)

    def _leave(self, members: Mapping[str, tuple[Backend, ...]]) -> None:
        server, self._server = self._server, None
        if server is None:
            return
        even = {
            name: documents.assignment(name, backends, {backend.id: 1 for backend in backends})
            for name, backends in members.items()
        }
        server.offer(even)
        try:
            wait_until(lambda: all(map(server.taken_up, even)), within_s=_LEAVE_S)
            missed = [name for name in even if not server.taken_up(name)]
        finally:
            server.close()
        if missed:
            raise TemporaryFault(
                f"Envoy has not asked for cluster {missed[0]!r}: its last weights stay; "
                "`fairlead traffic remove FILE` leaves equal ones later"
            )
        self._forget()

    def _forget(self) -> None:
        for path in (self._folder / "endpoints.json", *self._folder.glob("active-*.json")):
            path.unlink(missing_ok=True)

    def _check_admin(self) -> None:
        try:
            admin.ask(self._admin, "/server_info")
        except TemporaryFault as fault:
            hint = "it needs `admin: {address: …}` in its bootstrap"
            raise PermanentFault(f"plane.envoy.admin: {fault}; {hint}") from fault

    def _is_live(self) -> bool:
        try:
            return b"LIVE" in admin.ask(self._admin, "/ready")
        except TemporaryFault:
            return False

    # --- what is known

    def _seen(self, group: RouteGroup, counted: proxy.GroupCount, now_ms: int) -> GroupSeen:
        names = {b.id: proxy.address(b.host, b.port) for b in group.backends}
        cluster, log = self._name(group), self._log
        return counted.seen(
            self._active[group.name],
            Liveness.NORMAL,
            lambda host: (0, None) if log is None else log.signals(cluster, now_ms, host),
            names,
        )

    def _name(self, group: RouteGroup) -> str:
        return self._cluster or group.name
