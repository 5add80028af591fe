"""The route of a group, and the files of all groups.

The route is all that a flip changes, in one file that is replaced whole. It has the cluster that
serves, how much may be inside and the admission. The admission script (`admission.lua`) reads its
numbers from the route's metadata; that of the bound (`inside.lua`) has them in front.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import msgspec

from fairlead.core.traffic.model import Admission
from fairlead.core.traffic.state import AdmissionMode
from fairlead.dataplane.envoy import admin, deadman, documents
from fairlead.dataplane.proxy import HASHED, REFUSED_STATUS, SIDES, Address, escape
from fairlead.dataplane.tables import Active
from fairlead.ports.dataplane import RouteGroup, Table

_OURS = "fairlead"
_SCRIPT = Path(__file__).with_name("inside.lua")


def active_route(
    group: RouteGroup, now: Active, *, version: str, workers: int
) -> documents.Document:
    limits = now.table.limits
    admission = _admission(limits.admission, limits.retry_after_s, workers)
    admission |= {"no_backend": not any(now.table.slots.values())}
    bound = limits.concurrency.inside_max if limits.concurrency else None
    return _routes(group, admission, _target(group, now.side, bound), now, version)


def fallback_route(
    group: RouteGroup, now: Active, *, version: str, workers: int
) -> documents.Document:
    """The route for the time without an agent: nothing is bounded."""
    fallback = now.table.limits.fallback
    admission = _admission(fallback.admission, fallback.retry_after_s, workers)
    admission |= {"no_backend": not fallback.members}
    target = _target(group, HASHED, None) | documents.filled("hashed_target")
    return _routes(group, admission, target, now, version)


def read_route(document: documents.Document) -> Active:
    """What a route stands for: it is written into it, so that the next agent can read it."""
    routes = document["resources"][0]["virtual_hosts"][0]["routes"]
    return msgspec.convert(routes[-1]["metadata"]["filter_metadata"][_OURS], Active)


def _target(group: RouteGroup, served: str, inside_max: int | None) -> documents.Document:
    """Where requests go: to a cluster, or through the script that counts what is inside."""
    name = documents.cluster_name(group.name, served)
    if inside_max is None:
        return {"cluster": name}
    listed = ", ".join(
        json.dumps(documents.cluster_name(group.name, side)) for side in (*SIDES, HASHED)
    )
    numbers = f"local most, served, clusters = {inside_max}, {json.dumps(name)}, {{{listed}}}\n"
    return documents.filled("bounded_target", script=numbers + _SCRIPT.read_text(), name=name)


def _admission(admission: Admission, retry_after_s: int, workers: int) -> documents.Document:
    """What the script is told: each worker has a bucket, and a share of the numbers."""
    if admission.mode == AdmissionMode.NORMAL:
        return {"mode": admission.mode.value}
    rate, burst = admission.rate_per_s or 0.0, admission.burst or 0.0
    # A bucket below one token would never admit anything, however long it fills.
    share = max(burst / workers, min(burst, 1.0))
    return {
        "mode": admission.mode.value,
        "rate": rate / workers,
        "burst": share,
        "retry_after_s": retry_after_s,
    }


def _routes(
    group: RouteGroup,
    admission: documents.Document,
    target: documents.Document,
    now: Active,
    version: str,
) -> documents.Document:
    refusals = [
        documents.filled(
            "refusal",
            refused=documents.filled("refused", mode=mode),
            status=status,
            body=documents.refusal_body(mode),
            headers=documents.refusal_headers(mode, admission.get("retry_after_s", 1)),
        )
        for mode, status in REFUSED_STATUS.items()
    ]
    target |= {"timeout": "0s"}
    route = documents.filled("route", target=target, admission=admission, active=asdict(now))
    if admission["mode"] == AdmissionMode.NORMAL and not admission["no_backend"]:
        route["typed_per_filter_config"] = documents.filled("unscripted")
    routes = documents.filled("routes", name=escape(group.name), routes=[*refusals, route])
    return documents.response(version, [routes])


class Layout:
    """The documents of one folder, and what of them Envoy has. It does not know whether the agent
    lives; the dataplane decides when to call it."""

    def __init__(self, files: documents.EnvoyFiles, settings: documents.EnvoySettings) -> None:
        self._files, self._settings = files, settings

    def active(self, group: str) -> Active | None:
        document = documents.read(self._files.route(group, deadman.ROUTE_ACTIVE))
        return read_route(document) if document else None

    def addresses(self) -> set[Address]:
        sockets = [
            listener["address"]["socket_address"]
            for listener in documents.resources(self._files.listeners)
        ]
        return {(place["address"], place["port_value"]) for place in sockets}

    def lay_all(self, groups: Sequence[RouteGroup], active: Sequence[Active]) -> None:
        """Everything, for an Envoy that does not run yet."""
        biases: dict[str, float] = {}
        for group, now in zip(groups, active, strict=True):
            self.lay(group, now)
            bound = now.table.limits.concurrency
            if bound is not None:
                names = [documents.cluster_name(group.name, side) for side in SIDES]
                biases |= dict.fromkeys(names, bound.request_bias)
        self._write(self._files.runtime, documents.runtime(biases))
        self._write(self._files.clusters, documents.clusters(groups, self._files, self._settings))
        self._write(self._files.listeners, documents.listeners(groups, self._files, self._settings))

    def change(self, groups: Sequence[RouteGroup]) -> None:
        """New clusters before the listeners that need them, old ones away after."""
        wanted = documents.clusters(groups, self._files, self._settings)
        kept = documents.resources(self._files.clusters)
        names = {cluster["name"] for cluster in wanted}
        union = wanted + [cluster for cluster in kept if cluster["name"] not in names]
        self._shape("cluster_manager.cds", self._files.clusters, union)
        self._shape(
            "listener_manager.lds",
            self._files.listeners,
            documents.listeners(groups, self._files, self._settings),
        )
        self._shape("cluster_manager.cds", self._files.clusters, wanted)
        self._bias({name: bias for name, bias in self._biases().items() if name in names})

    def lay(self, group: RouteGroup, now: Active) -> None:
        version = documents.version()
        self._lay_endpoints(group, now.table, (*SIDES, HASHED), version)
        self.lay_routes(group, replace(now, side=SIDES[0]), version)

    def laid(self, group: RouteGroup, now: Active) -> bool:
        for side in (now.side, HASHED):
            path = self._files.endpoints(documents.cluster_name(group.name, side))
            wanted = documents.endpoints(group, side, now.table, "")["resources"]
            if documents.resources(path) != wanted:
                return False
        return True

    def lay_weights(self, group: RouteGroup, now: Active, version: str) -> None:
        """Lay a table out on a side that rests, and wait until Envoy has it."""
        name, bound = documents.cluster_name(group.name, now.side), now.table.limits.concurrency
        # First the bias: the new weights make Envoy ask for it.
        biases = {known: bias for known, bias in self._biases().items() if known != name}
        self._bias(biases if bound is None else biases | {name: bound.request_bias})
        self._lay_endpoints(group, now.table, (now.side, HASHED), version)
        hashed = documents.cluster_name(group.name, HASHED)
        admin.take_up(self._files.admin, {f"cluster.{name}": version, f"cluster.{hashed}": version})

    def lay_routes(self, group: RouteGroup, now: Active, version: str) -> None:
        """What is needed when the agent dies comes first, what flips comes last."""
        workers = self._settings.workers
        without = fallback_route(group, now, version=version, workers=workers)
        documents.write(self._files.route(group.name, deadman.ROUTE_ALONE), without)
        path = self._files.route(group.name, deadman.ROUTE_ACTIVE)
        documents.write(path, active_route(group, now, version=version, workers=workers))
        deadman.place(str(path), self._files.route(group.name).name)

    def sweep(self, groups: Collection[str]) -> None:
        known = {escape(name) for name in groups}
        for path in (self._files.folder / deadman.ROUTES).iterdir():
            if path.stem not in known:
                path.unlink()
        for path in (self._files.folder / "endpoints").iterdir():
            if path.stem.rpartition("_")[0] not in known:
                path.unlink()

    def _lay_endpoints(
        self, group: RouteGroup, table: Table, sides: Sequence[str], version: str
    ) -> None:
        for side in sides:
            path = self._files.endpoints(documents.cluster_name(group.name, side))
            documents.write(path, documents.endpoints(group, side, table, version))

    def _biases(self) -> dict[str, float]:
        return documents.biases(documents.resources(self._files.runtime))

    def _bias(self, biases: Mapping[str, float]) -> None:
        self._shape("runtime", self._files.runtime, documents.runtime(biases))

    def _shape(self, scope: str, path: Path, resources: list[documents.Document]) -> None:
        """Replace a document, if it differs, and wait until Envoy has it."""
        if documents.resources(path) != resources:
            admin.take_up(self._files.admin, {scope: self._write(path, resources)})

    def _write(self, path: Path, resources: list[documents.Document]) -> str:
        version = documents.version()
        documents.write(path, documents.response(version, resources))
        return version
