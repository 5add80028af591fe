"""The HAProxy plane: tables as weights of the side that rests, then one word of a map flips it."""

import contextlib
import os
import pwd
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from fairlead.dataplane.addresses import check_free
from fairlead.dataplane.haproxy import config, layout, stats, words
from fairlead.dataplane.haproxy.process import Process
from fairlead.dataplane.haproxy.runtime import ask, tell
from fairlead.dataplane.haproxy.times import Times
from fairlead.dataplane.names import tame, wild
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
from fairlead.ports.faults import PermanentFault, TemporaryFault

_VALUE = re.compile(r'value="([^"]*)"')
_EXPIRES = re.compile(rf"key={config.AGENT} .*\bexp=(\d+)")


class HaproxyPlane:
    """One HAProxy of our own, in one folder."""

    name = "haproxy"
    sources: Mapping[str, str] = {
        "requests": "show stat: requests sent to each server",
        "queue": "show stat: requests waiting for each server, and in it",
        "latency": "log ring: p95 of the active time of successes over 5 s",
        "errors": "show stat: 5xx, broken responses, failed connects",
    }

    def __init__(
        self, folder: Path, *, binary: str = "haproxy", limits: config.Limits | None = None
    ) -> None:
        self._files = config.Files(folder.absolute())
        self._limits = limits or config.Limits(user=_unprivileged())
        self._process = Process(self._files, binary)
        self._times = Times(self._files.socket)
        self._groups: dict[str, RouteGroup] = {}
        self._generation = ""
        self._applied: dict[str, Current] = {}
        self._held: stats.Held = {}
        self._room: dict[str, int] = {}
        """What each server was last told that it may hold."""
        self._revival = Pause()

    @as_fault
    def configure(self, groups: Sequence[RouteGroup]) -> None:
        """These groups and no others; a reload only when they differ from what runs."""
        check_groups(groups, plane=self.name, protos=(Proto.TCP,))
        self._files.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        wanted = config.generation(groups, self._limits)
        running = self._process.running()
        if running != wanted:
            self._install(groups, wanted, running)
        self._groups, self._generation = {group.name: group for group in groups}, wanted
        self._beat()
        self._times.catch_up(_now_ms())  # begins to follow the log

    def schema_version(self) -> int:
        """Of the rules that run; ours when none do."""
        kind, _, rest = (self._process.running() or "").partition("/")
        return int(rest.partition("/")[0]) if kind == "fairlead" else SCHEMA_VERSION

    @as_fault
    def apply(self, table: Table) -> None:
        """Lay the table out on the side that rests, then flip the group's word to it."""
        group = self._group(table.group)
        check_table(table, group)
        name = tame(group.name)
        answer = ask(
            self._files.socket, f"get map {self._files.words} {name}; show table {config.BEAT}"
        )
        found = _VALUE.search(answer)
        if found is None:
            raise PermanentFault(f"HAProxy has no word for group {group.name!r}")
        active, alive = words.read(found[1]), _liveness(answer)
        if alive != Liveness.NORMAL:
            raise Stale(f"the heartbeat is old: {alive}")
        if table.epoch <= active.epoch:
            raise Stale(f"epoch {table.epoch} is not after {active.epoch}")
        rests = words.SIDES[active.side == words.SIDES[0]]
        now = Current(table.epoch, dict(table.slots), table.admission, table.inside_max)
        tell(self._files.socket, layout.commands(name, rests, table.slots))
        self._make_room(name, now)
        tell(self._files.socket, [f"set map {self._files.words} {name} {words.write(rests, now)}"])
        self._applied[name] = now

    @as_fault
    def heartbeat(self) -> None:
        """Put the agent back into the table that forgets it after 15 s; revive who died."""
        try:
            self._beat()
            for name, table in self._applied.items():
                self._make_room(name, table)
        except TemporaryFault:
            if not self._groups or self._process.running() is not None:
                raise
            with self._revival.over():
                self.configure(list(self._groups.values()))

    @as_fault
    def drain(self, group: str, backend: str) -> None:
        """Nothing new for it on any side, until a table gives it slots again."""
        if backend not in {each.id for each in self._group(group).backends}:
            raise PermanentFault(f"backend {backend!r} is not in group {group!r}")
        sides = (*words.SIDES, words.HASHED)
        name, server = tame(group), tame(backend)
        tell(self._files.socket, [f"set server {name}_{s}/{server} state drain" for s in sides])

    @as_fault
    def read(self) -> Mapping[str, GroupSeen]:
        """Every group's counters."""
        now_ms = _now_ms()
        rows = list(stats.parse(ask(self._files.socket, stats.COMMAND)))
        counted, self._held = self._counted(rows, self._groups, self._generation), stats.held(rows)
        active = self._words()
        alive = _liveness(ask(self._files.socket, f"show table {config.BEAT}"))
        self._times.catch_up(now_ms)
        return {
            name: self._seen(group, counted[tame(name)], active[tame(name)], alive, now_ms)
            for name, group in self._groups.items()
        }

    def detach(self) -> None:
        """Let go of the log; HAProxy goes on."""
        self._times.close()

    @as_fault
    def remove(self) -> None:
        """Stop HAProxy and take its files away."""
        self._times.close()
        self._process.stop()
        self._groups, self._applied, self._room = {}, {}, {}
        for path in self._files.ours():
            path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # somebody else's files may be there
            self._files.folder.rmdir()

    def _beat(self) -> None:
        tell(self._files.socket, [f"set table {config.BEAT} key {config.AGENT} data.gpt0 1"])

    def _make_room(self, name: str, table: Current) -> None:
        """Tell servers how much they may hold, as far as that changed since they were told."""
        inside = sum(sum(self._held.get(f"{name}_{side}", {}).values()) for side in words.SIDES)
        wanted = layout.room(table, self._held, name, inside)
        news = {
            server: most for server, most in wanted.items() if self._room.get(server, 0) != most
        }
        tell(self._files.socket, [f"set maxconn server {each} {n}" for each, n in news.items()])
        self._room |= news

    def _install(self, groups: Sequence[RouteGroup], wanted: str, running: str | None) -> None:
        """Write the configuration, with what the groups go by now, and have it taken up."""
        before = self._standings() if running is not None else self._applied
        now = {group.name: current(group, before.get(tame(group.name))) for group in groups}
        kept = self._files.counted(wanted)
        if running is not None:
            rows = stats.parse(ask(self._files.socket, stats.COMMAND))
            stats.write(kept, self._counted(rows, [group.name for group in groups], running))
        old = [(path, _text(path)) for path in (self._files.config, self._files.words)]
        check_free(groups, config.doors(old[0][1] or "") if running is not None else ())
        _write(self._files.words, layout.first(now, time.time_ns() // 1_000_000))
        slots = {name: each.slots for name, each in now.items()}
        rendered = config.render(groups, slots, files=self._files, limits=self._limits)
        _write(self._files.config, rendered)
        try:
            self._process.check()
            if running is None:
                self._process.start(wanted)
            else:
                self._times.close()
                self._process.reload(wanted)
            self._room, self._held = {}, {}  # a new worker has been told nothing
            self._applied = {tame(name): each for name, each in now.items()}
        except PermanentFault:
            for path, text in old:
                if text is not None:
                    _write(path, text)
            raise
        for path in self._files.folder.glob("counted-*.json"):
            if path != kept:
                path.unlink()

    def _standings(self) -> dict[str, Current]:
        """What the groups of the running HAProxy go by, under their tamed names."""
        try:
            active = self._words()
        except ValueError:  # of another schema: it begins again
            return {}
        weights: dict[tuple[str, str], dict[str, int]] = {}
        for line in ask(self._files.socket, "show servers state").splitlines()[2:]:
            fields = line.split()
            if len(fields) > 7:
                group, _, side = fields[1].rpartition("_")
                weights.setdefault((group, side), {})[wild(fields[3])] = int(fields[7])
        return {
            name: Current(
                word.epoch, weights.get((name, word.side), {}), word.admission, word.inside_max
            )
            for name, word in active.items()
        }

    def _words(self) -> dict[str, words.Word]:
        answer = ask(self._files.socket, f"show map {self._files.words}")
        lines = [line.split() for line in answer.splitlines()]
        pairs = {fields[1]: fields[2] for fields in lines if len(fields) == 3}
        pairs.pop(config.BORN, None)
        return {name: words.read(word) for name, word in pairs.items()}

    def _counted(
        self, rows: Iterable[stats.Row], groups: Iterable[str], generation: str
    ) -> dict[str, stats.Counted]:
        """By the worker of a generation and those before it; under tamed names."""
        path = self._files.counted(generation)
        return stats.add(stats.read(path, [tame(name) for name in groups]), rows)

    def _group(self, name: str) -> RouteGroup:
        if name not in self._groups:
            raise PermanentFault(f"group {name!r} is not configured")
        return self._groups[name]

    def _seen(
        self,
        group: RouteGroup,
        counted: stats.Counted,
        word: words.Word,
        alive: Liveness,
        now_ms: int,
    ) -> GroupSeen:
        alone = alive == Liveness.FALLBACK
        admission = fallback_admission(word.admission) if alone else word.admission
        backends = {}
        for each in group.backends:
            name, server = tame(group.name), tame(each.id)
            count = counted.servers.get(server, stats.Server())
            backends[each.id] = BackendSeen(
                admitted=count.admitted,
                connect_failures=count.connect_failures,
                consecutive_failures=self._times.failures(name, server),
                successes=count.successes,
                errors=count.errors,
                open=count.open,
                queue=count.queue,
                p95_ms=self._times.p95(name, server, now_ms),
            )
        return GroupSeen(
            epoch=word.epoch,
            liveness=alive,
            mode=admission.mode,
            admitted=counted.admitted,
            refused_soft=counted.refused_soft,
            refused_hard=counted.refused_hard,
            backends=backends,
        )


def _unprivileged() -> str | None:
    """The user that Debian's package brings, if we are root: a proxy need not be."""
    if os.geteuid() != 0:
        return None
    with contextlib.suppress(KeyError):
        return pwd.getpwnam("haproxy").pw_name
    return None


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def _liveness(answer: str) -> Liveness:
    """By HAProxy's own clock: how long until it forgets the agent."""
    found = _EXPIRES.search(answer)
    if found is None:
        return Liveness.FALLBACK
    # The clocks of its threads differ by some milliseconds: a fresh entry may look too fresh.
    return liveness(max(0, FALLBACK_AFTER_MS - int(found[1])))


def _text(path: Path) -> str | None:
    return path.read_text() if path.exists() else None


def _write(path: Path, text: str) -> None:
    draft = path.with_name(path.name + ".draft")
    draft.write_text(text)
    os.replace(draft, path)
