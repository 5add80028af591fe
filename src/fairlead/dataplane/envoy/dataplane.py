"""The Envoy dataplane: tables as endpoint weights of the side that rests, then a route file flips.

A table with the weights of the one before stays on its side: what is inside goes on being seen.
"""

import fcntl
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from fairlead.core.traffic.admission import FALLBACK_AFTER_MS
from fairlead.core.traffic.limits import liveness
from fairlead.core.traffic.sighting import GroupSeen, Liveness
from fairlead.dataplane import proxy, tables
from fairlead.dataplane.envoy import admin, deadman, documents
from fairlead.dataplane.envoy.admin import EnvoyLog, EnvoyProcess
from fairlead.dataplane.envoy.documents import EnvoyFiles, EnvoySettings
from fairlead.dataplane.envoy.routes import Layout
from fairlead.dataplane.tables import Active, active
from fairlead.host.process import run_detached
from fairlead.ports.dataplane import SCHEMA_VERSION, Backend, Proto, RouteGroup, Stale, Table
from fairlead.ports.faults import TemporaryFault


class EnvoyDataplane:
    """One Envoy of our own, in one folder."""

    name = "envoy"
    sources: Mapping[str, str] = {
        "requests": "/clusters: requests sent to each host",
        "queue": "/clusters: requests under way in each host; none wait for one",
        "latency": "access log: p95 of the duration of successes over 5 s",
        "errors": "/clusters: 5xx, failed connects",
    }

    def __init__(
        self, folder: Path, *, binary: str | None = None, settings: EnvoySettings | None = None
    ) -> None:
        self._files = EnvoyFiles(folder.absolute())
        self._settings = settings or EnvoySettings()
        self._layout = Layout(self._files, self._settings)
        self._process = EnvoyProcess(self._files, binary)
        self._log = EnvoyLog(self._files.requests)
        self._groups: dict[str, RouteGroup] = {}
        self._restarts = proxy.Restarts()

    @proxy.as_fault
    def configure(self, groups: Sequence[RouteGroup]) -> None:
        """These groups and no others; what did not change is not touched."""
        tables.check_groups(groups, dataplane=self.name, protos=(Proto.TCP,))
        documents.check_watches(len(groups))
        for folder in (deadman.ROUTES, "endpoints"):
            (self._files.folder / folder).mkdir(mode=0o700, parents=True, exist_ok=True)
        running = self._running()
        proxy.check_free(groups, self._layout.addresses() if running else ())
        self._beat()
        if not running:
            self._start(groups)
        else:
            self._change(groups)
        self._groups = {group.name: group for group in groups}
        self._layout.sweep(self._groups)
        members = {(proxy.escape(g.name), _host(each)) for g in groups for each in g.backends}
        self._log.requests.keep(members)
        self._beat()
        guard(self._files.folder)

    def schema_version(self) -> int:
        """Of the documents that are installed; ours when there are none."""
        path = self._files.schema
        text = path.read_text() if path.exists() else ""
        return int(text) if text.isdigit() else SCHEMA_VERSION

    @proxy.as_fault
    def apply(self, table: Table, *, decision: int | None) -> None:
        group = tables.check_table(table, self._groups)
        now = self._layout.active(group.name)
        tables.check_flip(table, now.table.epoch if now else 0, self._liveness())
        self._flip(group, Active(table, decision, now.side if now else proxy.SIDES[1]))

    def limit(self, group: str, room: Mapping[str, int], *, decision: int | None) -> None:
        """Envoy weighs the requests in each backend on every choice."""

    @proxy.as_fault
    def heartbeat(self) -> None:
        """Write the time down; bring the active tables back; restart what died."""
        if self._groups and not self._process.listens():
            with self._restarts.attempt():
                self.configure(list(self._groups.values()))
        self._beat()
        guard(self._files.folder)

    def drain(self, group: str, backend: str, *, decision: int | None) -> None:
        """Envoy places requests, not connections: without slots nothing is kept. Checks only."""
        tables.check_backend(self._groups, group, backend)

    @proxy.as_fault
    def read(self) -> Mapping[str, GroupSeen]:
        now_ms = deadman.now_ms()
        counted = admin.read_counts(
            self._files.admin, [proxy.escape(name) for name in self._groups]
        )
        self._log.catch_up(now_ms)
        alive = self._liveness()
        return {
            name: counted[proxy.escape(name)].seen(
                self._layout.active(name) or active(group, None),
                alive,
                self._log.requests,
                now_ms,
                group=proxy.escape(name),
                names={backend.id: _host(backend) for backend in group.backends},
            )
            for name, group in self._groups.items()
        }

    def detach(self) -> None:
        """Nothing is held that Envoy would miss."""

    @proxy.as_fault
    def remove(self) -> None:
        unguard(self._files.folder)
        self._process.stop()
        self._groups = {}
        proxy.remove_files(self._files.folder, self._files.ours())

    def _running(self) -> bool:
        """Whether our Envoy runs as we would start it; one that does not is stopped."""
        text = json.dumps(documents.bootstrap(self._files, self._settings), sort_keys=True)
        path = self._files.bootstrap
        same = path.exists() and path.read_text() == text
        running = self._process.running()
        if running and not same:
            self._process.stop()
        proxy.replace_text(path, text)
        proxy.replace_text(self._files.schema, str(SCHEMA_VERSION))
        return running and same

    def _start(self, groups: Sequence[RouteGroup]) -> None:
        now = [active(group, self._layout.active(group.name)) for group in groups]
        self._layout.lay_all(groups, now)
        self._process.start(self._settings)

    def _change(self, groups: Sequence[RouteGroup]) -> None:
        before = {group.name: self._layout.active(group.name) for group in groups}
        for group in groups:
            if before[group.name] is None:
                self._layout.lay(group, active(group, None))
        self._layout.change(groups)
        for group in groups:
            was = before[group.name]
            if was is not None and self._moved(group, was):
                self._flip(group, active(group, was))

    def _moved(self, group: RouteGroup, now: Active) -> bool:
        same = set(now.table.slots) == {backend.id for backend in group.backends}
        return not (same and self._layout.laid(group, now))

    def _flip(self, group: RouteGroup, now: Active) -> None:
        """`now` has the side that serves."""
        version = documents.version()
        if not self._layout.laid(group, now):  # else only admission or the bound changes
            now = replace(now, side=proxy.other_side(now.side))
            self._layout.lay_weights(group, now, version)
        with deadman.locked(str(self._files.folder)):
            if self._liveness() is not Liveness.NORMAL:
                raise Stale(f"the heartbeat is old: {self._liveness()}")
            self._layout.lay_routes(group, now, version)
        name = proxy.escape(group.name)
        admin.take_up(self._files.admin, {f"http.{name}.rds.{name}": version})

    def _beat(self) -> None:
        deadman.beat(str(self._files.folder), deadman.now_ms())
        deadman.settle(str(self._files.folder), FALLBACK_AFTER_MS)

    def _liveness(self) -> Liveness:
        """By the age of the heartbeat; fallback only once the dead-man process has acted."""
        folder = str(self._files.folder)
        if deadman.alone(folder):
            return Liveness.FALLBACK
        judged = liveness(deadman.age_ms(folder))
        return Liveness.HOLD if judged is Liveness.FALLBACK else judged


def _host(backend: Backend) -> str:
    return proxy.address(backend.host, backend.port)


def guard(folder: Path) -> None:
    if _guarded(folder):
        return
    command = [sys.executable, "-I", "-S", deadman.__file__, str(folder), str(FALLBACK_AFTER_MS)]
    if code := run_detached(command):
        raise TemporaryFault(f"the dead-man process ended with {code}")


def unguard(folder: Path) -> None:
    path = folder / deadman.LIFE
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        path.unlink()
        fcntl.flock(descriptor, fcntl.LOCK_EX)  # free when it has looked once more and left
    finally:
        os.close(descriptor)


def _guarded(folder: Path) -> bool:
    try:
        descriptor = os.open(folder / deadman.LIFE, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
