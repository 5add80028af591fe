"""A HAProxy that its operator runs, driven by its runtime socket.

Only three things of its servers are changed: weight, maxconn, and the state `drain` for a backend
that is to be drained. What they were is on disk before the first of them is changed; `detach` and
`remove` put it back, also after another agent was killed. Frontends, rules, TLS, queues and retries
stay as they are, so a group has no admission of its own here: what may be inside is the sum of its
servers' maxconn, HAProxy queues the rest, and its `timeout queue` rejects what waits too long.

HAProxy judges no heartbeat: without an agent the last weights stay until the next agent, `remove`,
or a reload. After a reload the values of its configuration hold, and the next tick drives it again.
"""

import contextlib
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from fairlead.core.invariant import known
from fairlead.core.traffic.limits import LATENCY_WINDOW_MS, Concurrency, mean_since, server_bounds
from fairlead.core.traffic.sighting import GroupSeen, Liveness
from fairlead.dataplane import proxy, tables
from fairlead.dataplane.haproxy import config, servers
from fairlead.dataplane.haproxy.runtime import execute
from fairlead.dataplane.haproxy.servers import DRAIN, READY, Server, ServerSettings
from fairlead.dataplane.proxy import Place
from fairlead.dataplane.tables import Active, active
from fairlead.host import files
from fairlead.host.clock import monotonic_ms
from fairlead.ports.dataplane import SCHEMA_VERSION, Backend, GroupRefused, Proto, RouteGroup, Table
from fairlead.ports.faults import Fault, PermanentFault, TemporaryFault


@dataclass(frozen=True, slots=True)
class FoundServers:
    """What was there before anything was changed, and in which process of HAProxy."""

    worker: str
    servers: Mapping[str, Mapping[str, ServerSettings]] = field(default_factory=dict)
    """By backend and server."""


