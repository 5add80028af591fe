"""The Envoy dataplane: tables as endpoint weights of the side that rests, then a route file flips.

A table with the weights of the one before stays on its side: what is inside goes on being seen.
"""

import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fairlead.core.traffic.admission import FALLBACK_AFTER_MS
from fairlead.core.traffic.limits import Concurrency, liveness
from fairlead.core.traffic.sighting import Liveness
from fairlead.dataplane import proxy, tables
from fairlead.dataplane.envoy import admin, deadman, documents
from fairlead.dataplane.envoy.documents import Document, EnvoyFiles, cluster_name
from fairlead.dataplane.proxy import COPIES, HASHED, SIDES
from fairlead.dataplane.tables import Active, active
from fairlead.host import files
from fairlead.host.clock import wait_until
from fairlead.host.process import run_detached
from fairlead.ports.dataplane import SCHEMA_VERSION, Backend, RouteGroup, Stale, Table
from fairlead.ports.faults import TemporaryFault
from fairlead.schema.convert import convert

_GUARD_STOP_S = 20.0


class EnvoyDataplane(proxy.ProxyDataplane):
    """One Envoy of our own, in one folder."""

    name = "envoy"
    sources: Mapping[str, str] = {
        "requests": "/clusters: requests sent to each host",
        "queue": "/clusters: requests under way in each host; none wait for one",
        "latency": "access log: p95 of the duration of successes over 5 s",
        "errors": "/clusters: 5xx, failed connects",
    }
    _files: EnvoyFiles
    _process: admin.EnvoyProcess

    def __init__(self, folder: Path, *, binary: str | None = None, workers: int = 1) -> None:
        """One worker makes splits and buckets exact; of several, each has a share of the bucket."""
        files = EnvoyFiles(folder.absolute())
        super().__init__(files, admin.EnvoyProcess(files, binary), admin.EnvoyLog(files.requests))
        self._workers = workers

    def schema_version(self) -> int:
        """Of the documents that are installed; ours when there are none."""
        return proxy.load(self._files.schema, int) or SCHEMA_VERSION

    @proxy.as_fault
    def apply(self, table: Table, *, decision: int | None) -> None:
        group = tables.check_table(table, self._groups)
        now = self._active(group.name)
        tables.check_flip(table, now.table.epoch if now else 0, self._liveness())
        self._flip(group, Active(table, decision, now.side if now else SIDES[1]))

    def limit(self, group: str, bound: Concurrency, *, decision: int | None) -> None:
        """Envoy weighs the requests in each backend on every choice."""

    def drain(self, group: str, backend: str, *, decision: int | None) -> None:
        """Envoy places requests, not connections: without slots nothing is kept. Checks only."""
        tables.check_backend(self._groups, group, backend)

    @proxy.as_fault
    def remove(self) -> None:
        _unguard(self._files.folder)
        super().remove()

    def _host(self, backend: Backend) -> str:
        return proxy.address(backend.host, backend.port)

    def _look(self) -> proxy.ProxyView:
        names = [proxy.escape(name) for name in self._groups]
        counted = admin.read_counts(self._files.admin, names)
        groups = self._groups.items()
        now = {name: self._active(name) or active(group, None) for name, group in groups}
        return counted, now, self._liveness()

    def _install(self, groups: Sequence[RouteGroup]) -> None:
        documents.check_watches(len(groups))
        for folder in (self._files.routes, self._files.assignments):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        running = self._running()
        proxy.check_free(groups, self._addresses() if running else ())
        self._mark_alive()
        if running:
            self._change(groups)
        else:
            for group in groups:
                self._lay(group, active(group, self._active(group.name)))
            self._lay_shape(groups)
            self._process.start(self._workers)
        self._sweep({proxy.escape(group.name) for group in groups})

    def _running(self) -> bool:
        """Whether our Envoy runs as we would start it; one that does not is stopped."""
        wanted, path = documents.bootstrap(self._files, self._workers), self._files.bootstrap
        same = proxy.load(path, dict[str, Any]) == wanted
        running = self._process.answers()
        if running and not same:
            self._process.stop()
        proxy.save(path, wanted)
        proxy.save(self._files.schema, SCHEMA_VERSION)
        return running and same

    def _change(self, groups: Sequence[RouteGroup]) -> None:
        """New clusters before the listeners that need them, old ones away after."""
        before = {group.name: self._active(group.name) for group in groups}
        for group in groups:
            if before[group.name] is None:
                self._lay(group, active(group, None))
        wanted = documents.clusters(groups, self._files)
        names = {cluster["name"] for cluster in wanted}
        kept = documents.resources(self._files.clusters)
        union = wanted + [cluster for cluster in kept if cluster["name"] not in names]
        self._shape("cluster_manager.cds", self._files.clusters, union)
        listeners = documents.listeners(groups, self._files)
        self._shape("listener_manager.lds", self._files.listeners, listeners)
        self._shape("cluster_manager.cds", self._files.clusters, wanted)
        biases = documents.read_biases(self._files.runtime)
        self._bias({name: bias for name, bias in biases.items() if name in names})
        for group in groups:
            was = before[group.name]
            if was is None:
                continue
            same = set(was.table.slots) == {backend.id for backend in group.backends}
            if not (same and self._laid(group, was)):
                self._flip(group, active(group, was))

    def _flip(self, group: RouteGroup, now: Active) -> None:
        """`now` has the side that serves."""
        if not self._laid(group, now):  # else only admission or the bound changes
            now = replace(now, side=proxy.other_side(now.side))
            self._lay_weights(group, now)
        scope = "http.{0}.rds.{0}".format(proxy.escape(group.name))
        before = admin.updates(self._files.admin, [scope])
        with files.holding(self._files.folder / deadman.LOCK):
            if self._liveness() is not Liveness.NORMAL:
                raise Stale(f"the heartbeat is old: {self._liveness()}")
            version = self._lay_routes(group, now)
        admin.take_up(self._files.admin, {scope: version}, before)

    def _beat(self) -> None:
        """Write the time down; bring the active tables back; start a dead-man process."""
        if not self._process.alive():
            raise TemporaryFault(f"Envoy does not answer at {self._files.admin}")
        self._mark_alive()
        _guard(self._files.folder)

    def _mark_alive(self) -> None:
        deadman.beat(str(self._files.folder), deadman.now_ms())
        deadman.settle(str(self._files.folder), FALLBACK_AFTER_MS)

    def _liveness(self) -> Liveness:
        """By the age of the heartbeat; fallback only once the dead-man process has acted."""
        folder = str(self._files.folder)
        if deadman.alone(folder):
            return Liveness.FALLBACK
        judged = liveness(deadman.age_ms(folder))
        return Liveness.HOLD if judged is Liveness.FALLBACK else judged

    # Documents: what is in the folder, and what of it Envoy has.

    def _active(self, group: str) -> Active | None:
        """What a group's route stands for: written into it, so that the next agent can read it."""
        resources = documents.resources(self._files.route(group, deadman.ROUTE_ACTIVE))
        if not resources:
            return None
        route = resources[0]["virtual_hosts"][0]["routes"][-1]
        return convert(route["metadata"]["filter_metadata"]["fairlead"], Active)

    def _addresses(self) -> set[proxy.Address]:
        listeners = documents.resources(self._files.listeners)
        places = (listener["address"]["socket_address"] for listener in listeners)
        return {(place["address"], place["port_value"]) for place in places}

    def _lay(self, group: RouteGroup, now: Active) -> None:
        self._lay_endpoints(group, now.table, COPIES)
        self._lay_routes(group, replace(now, side=SIDES[0]))

    def _lay_shape(self, groups: Sequence[RouteGroup]) -> None:
        """Everything but tables, for an Envoy that does not run yet."""
        biases: dict[str, float] = {}
        for group in groups:
            now = self._active(group.name)
            if now is not None and now.table.limits.concurrency is not None:
                names = [cluster_name(group.name, side) for side in SIDES]
                biases |= dict.fromkeys(names, now.table.limits.concurrency.request_bias)
        documents.write(self._files.runtime, documents.runtime(biases))
        documents.write(self._files.clusters, documents.clusters(groups, self._files))
        documents.write(self._files.listeners, documents.listeners(groups, self._files))

    def _laid(self, group: RouteGroup, now: Active) -> bool:
        return all(
            documents.resources(self._files.endpoints(cluster_name(group.name, side)))
            == documents.endpoints(group, side, now.table)
            for side in (now.side, HASHED)
        )

    def _lay_weights(self, group: RouteGroup, now: Active) -> None:
        """Lay a table out on a side that rests, and wait until Envoy has it."""
        name, bound = cluster_name(group.name, now.side), now.table.limits.concurrency
        # First the bias: the new weights make Envoy ask for it.
        biases = documents.read_biases(self._files.runtime)
        biases.pop(name, None)
        self._bias(biases if bound is None else biases | {name: bound.request_bias})
        sides = (now.side, HASHED)
        scopes = [f"cluster.{cluster_name(group.name, side)}" for side in sides]
        before = admin.updates(self._files.admin, scopes)
        admin.take_up(self._files.admin, self._lay_endpoints(group, now.table, sides), before)

    def _lay_routes(self, group: RouteGroup, now: Active) -> str:
        """What is needed when the agent dies comes first, what flips comes last."""
        alone, path = (
            self._files.route(group.name, kind)
            for kind in (deadman.ROUTE_ALONE, deadman.ROUTE_ACTIVE)
        )
        documents.write(alone, documents.route(group, now, self._workers, alone=True))
        version = documents.write(path, documents.route(group, now, self._workers, alone=False))
        deadman.place(str(path), self._files.route(group.name).name)
        return version

    def _lay_endpoints(
        self, group: RouteGroup, table: Table, sides: Sequence[str]
    ) -> dict[str, str]:
        """Returns the versions of what was written, by Envoy's name for it."""
        versions = {}
        for side in sides:
            name, listed = cluster_name(group.name, side), documents.endpoints(group, side, table)
            versions[f"cluster.{name}"] = documents.write(self._files.endpoints(name), listed)
        return versions

    def _sweep(self, known: Collection[str]) -> None:
        gone = [path for path in self._files.routes.iterdir() if path.stem not in known]
        for path in self._files.assignments.iterdir():
            if path.stem.rpartition("_")[0] not in known:
                gone.append(path)
        for path in gone:
            path.unlink()

    def _bias(self, biases: Mapping[str, float]) -> None:
        self._shape("runtime", self._files.runtime, documents.runtime(biases))

    def _shape(self, scope: str, path: Path, resources: list[Document]) -> None:
        """Replace a document, if it differs, and wait until Envoy has it."""
        if documents.resources(path) != resources:
            before = admin.updates(self._files.admin, [scope])
            admin.take_up(self._files.admin, {scope: documents.write(path, resources)}, before)


def _guard(folder: Path) -> None:
    if files.locked(folder / deadman.LIFE):
        return
    command = [sys.executable, "-I", "-S", deadman.__file__, str(folder), str(FALLBACK_AFTER_MS)]
    if code := run_detached(command):
        raise TemporaryFault(f"the dead-man process ended with {code}")


def _unguard(folder: Path) -> None:
    """It leaves when its file is gone; the next dataplane of this folder must not meet it."""
    life, left = folder / deadman.LIFE, folder / f"{deadman.LIFE}.draft-left"
    if life.exists():
        life.rename(left)
        wait_until(lambda: not files.locked(left), within_s=_GUARD_STOP_S)
