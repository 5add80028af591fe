"""The HAProxy dataplane: tables as weights of the side that rests, then one map value flips it.

A reload starts a worker with counters at zero, so what was counted until then is kept in a file and
added. Requests that the old worker admits in the milliseconds between the last look and the new
worker's start are not counted; they are served all the same.
"""

import contextlib
import os
import pwd
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path

from fairlead.core.traffic.admission import FALLBACK_AFTER_MS
from fairlead.core.traffic.limits import Concurrency, liveness
from fairlead.core.traffic.sighting import GroupSeen, Liveness
from fairlead.dataplane import proxy, tables
from fairlead.dataplane.haproxy import config, runtime
from fairlead.dataplane.haproxy.counters import StatReader
from fairlead.dataplane.haproxy.runtime import HaproxyLog, HaproxyProcess, ask, ask_all, execute
from fairlead.dataplane.tables import Active, active
from fairlead.host.clock import monotonic_ms
from fairlead.ports.dataplane import SCHEMA_VERSION, Backend, RouteGroup, Table
from fairlead.ports.faults import PermanentFault

_VALUE = re.compile(r'value="([^"]*)"')
_EXPIRES = re.compile(rf"key={config.AGENT} .*\bexp=(\d+)")


class HaproxyDataplane(proxy.ProxyDataplane):
    """One HAProxy of our own, in one folder."""

    name = "haproxy"
    sources: Mapping[str, str] = {
        "requests": "show stat: requests sent to each server",
        "queue": "show stat: requests waiting for each server, and in it",
        "latency": "log ring: p95 of the active time of successes over 5 s",
        "errors": "show stat: 5xx, broken responses, failed connects",
    }
    _files: config.HaproxyFiles
    _process: HaproxyProcess
    _log: HaproxyLog

    def __init__(self, folder: Path, *, binary: str = "haproxy", threads: int = 1) -> None:
        """One thread makes the bucket exact: its rules read and write without a lock."""
        files = config.HaproxyFiles(folder.absolute())
        super().__init__(files, HaproxyProcess(files, binary), HaproxyLog())
        self._worker = {"threads": threads, "user": _unprivileged()}
        self._generation = ""
        self._active: dict[str, Active] = {}
        """What groups went by when it was last known, for a HAProxy that died; by name."""
        self._before: tuple[str, dict[str, proxy.GroupCount]] | None = None
        """A generation, and what was counted before it."""
        self._stat = StatReader(partial(ask_all, files.socket))
        self._totals: dict[str, proxy.GroupCount] = {}  # as last counted, by escaped name
        self._summed: dict[str, int] = {}
        """Groups of which the last glance showed no single backends, by escaped name."""
        self._view: proxy.ProxyView = {}, {}, Liveness.NORMAL
        self._room: dict[str, int] = {}  # the limit that each server was last given
        self._laid: dict[str, int] = {}  # and the weight; one that was drained since has none

    def schema_version(self) -> int:
        """Of the rules that run; ours when none do."""
        kind, _, rest = (self._process.running() or "").partition("/")
        return int(rest.partition("/")[0]) if kind == "fairlead" else SCHEMA_VERSION

    @proxy.as_fault
    def apply(self, table: Table, *, decision: int | None) -> None:
        group = tables.check_table(table, self._groups)
        name, states = proxy.escape(group.name), self._files.states
        answer = ask(self._files.socket, f"get map {states} {name}; show table {config.BEAT}")
        state = _VALUE.search(answer)
        if state is None:
            raise PermanentFault(f"HAProxy has no state for group {group.name!r}")
        epoch, side = config.read_head(state[1])
        tables.check_flip(table, epoch, _liveness(answer))
        now = Active(table, decision, proxy.other_side(side))
        proxy.save(self._files.laid(group.name, now.side), now)
        self._lay_out(config.laid_out(name, now.side, table))
        self._make_room(name, table.limits.concurrency, table.slots)
        execute(self._files.socket, [f"set map {states} {name} {config.write_state(now)}"])
        self._active[group.name] = now

    @proxy.as_fault
    def limit(self, group: str, bound: Concurrency, *, decision: int | None) -> None:
        """Give servers their limits, as far as these changed."""
        members = tables.configured(self._groups, group).backends
        now = self._active.get(group)
        resting = None if now is None else proxy.other_side(now.side)
        ids = [backend.id for backend in members]
        self._make_room(proxy.escape(group), bound, ids, resting=resting)

    @proxy.as_fault
    def drain(self, group: str, backend: str, *, decision: int | None) -> None:
        """Nothing new for it on any side, until a table gives it slots again."""
        tables.check_backend(self._groups, group, backend)
        name, server = proxy.escape(group), proxy.escape(backend)
        servers = [f"{name}_{side}/{server}" for side in proxy.COPIES]
        for each in servers:
            self._laid.pop(each, None)
        execute(self._files.socket, [f"set server {each} state drain" for each in servers])

    def _host(self, backend: Backend) -> str:
        return proxy.escape(backend.id)

    def _beat(self) -> None:
        """Put the agent back into the table that forgets it after 15 s."""
        execute(self._files.socket, [f"set table {config.BEAT} key {config.AGENT} data.gpt0 1"])

    def _look(self) -> proxy.ProxyView:
        return self._glance(())

    @proxy.as_fault
    def glance(self, resting: Collection[str]) -> Mapping[str, GroupSeen]:
        self._view = counted, active, alive = self._glance(resting)
        return self._shown(self._groups, counted, active, alive)

    @proxy.as_fault
    def look_closer(self, groups: Collection[str]) -> Mapping[str, GroupSeen]:
        _, active, alive = self._view
        names = [name for name in groups if proxy.escape(name) in self._summed]
        self._count(self._stat.closely([proxy.escape(name) for name in names]))
        return self._shown(names, self._totals, active, alive)

    def _glance(self, resting: Collection[str]) -> proxy.ProxyView:
        """A request that fails, is repeated or refused is no calm one: the log says so, but of
        repeated ones, and not of lines that came too fast."""
        stat, table, states, ring = ask_all(
            self._files.socket,
            [
                runtime.SHOW_FRONTENDS,
                f"show table {config.BEAT}",
                f"show map {self._files.states}",
                f"show events {config.REQUESTS}",
            ],
        )
        heard = self._log.take(ring, monotonic_ms())
        names = {proxy.escape(name): group for name, group in self._groups.items()}
        calm = {proxy.escape(name) for name in resting if not self._groups[name].retry}
        calm = set() if heard is None else {name for name in calm if heard.get(name, True)}
        rows = [row for row in runtime.parse_counters(stat) if row[0] in names]
        found, self._summed = self._stat.read(rows, calm)
        self._count(found)
        self._count({name: [] for name in names if name not in self._totals})
        counted = self._totals | {
            name: replace(self._totals[name], admitted=self._totals[name].admitted + more)
            for name, more in self._summed.items()
        }
        return counted, self._running_groups(self._groups.values(), states), _liveness(table)

    def _count(self, rows: Mapping[str, Sequence[runtime.Row]]) -> None:
        for name, lines in rows.items():
            self._totals |= self._counted(lines, [name], self._generation)

    def _lay_out(self, weights: Mapping[str, int]) -> None:
        """Give servers their weights, as far as these changed since we gave them. What was only
        half carried out is unknown."""
        news = {server: n for server, n in weights.items() if self._laid.get(server) != n}
        for server in news:
            self._laid.pop(server, None)
        execute(self._files.socket, config.lay_out(news))
        self._laid |= news

    def _make_room(
        self,
        name: str,
        bound: Concurrency | None,
        ids: Iterable[str],
        *,
        resting: str | None = None,
    ) -> None:
        """Say what each server may hold, 0 for any number, as far as that changed. A backend has a
        server on each side; that of the side that rests is told only of less, because it gets no
        request before a table is laid out there, which says it anew."""
        news = {}
        for id in sorted(ids):
            room = 0 if bound is None else bound.room.get(id, 0)
            by_side = () if bound is None else bound.by_server.get(id, ())
            for side, most in zip(proxy.SIDES, by_side or (room,) * len(proxy.SIDES), strict=True):
                server = f"{name}_{side}/{proxy.escape(id)}"
                had = self._room.get(server, 0)
                if had != most and not (side == resting and 0 < had < most):
                    news[server] = most
        commands = [f"set maxconn server {server} {n}" for server, n in news.items()]
        execute(self._files.socket, commands)
        self._room |= news

    def _install(self, groups: Sequence[RouteGroup]) -> None:
        """A reload only when the groups differ from what runs."""
        self._files.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        wanted, running = config.generation(groups, self._worker), self._process.running()
        if running != wanted:
            self._change(groups, wanted, running)
        self._generation = wanted

    def _change(self, groups: Sequence[RouteGroup], wanted: str, running: str | None) -> None:
        files, kept = self._files, self._files.counted(wanted)
        before, ours = self._active if self._groups else {}, set[proxy.Address]()
        written = (files.config, files.states)
        old = [(path, path.read_text() if path.exists() else None) for path in written]
        if running is not None:
            same = self.schema_version() == SCHEMA_VERSION  # else it begins again
            states = ask(files.socket, f"show map {files.states}")
            before = self._running_groups(groups, states) if same else {}
            rows = runtime.read_counters(files.socket)
            names = [proxy.escape(group.name) for group in groups]
            proxy.save(kept, self._counted(rows, names, running))
            ours = config.addresses(old[0][1] or "")
        proxy.check_free(groups, ours)
        now = {group.name: active(group, before.get(group.name)) for group in groups}
        paths = {"socket": files.socket, "states": files.states}
        rendered = config.render(groups, now, {**self._worker, **paths, "description": wanted})
        for path, text in zip(written, rendered, strict=True):
            proxy.replace_text(path, text)
        try:
            self._process.serve(wanted, reload=running is not None)
        except PermanentFault:
            for path, was in old:
                if was is not None:
                    proxy.replace_text(path, was)
            raise
        self._log.begin()
        self._stat.begin()
        self._totals = {}
        self._active = now
        self._room, self._laid = {}, {}  # a new worker has no limits
        for name, group in now.items():
            proxy.save(files.laid(name, group.side), group)
        known = {kept, *(files.laid(name, side) for name in now for side in proxy.SIDES)}
        for path in files.more():
            if path not in known:
                path.unlink()

    def _running_groups(self, groups: Iterable[RouteGroup], answer: str) -> dict[str, Active]:
        """What groups go by now, by HAProxy's map. It knows on which side; what was laid out there
        is known, or in the file of that side."""
        lines = (line.split() for line in answer.splitlines())
        states = {fields[1]: fields[2] for fields in lines if len(fields) == 3}
        running = {}
        for group in groups:
            if state := states.get(proxy.escape(group.name)):
                epoch, side = config.read_head(state)
                now = self._active.get(group.name)
                if now is None or (now.table.epoch, now.side) != (epoch, side):
                    now = proxy.load(self._files.laid(group.name, side), Active)
                if now is None:  # lost: until the next table, whose side and epoch follow these
                    begun = active(group, None)
                    now = replace(begun, table=replace(begun.table, epoch=epoch), side=side)
                running[group.name] = self._active[group.name] = now
        return running

    def _counted(
        self, rows: Iterable[runtime.Row], names: Iterable[str], generation: str
    ) -> dict[str, proxy.GroupCount]:
        """By the worker of a generation and those before it; under escaped names."""
        if self._before is None or self._before[0] != generation:
            kept = proxy.load(self._files.counted(generation), dict[str, proxy.GroupCount]) or {}
            for group in kept.values():
                for backend in group.backends.values():
                    backend.open = backend.queue = 0  # what was in an earlier worker ended there
                    backend.inside = ()
            self._before = generation, kept
        kept = self._before[1]
        begun = {name: deepcopy(kept.get(name)) or proxy.GroupCount() for name in names}
        return runtime.add(begun, rows)


def _unprivileged() -> str:
    """The worker becomes the user that Debian's package brings, if we are root, once it listens."""
    with contextlib.suppress(KeyError):
        return f"\n    user {pwd.getpwnam('haproxy').pw_name}" if os.geteuid() == 0 else ""
    return ""


def _liveness(answer: str) -> Liveness:
    """By HAProxy's own clock: how long until it forgets the agent."""
    expires = _EXPIRES.search(answer)
    if expires is None:
        return Liveness.FALLBACK
    # The clocks of its threads differ by some milliseconds: a fresh entry may look too fresh.
    return liveness(max(0, FALLBACK_AFTER_MS - int(expires[1])))