class RunningHaproxyDataplane:
    """A HAProxy of its operator's."""

    name = "haproxy"
    sources: Mapping[str, str] = {
        "requests": "show stat: requests sent to each server",
        "queue": "show stat: requests waiting for each server, and in it",
        "latency": "show stat: mean response time of the last 5 s",
        "errors": "show stat: 5xx, broken responses, failed connects",
    }

    def __init__(self, place: Place, folder: Path, *, backend: str | None = None) -> None:
        """`backend` is that of the only group; without it each group is the backend of its name."""
        self._place, self._folder, self._backend = place, folder.absolute(), backend
        self._groups: dict[str, RouteGroup] = {}
        self._active: dict[str, Active] = {}
        self._found = proxy.load(self._folder / "found.json", FoundServers)
        self._numbers: dict[str, str] = {}  # of the backends in the process that serves
        self._times: dict[str, deque[tuple[int, int, int]]] = {}

    def schema_version(self) -> int:
        """HAProxy keeps nothing of ours."""
        return SCHEMA_VERSION

    @proxy.as_fault
    def configure(self, groups: Sequence[RouteGroup]) -> None:
        tables.check_groups(groups, placed=False)
        servers.check_level(self._place)
        self._follow(servers.read_worker(self._place))
        there = {group.name: self._check(index, group) for index, group in enumerate(groups)}
        self._freeze(groups, there)
        self._groups = {group.name: group for group in groups}
        for group in groups:
            now = active(
                group, self._active.get(group.name) or proxy.kept(self._folder, group.name)
            )
            self._active[group.name] = now
            self._enforce(group, now.table, there[group.name])

    @proxy.as_fault
    def apply(self, table: Table, *, decision: int | None) -> None:
        group = tables.check_table(table, self._groups)
        self._follow(servers.read_worker(self._place))
        tables.check_flip(table, self._active[group.name].table.epoch, Liveness.NORMAL)
        now = Active(table, decision)
        proxy.save(proxy.kept_path(self._folder, group.name), now)
        self._enforce(group, table, servers.read_servers(self._place, self._name(group)))
        self._active[group.name] = now

    def limit(self, group: str, bound: Concurrency, *, decision: int | None) -> None:
        """What servers may hold follows the bound, which comes with a table. Checks only."""
        tables.configured(self._groups, group)

    @proxy.as_fault
    def drain(self, group: str, backend: str, *, decision: int | None) -> None:
        """Nothing new for it, until a table gives it slots again."""
        tables.check_backend(self._groups, group, backend)
        server = f"{self._name(self._groups[group])}/{backend}"
        execute(self._place, [f"set server {server} state {DRAIN}"])

    @proxy.as_fault
    def heartbeat(self) -> None:
        """HAProxy judges none; one that is gone is a fault that may pass."""
        if self._groups:
            servers.read_worker(self._place)

    @proxy.as_fault
    def read(self) -> Mapping[str, GroupSeen]:
        now_ms = monotonic_ms()
        names = [self._name(group) for group in self._groups.values()]
        numbers = [self._numbers[name] for name in names if name in self._numbers]
        rows, worker = servers.read_counted(self._place, numbers)
        self._follow(worker)
        return {
            name: self._seen(group, rows.get(self._name(group), ()), now_ms)
            for name, group in self._groups.items()
        }

    @proxy.as_fault
    def detach(self) -> None:
        """Put back what was found. Where nothing was configured, an agent before this one may have
        left something: it stays for the next agent, or for `remove`."""
        if self._groups:
            self._restore()

    @proxy.as_fault
    def remove(self) -> None:
        """Put back what was found, whichever agent changed it. Nothing else of ours is there."""
        self._restore()
        with contextlib.suppress(OSError):
            self._folder.rmdir()

    def _restore(self) -> None:
        try:
            self._put_back(self._found.servers if self._found else {})
        except Fault as fault:
            hint = "`fairlead traffic remove FILE` does it later"
            raise TemporaryFault(f"weights are not put back: {fault}; {hint}") from fault
        self._groups, self._active, self._found = {}, {}, None
        for path in (self._folder / "found.json", *self._folder.glob("active-*.json")):
            path.unlink(missing_ok=True)

    # --- what was there

    def _check(self, index: int, group: RouteGroup) -> dict[str, Server]:
        """The servers of a group; a `GroupRefused` names what is missing."""
        name, path = self._name(group), f"groups[{index}]"
        try:
            if group.proto is not Proto.TCP:
                raise PermanentFault(f"{group.proto} is not supported by haproxy")
            there = servers.read_servers(self._place, name)
            for backend in group.backends:
                _check_backend(backend, there, name)
        except PermanentFault as fault:
            raise GroupRefused(group.name, f"{path}: {fault}") from fault
        self._number(name, there)
        return there

    def _number(self, name: str, there: Mapping[str, Server]) -> None:
        for server in there.values():
            self._numbers[name] = server.backend

    def _freeze(
        self, groups: Sequence[RouteGroup], there: Mapping[str, Mapping[str, Server]]
    ) -> None:
        """Keep what is changed from now on as it is, and put back what is no longer ours."""
        found = self._found or FoundServers(servers.read_worker(self._place))
        ours: dict[str, dict[str, ServerSettings]] = {}
        for group in groups:
            kept = found.servers.get(self._name(group), {})
            ours[self._name(group)] = {
                backend.id: kept.get(backend.id) or there[group.name][backend.id].settings
                for backend in group.backends
            }
        gone = {
            name: {id: was for id, was in kept.items() if id not in ours.get(name, {})}
            for name, kept in found.servers.items()
        }
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        everything = {name: {**gone.get(name, {}), **kept} for name, kept in ours.items()}
        self._keep(FoundServers(found.worker, {**gone, **everything}))
        self._put_back(gone)
        self._keep(FoundServers(found.worker, ours))
        for name in self._active.keys() - {group.name for group in groups}:
            del self._active[name]
            proxy.kept_path(self._folder, name).unlink(missing_ok=True)

    def _keep(self, found: FoundServers) -> None:
        """Durably: it is needed after a power cut of the agent's machine, too."""
        if found != self._found:
            files.replace(self._folder / "found.json", msgspec.json.encode(found))
            self._found = found

    def _follow(self, worker: str) -> None:
        """After a reload nothing of ours is in force, and what is there is its operator's."""
        if self._found is None or self._found.worker == worker:
            return
        self._times, self._numbers, groups = {}, {}, self._groups.values()
        fresh: dict[str, dict[str, ServerSettings]] = {}
        for name, kept in self._found.servers.items():
            there = _servers_or_none(self._place, name)
            fresh[name] = {id: there[id].settings for id in kept if id in there}
            self._number(name, there)
        self._keep(FoundServers(worker, fresh))
        self._active = {group.name: active(group, None) for group in groups}
        for path in self._folder.glob("active-*.json"):
            path.unlink()

    def _put_back(self, found: Mapping[str, Mapping[str, ServerSettings]]) -> None:
        """Only in the process where it was found, and only what is there still."""
        if self._found is None or not any(found.values()):
            return
        if servers.read_worker(self._place) != self._found.worker:
            return
        commands = []
        for name, kept in found.items():
            there = _servers_or_none(self._place, name)
            for id, was in kept.items():
                if id in there:
                    commands += was.commands(f"{name}/{id}", there[id].settings)
        execute(self._place, commands)

    # --- what is in force

    def _enforce(self, group: RouteGroup, table: Table, there: Mapping[str, Server]) -> None:
        """Raise weights before others are lowered: at no moment is there none."""
        name, own = self._name(group), known(self._found, "it was frozen").servers
        weights = config.weights(table, proxy.SIDES[0])
        most = {id: was.maxconn for id, was in own[name].items()}
        bounds = server_bounds(table.slots, table.limits, most)
        commands = []
        for id in sorted(weights, key=lambda id: (-weights[id], id)):
            now = tables.configured(there, id).settings
            wanted = ServerSettings(weights[id], bounds[id], READY if weights[id] else now.state)
            if own[name][id].state != READY:
                wanted = replace(wanted, state=now.state)
            commands += wanted.commands(f"{name}/{id}", now)
        execute(self._place, commands)

    def _name(self, group: RouteGroup) -> str:
        return self._backend or group.name

    # --- what was counted

    def _seen(self, group: RouteGroup, rows: Sequence[Mapping[str, str]], now_ms: int) -> GroupSeen:
        counted = proxy.GroupCount()
        members = {backend.id for backend in group.backends}
        latencies: dict[str, float | None] = {}
        for row in rows:
            if row["svname"] not in members:
                continue
            one, repeated, average_ms = servers.count(row)
            counted.backends[row["svname"]] = one
            counted.retries += repeated
            counted.admitted += one.admitted - repeated
            done = int(row.get("req_tot") or 0)
            key = f"{row['pxname']}/{row['svname']}"
            latencies[row["svname"]] = self._latency(key, now_ms, done, average_ms)
        return counted.seen(
            self._active[group.name],
            Liveness.NORMAL,
            lambda name: (0, latencies.get(name)),
            {id: id for id in sorted(members)},
        )

    def _latency(self, key: str, now_ms: int, done: int, average_ms: int) -> float | None:
        window = self._times.setdefault(key, deque())
        while len(window) > 1 and now_ms - window[1][0] >= LATENCY_WINDOW_MS:
            window.popleft()
        window.append((now_ms, done, average_ms))
        return mean_since(window[0][1:], (done, average_ms))


