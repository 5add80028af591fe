"""What lies in the plane's folder: groups and tables as documents, and what of them Envoy has.

The plane decides when; nothing here knows whether the agent lives.
"""

from collections.abc import Collection, Sequence
from pathlib import Path

from fairlead.dataplane.addresses import Door
from fairlead.dataplane.envoy import admin, deadman, documents, files, routes
from fairlead.dataplane.envoy.documents import HASHED, SIDES, Limits, cluster_name
from fairlead.dataplane.envoy.files import Document, Files
from fairlead.dataplane.names import tame
from fairlead.dataplane.tables import Current
from fairlead.ports.dataplane import RouteGroup


class Layout:
    """The documents of one folder."""

    def __init__(self, files: Files, limits: Limits) -> None:
        self._files, self._limits = files, limits

    def current(self, group: str) -> tuple[Current, str] | None:
        """What a group goes by, and on which side."""
        found = files.read(self._files.route(group, deadman.ROUTE_ACTIVE))
        return routes.read(found) if found else None

    def doors(self) -> set[Door]:
        """The addresses that Envoy listens at."""
        places = [
            each["address"]["socket_address"] for each in files.resources(self._files.listeners)
        ]
        return {(place["address"], place["port_value"]) for place in places}

    def lay_all(self, groups: Sequence[RouteGroup], tables: Sequence[Current]) -> None:
        """Everything, for an Envoy that is not there yet."""
        leaning = set()
        for group, table in zip(groups, tables, strict=True):
            self.lay(group, table)
            if table.inside_max is not None:
                leaning |= {cluster_name(group.name, side) for side in SIDES}
        self._write(self._files.runtime, documents.leaning(leaning))
        self._write(self._files.clusters, documents.clusters(groups, self._files, self._limits))
        self._write(self._files.listeners, documents.listeners(groups, self._files, self._limits))

    def change(self, groups: Sequence[RouteGroup]) -> None:
        """New clusters before the listeners that need them, old ones away after."""
        wanted = documents.clusters(groups, self._files, self._limits)
        kept = files.resources(self._files.clusters)
        names = {each["name"] for each in wanted}
        union = wanted + [each for each in kept if each["name"] not in names]
        self._shape("cluster_manager.cds", self._files.clusters, union)
        self._shape(
            "listener_manager.lds",
            self._files.listeners,
            documents.listeners(groups, self._files, self._limits),
        )
        self._shape("cluster_manager.cds", self._files.clusters, wanted)
        self._lean(self._leaning() & names)

    def lay(self, group: RouteGroup, table: Current) -> None:
        """Everything of a group that Envoy does not know yet."""
        version = files.version()
        self._lay_endpoints(group, table, (*SIDES, HASHED), version)
        self.lay_routes(group, table, SIDES[0], version)

    def laid(self, group: RouteGroup, table: Current, side: str) -> bool:
        """Whether Envoy has the table's weights on this side."""
        for each in (side, HASHED):
            path = self._files.endpoints(cluster_name(group.name, each))
            if files.resources(path) != documents.endpoints(group, each, table, "")["resources"]:
                return False
        return True

    def lay_weights(self, group: RouteGroup, table: Current, side: str, version: str) -> None:
        """Lay a table out on a side that rests, and wait until Envoy has it."""
        name = cluster_name(group.name, side)
        # First whether it looks at what is inside: the new weights make Envoy ask.
        others = self._leaning() - {name}
        self._lean(others if table.inside_max is None else others | {name})
        self._lay_endpoints(group, table, (side, HASHED), version)
        hashed = cluster_name(group.name, HASHED)
        admin.take_up(self._files.admin, {f"cluster.{name}": version, f"cluster.{hashed}": version})

    def lay_routes(self, group: RouteGroup, table: Current, side: str, version: str) -> None:
        """What is needed when we die comes first, what flips comes last."""
        workers = self._limits.workers
        without = routes.alone(group, table, side=side, version=version, workers=workers)
        files.write(self._files.route(group.name, deadman.ROUTE_ALONE), without)
        active = self._files.route(group.name, deadman.ROUTE_ACTIVE)
        files.write(
            active, routes.active(group, table, side=side, version=version, workers=workers)
        )
        deadman.place(str(active), self._files.route(group.name).name)

    def sweep(self, groups: Collection[str]) -> None:
        """Take away the files of groups that are gone."""
        known = {tame(name) for name in groups}
        for path in (self._files.folder / deadman.ROUTES).iterdir():
            if path.stem not in known:
                path.unlink()
        for path in (self._files.folder / "endpoints").iterdir():
            if path.stem.rpartition("_")[0] not in known:
                path.unlink()

    def _lay_endpoints(
        self, group: RouteGroup, table: Current, sides: Sequence[str], version: str
    ) -> None:
        for side in sides:
            path = self._files.endpoints(cluster_name(group.name, side))
            files.write(path, documents.endpoints(group, side, table, version))

    def _leaning(self) -> set[str]:
        return documents.who_leans(files.resources(self._files.runtime))

    def _lean(self, clusters: Collection[str]) -> None:
        self._shape("runtime", self._files.runtime, documents.leaning(clusters))

    def _shape(self, scope: str, path: Path, resources: list[Document]) -> None:
        """Replace a document, if it differs, and wait until Envoy has it."""
        if files.resources(path) != resources:
            admin.take_up(self._files.admin, {scope: self._write(path, resources)})

    def _write(self, path: Path, resources: list[Document]) -> str:
        version = files.version()
        files.write(path, documents.response(version, resources))
        return version
