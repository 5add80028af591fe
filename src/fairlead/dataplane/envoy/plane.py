"""The Envoy plane: tables as endpoint weights of the side that rests, then one route file flips.

A table with the weights of the one before stays on its side: what is inside goes on being seen.
"""

import contextlib
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from fairlead.dataplane.addresses import check_free
from fairlead.dataplane.envoy import admin, counts, deadman, documents, files
from fairlead.dataplane.envoy.documents import SIDES, Limits
from fairlead.dataplane.envoy.files import Files
from fairlead.dataplane.envoy.layout import Layout
from fairlead.dataplane.envoy.process import Process, guard, unguard
from fairlead.dataplane.envoy.times import Times
from fairlead.dataplane.names import tame
from fairlead.dataplane.revival import Pause, as_fault
from fairlead.dataplane.tables import (
    Current,
    check_groups,
    check_table,
    current,
    fallback_admission,
    liveness,
)
from fairlead.ports.dataplane import (
    FALLBACK_AFTER_MS,
    SCHEMA_VERSION,
    BackendSeen,
    GroupSeen,
    Liveness,
    Proto,
    RouteGroup,
    Stale,
    Table,
)
from fairlead.ports.faults import PermanentFault


class EnvoyPlane:
    """One Envoy of our own, in one folder."""

    name = "envoy"
    sources: Mapping[str, str] = {
        "requests": "/clusters: requests sent to each host",
        "queue": "/clusters: requests under way in each host; none wait for one",
        "latency": "access log: p95 of the duration of successes over 5 s",
        "errors": "/clusters: 5xx, failed connects",
    }

    def __init__(
        self, folder: Path, *, binary: str | None = None, limits: Limits | None = None
    ) -> None:
        self._files = Files(folder.absolute())
        self._limits = limits or Limits()
        self._layout = Layout(self._files, self._limits)
        self._process = Process(self._files, binary)
        self._times = Times(self._files.log)
        self._groups: dict[str, RouteGroup] = {}
        self._revival = Pause()

    @as_fault
    def configure(self, groups: Sequence[RouteGroup]) -> None:
        """These groups and no others; what did not change is not touched."""
        check_groups(groups, plane=self.name, protos=(Proto.TCP,))
        files.check_watches(len(groups))
        for folder in (deadman.ROUTES, "endpoints"):
            (self._files.folder / folder).mkdir(mode=0o700, parents=True, exist_ok=True)
        running = self._running()
        check_free(groups, self._layout.doors() if running else ())
        self._beat()
        if not running:
            self._start(groups)
        else:
            self._change(groups)
        self._groups = {group.name: group for group in groups}
        self._layout.sweep(self._groups)
        self._beat()
        guard(self._files.folder)

    def schema_version(self) -> int:
        """Of the documents that are installed; ours when there are none."""
        path = self._files.schema
        told = path.read_text() if path.exists() else ""
        return int(told) if told.isdigit() else SCHEMA_VERSION

    @as_fault
    def apply(self, table: Table) -> None:
        """Lay the table out on the side that rests, then flip the group's route to it."""
        group = self._group(table.group)
        check_table(table, group)
        now, _ = self._layout.current(group.name) or (None, "")
        if self._liveness() != Liveness.NORMAL:
            raise Stale(f"the heartbeat is old: {self._liveness()}")
        if now is not None and table.epoch <= now.epoch:
            raise Stale(f"epoch {table.epoch} is not after {now.epoch}")
        self._flip(
            group, Current(table.epoch, dict(table.slots), table.admission, table.inside_max)
        )

    @as_fault
    def heartbeat(self) -> None:
        """Write the time down; bring the active tables back; revive who died."""
        if self._groups and not self._process.listens():
            with self._revival.over():
                self.configure(list(self._groups.values()))
        self._beat()
        guard(self._files.folder)

    @as_fault
    def drain(self, group: str, backend: str) -> None:
        """Envoy places requests, not connections: without slots nothing is kept. Checks only."""
        if backend not in {each.id for each in self._group(group).backends}:
            raise PermanentFault(f"backend {backend!r} is not in group {group!r}")

    @as_fault
    def read(self) -> Mapping[str, GroupSeen]:
        """Every group's counters."""
        now_ms = deadman.now_ms()
        counted = counts.read(self._files.admin, [tame(name) for name in self._groups])
        self._times.catch_up(now_ms)
        alive = self._liveness()
        return {
            name: self._seen(group, counted[tame(name)], alive, now_ms)
            for name, group in self._groups.items()
        }

    def detach(self) -> None:
        """Nothing is held that Envoy would miss."""

    @as_fault
    def remove(self) -> None:
        """Stop the dead-man process and Envoy, and take their files away."""
        unguard(self._files.folder)
        self._process.stop()
        self._groups = {}
        for path in self._files.ours():
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # somebody else's files may be there
            self._files.folder.rmdir()

    def _running(self) -> bool:
        """Whether our Envoy runs as we would start it; one that does not is stopped."""
        text = json.dumps(documents.bootstrap(self._files, self._limits), sort_keys=True)
        path = self._files.bootstrap
        same = path.exists() and path.read_text() == text
        running = self._process.running()
        if running and not same:
            self._process.stop()
        files.replace(path, text)
        files.replace(self._files.schema, str(SCHEMA_VERSION))
        return running and same

    def _start(self, groups: Sequence[RouteGroup]) -> None:
        tables = []
        for group in groups:
            was = self._layout.current(group.name)
            tables.append(current(group, was[0] if was else None))
        self._layout.lay_all(groups, tables)
        self._process.start(self._limits)

    def _change(self, groups: Sequence[RouteGroup]) -> None:
        before = {group.name: self._layout.current(group.name) for group in groups}
        for group in groups:
            if before[group.name] is None:
                self._layout.lay(group, current(group, None))
        self._layout.change(groups)
        for group in groups:
            was = before[group.name]
            if was is not None and self._moved(group, *was):
                self._flip(group, current(group, was[0]))

    def _moved(self, group: RouteGroup, now: Current, side: str) -> bool:
        """Whether backends came, went or changed their address."""
        same = set(now.slots) == {each.id for each in group.backends}
        return not (same and self._layout.laid(group, now, side))

    def _flip(self, group: RouteGroup, table: Current) -> None:
        _, side = self._layout.current(group.name) or (None, SIDES[1])
        version = files.version()
        if not self._layout.laid(group, table, side):  # else only the door or the bound changes
            side = SIDES[side == SIDES[0]]
            self._layout.lay_weights(group, table, side, version)
        with deadman.locked(str(self._files.folder)):
            if self._liveness() != Liveness.NORMAL:
                raise Stale(f"the heartbeat is old: {self._liveness()}")
            self._layout.lay_routes(group, table, side, version)
        name = tame(group.name)
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
        return Liveness.HOLD if judged == Liveness.FALLBACK else judged

    def _group(self, name: str) -> RouteGroup:
        if name not in self._groups:
            raise PermanentFault(f"group {name!r} is not configured")
        return self._groups[name]

    def _seen(
        self, group: RouteGroup, counted: counts.Counted, alive: Liveness, now_ms: int
    ) -> GroupSeen:
        now, _ = self._layout.current(group.name) or (current(group, None), "")
        alone = alive == Liveness.FALLBACK
        admission = fallback_admission(now.admission) if alone else now.admission
        backends = {}
        for each in group.backends:
            place = counts.address(each.host, each.port)
            host, key = counted.hosts.get(place, counts.Host()), (tame(group.name), place)
            backends[each.id] = BackendSeen(
                admitted=host.admitted,
                connect_failures=host.connect_failures,
                consecutive_failures=self._times.failures(key),
                successes=host.successes,
                errors=host.errors,
                open=host.open,
                queue=0,  # what waits for a connection waits for the cluster, and not long
                p95_ms=self._times.p95(key, now_ms),
            )
        return GroupSeen(
            epoch=now.epoch,
            liveness=alive,
            mode=admission.mode,
            admitted=counted.admitted,
            refused_soft=counted.refused_soft,
            refused_hard=counted.refused_hard,
            backends=backends,
        )