def _check_backend(backend: Backend, there: Mapping[str, Server], name: str) -> None:
    server = there.get(backend.id)
    if server is None:
        known = ", ".join(sorted(there))
        raise PermanentFault(f"backend {name!r} has no server {backend.id!r}; it has {known}")
    servers.check_server(server, name)
    if (server.host, server.port) != (backend.host, backend.port):
        here = proxy.address(server.host, server.port)
        listed = proxy.address(backend.host, backend.port)
        raise PermanentFault(
            f"server {backend.id!r} of backend {name!r} is at {here}, not at {listed}"
        )


def _servers_or_none(place: Place, backend: str) -> dict[str, Server]:
    """None where the backend is gone: then nothing of it is to be put back."""
    try:
        return servers.read_servers(place, backend)
    except PermanentFault:
        return {}


def discover(place: Place, backend: str, path: str) -> tuple[Backend, ...]:
    """The servers of a backend, for a group that lists none; those in maintenance are left out."""
    servers.check_level(place)
    try:
        there = servers.read_servers(place, backend)
        usable = [server for server in there.values() if server.settings.state != servers.MAINT]
        for server in usable:
            servers.check_server(server, backend)
    except Fault as fault:
        raise PermanentFault(f"{path}: {fault}") from fault
    return tuple(Backend(server.name, server.host, server.port) for server in usable)
