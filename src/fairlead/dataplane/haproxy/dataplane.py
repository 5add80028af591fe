"""The HAProxy dataplane: tables as weights of the side that rests, then one map value flips it."""

import contextlib
import os
import pwd
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from fairlead.core.traffic.admission import FALLBACK_AFTER_MS
from fairlead.core.traffic.limits import liveness
from fairlead.core.traffic.sighting import GroupSeen, Liveness
from fairlead.dataplane import proxy, tables
from fairlead.dataplane.haproxy import config, stats
from fairlead.dataplane.haproxy.runtime import HaproxyLog, HaproxyProcess, ask, execute
from fairlead.dataplane.tables import Active, active
from fairlead.host.clock import monotonic_ms, now_ms
from fairlead.ports.dataplane import SCHEMA_VERSION, Proto, RouteGroup, Table
from fairlead.ports.faults import PermanentFault, TemporaryFault

_VALUE = re.compile(r'value="([^"]*)"')
_EXPIRES = re.compile(rf"key={config.AGENT} .*\bexp=(\d+)")


class HaproxyDataplane:
    """One HAProxy of our own, in one folder."""

    name = "haproxy"
    sources: Mapping[str, str] = {
        "requests": "show stat: requests sent to each server",
        "queue": "show stat: requests waiting for each server, and in it",
        "latency": "log ring: p95 of the active time of successes over 5 s",
        "errors": "show stat: 5xx, broken responses, failed connects",
    }

    def __init__(
        self,
        folder: Path,
        *,
        binary: str = "haproxy",
        settings: config.HaproxySettings | None = None,
    ) -> None:
        self._files = config.HaproxyFiles(folder.absolute())
        self._settings = settings or config.HaproxySettings(user=_unprivileged())
        self._process = HaproxyProcess(self._files, binary)
        self._log = HaproxyLog(self._files.socket)
        self._groups: dict[str, RouteGroup] = {}
        self._generation = ""
        self._active: dict[str, Active] = {}
        """What groups went by when it was last known, for a HAProxy that died; by name."""
        self._held: config.Held = {}
        self._room: config.Room = {}
        """What each server was last told that it may hold."""
        self._restarts = proxy.Restarts()

    @proxy.as_fault
    def configure(self, groups: Sequence[RouteGroup]) -> None:
        """These groups and no others; a reload only when they differ from what runs."""
        tables.check_groups(groups, dataplane=self.name, protos=(Proto.TCP,))
        self._files.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        wanted = config.generation(groups, self._settings)
        running = self._process.running()
        if running != wanted:
            self._install(groups, wanted, running)
        self._groups, self._generation = {group.name: group for group in groups}, wanted
        self._beat()
        members = {
            (proxy.escape(g.name), proxy.escape(each.id)) for g in groups for each in g.backends
        }
        self._log.requests.keep(members)
        self._log.catch_up(monotonic_ms())  # begins to follow the log

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
        before = config.read_state(group.name, state[1], {}, ())
        tables.check_flip(table, before.table.epoch, _liveness(answer))
        now = Active(table, decision, proxy.other_side(before.side))
        execute(self._files.socket, config.lay_out(name, now.side, table))
        bound = table.limits.concurrency
        self._make_room(name, bound.room if bound else {}, table.slots)
        execute(self._files.socket, [f"set map {states} {name} {config.write_state(now)}"])
        self._active[group.name] = now

    @proxy.as_fault
    def limit(self, group: str, room: Mapping[str, int], *, decision: int | None) -> None:
        """Tell servers how much they may hold, as far as that changed since they were told."""
        members = tables.configured(self._groups, group).backends
        self._make_room(proxy.escape(group), room, [backend.id for backend in members])

    @proxy.as_fault
    def heartbeat(self) -> None:
        """Put the agent back into the table that forgets it after 15 s; restart what died."""
        try:
            self._beat()
        except TemporaryFault:
            if not self._groups or self._process.running() is not None:
                raise
            with self._restarts.attempt():
                self.configure(list(self._groups.values()))

    @proxy.as_fault
    def drain(self, group: str, backend: str, *, decision: int | None) -> None:
        """Nothing new for it on any side, until a table gives it slots again."""
        tables.check_backend(self._groups, group, backend)
        name, server = proxy.escape(group), proxy.escape(backend)
        sides = (*proxy.SIDES, proxy.HASHED)
        execute(
            self._files.socket, [f"set server {name}_{side}/{server} state drain" for side in sides]
        )

    @proxy.as_fault
    def read(self) -> Mapping[str, GroupSeen]:
        at_ms = monotonic_ms()
        rows = list(stats.parse(ask(self._files.socket, stats.COMMAND)))
        counted, self._held = self._counted(rows, self._groups, self._generation), stats.held(rows)
        states = self._states()
        alive = _liveness(ask(self._files.socket, f"show table {config.BEAT}"))
        self._log.catch_up(at_ms)
        return {
            name: counted[proxy.escape(name)].seen(
                config.read_state(name, states[proxy.escape(name)], {}, ()),
                alive,
                self._log.requests,
                at_ms,
                group=proxy.escape(name),
                names={backend.id: proxy.escape(backend.id) for backend in group.backends},
            )
            for name, group in self._groups.items()
        }

    def detach(self) -> None:
        self._log.close()

    @proxy.as_fault
    def remove(self) -> None:
        self._log.close()
        self._process.stop()
        self._groups, self._active, self._room = {}, {}, {}
        proxy.remove_files(self._files.folder, self._files.ours())

    def _beat(self) -> None:
        execute(self._files.socket, [f"set table {config.BEAT} key {config.AGENT} data.gpt0 1"])

    def _make_room(self, name: str, room: Mapping[str, int], ids: Iterable[str]) -> None:
        wanted = config.room_of_servers(name, room, sorted(ids), self._held)
        news = {
            server: most for server, most in wanted.items() if self._room.get(server, 0) != most
        }
        execute(
            self._files.socket, [f"set maxconn server {server} {n}" for server, n in news.items()]
        )
        self._room |= news

    def _install(self, groups: Sequence[RouteGroup], wanted: str, running: str | None) -> None:
        before = self._running_groups() if running is not None else self._active
        now = {group.name: active(group, before.get(group.name)) for group in groups}
        kept = self._files.counted(wanted)
        if running is not None:
            rows = stats.parse(ask(self._files.socket, stats.COMMAND))
            stats.write(kept, self._counted(rows, [group.name for group in groups], running))
        files = (self._files.config, self._files.states)
        old = [(path, path.read_text() if path.exists() else None) for path in files]
        proxy.check_free(groups, config.addresses(old[0][1] or "") if running is not None else ())
        proxy.replace_text(self._files.states, config.first_map(now, now_ms()))
        rendered = config.render(
            groups,
            {name: group.table for name, group in now.items()},
            files=self._files,
            settings=self._settings,
        )
        proxy.replace_text(self._files.config, rendered)
        try:
            self._take_up(wanted, reload=running is not None)
        except PermanentFault:
            for path, text in old:
                if text is not None:
                    proxy.replace_text(path, text)
            raise
        self._active = now
        for path in self._files.folder.glob("counted-*.json"):
            if path != kept:
                path.unlink()

    def _take_up(self, wanted: str, *, reload: bool) -> None:
        self._process.check()
        if reload:
            self._log.close()
            self._process.reload(wanted)
        else:
            self._process.start(wanted)
        self._room, self._held = {}, {}  # a new worker has been told nothing

    def _running_groups(self) -> dict[str, Active]:
        weights: dict[tuple[str, str], dict[str, int]] = {}
        for line in ask(self._files.socket, "show servers state").splitlines()[2:]:
            fields = line.split()
            if len(fields) > 7:
                group, _, side = fields[1].rpartition("_")
                weights.setdefault((group, side), {})[proxy.unescape(fields[3])] = int(fields[7])
        groups = {}
        for name, state in self._states().items():
            hashed = weights.get((name, proxy.HASHED), {})
            members = [id for id, weight in hashed.items() if weight]
            try:
                now = config.read_state(proxy.unescape(name), state, {}, members)
            except ValueError:  # of another schema: it begins again
                return {}
            slots = weights.get((name, now.side), {})
            groups[now.table.group] = replace(now, table=replace(now.table, slots=slots))
        return groups

    def _states(self) -> dict[str, str]:
        answer = ask(self._files.socket, f"show map {self._files.states}")
        lines = [line.split() for line in answer.splitlines()]
        states = {fields[1]: fields[2] for fields in lines if len(fields) == 3}
        states.pop(config.BORN, None)
        return states

    def _counted(
        self, rows: Iterable[stats.Row], groups: Iterable[str], generation: str
    ) -> dict[str, proxy.GroupCount]:
        """By the worker of a generation and those before it; under escaped names."""
        path = self._files.counted(generation)
        return stats.add(stats.read(path, [proxy.escape(name) for name in groups]), rows)


def _unprivileged() -> str | None:
    """The user that Debian's package brings, if we are root: a proxy need not be."""
    if os.geteuid() != 0:
        return None
    with contextlib.suppress(KeyError):
        return pwd.getpwnam("haproxy").pw_name
    return None


def _liveness(answer: str) -> Liveness:
    """By HAProxy's own clock: how long until it forgets the agent."""
    expires = _EXPIRES.search(answer)
    if expires is None:
        return Liveness.FALLBACK
    # The clocks of its threads differ by some milliseconds: a fresh entry may look too fresh.
    return liveness(max(0, FALLBACK_AFTER_MS - int(expires[1])))
