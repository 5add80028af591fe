"""The traffic agent: one loop over all groups, five times a second, and what must survive it.

Started by `fairlead traffic run`. It ends on SIGINT and SIGTERM between two ticks; connections go
on by the last table. Killed at any instant, it finds its record, its state and the operator's
commands when it returns.
"""

import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from fairlead.core.invariant import known
from fairlead.core.traffic.limits import liveness, may_resume, tick_delay_us
from fairlead.engine.traffic import (
    KIND,
    BadTrafficState,
    Group,
    GroupGovernor,
    GroupRules,
    Ports,
    TickRound,
    TrafficLoop,
)
from fairlead.engine.traffic.loop import Orders
from fairlead.host.clock import steady_now_ms as now_ms
from fairlead.host.process import on_signals
from fairlead.node.state import RECORD, STATE, STATUS, StateDirectory
from fairlead.node.traffic.commands import CommandFile
from fairlead.node.traffic.reports import status_document
from fairlead.node.traffic.sensors import NetworkSensors
from fairlead.ports.dataplane import Dataplane, GroupRefused, RouteGroup
from fairlead.ports.faults import Fault, PermanentFault
from fairlead.ports.recorder import FlightRecorder
from fairlead.ports.traffic import EventLog

_T = TypeVar("_T")
STATUS_EVERY_MS = 1_000  # and whenever something changed
MEMORY_EVERY_MS = 5_000
"""The memories in the state, likewise: only an agent that was away for longer starts from them."""


@dataclass(frozen=True, slots=True)
class GroupSpec:
    """A group as it is configured; without `route.backends` where they are looked up."""

    route: RouteGroup
    rules: GroupRules
    nodes: Mapping[str, str] = field(default_factory=dict)
    looked_up: bool = False
    own_nodes: bool = False
    """Whether only the machines in `nodes` count for it."""


@dataclass(frozen=True, slots=True)
class AgentConfig:
    """An agent's name, state directory and period."""

    name: str
    state_directory: Path
    tick_ms: int = 200


class Reloaded(NamedTuple):
    """A configuration that was read again, and how to go back if it cannot be used."""

    specs: Sequence[GroupSpec]
    undo: Callable[[], None]


class TrafficAgent:
    """One agent on one dataplane."""

    def __init__(
        self,
        config: AgentConfig,
        specs: Sequence[GroupSpec],
        *,
        open_dataplane: Callable[[], Dataplane],
        open_recorder: Callable[[Path], FlightRecorder],
        sensors: NetworkSensors,
        open_event_log: Callable[[], EventLog | None] = lambda: None,
        report: Callable[[TickRound, "TrafficAgent"], None] = lambda *_: None,
        warn: Callable[[str], None] = lambda _: None,
        reload: Callable[[], Reloaded] | None = None,
        drains: Callable[[], Orders] = dict,
        apart: bool = False,
    ) -> None:
        """`drains` are commands beside the operator's; `apart`: groups are of different users, and
        one that cannot be served is left out instead of keeping the others from being served."""
        self.config, self.sensors = config, sensors
        self.directory = StateDirectory(config.state_directory)
        self.last_round: TickRound | None = None
        self.ticks = self.early_ticks = self.missed_ticks = self.flips = self.faults = 0
        self.tick_seconds = 0.0
        """Time spent in ticks, all together."""
        self.transitions: dict[tuple[str, str], int] = {}
        """How many there were, by group and kind."""
        self.loop: TrafficLoop
        self._specs = {spec.route.name: spec for spec in specs}
        self._open_dataplane, self._open_recorder = open_dataplane, open_recorder
        self._open_event_log, self._reload = open_event_log, reload
        self._report, self._warn = report, warn
        self._drains, self._apart = drains, apart
        self.orders: Orders = {}
        """The commands that the last tick went by."""
        self.refused: Mapping[str, str] = {}
        """Groups that are left out, and why."""
        self.behind = False
        """Whether the last change of the groups failed: it is to be tried again."""
        self._recorders: dict[str, FlightRecorder] = {}
        self._commands = CommandFile(self.directory)
        self._stop, self._hangup, self._urgent = (threading.Event() for _ in range(3))
        self._status_ms: int | None = None
        self._exported: tuple[int, dict[str, msgspec.Raw]] = (0, {})
        self._warned: dict[str, str] = {}
        self._dataplane: Dataplane | None = None
        sensors.alarm = self.hurry

    # --- life

    def start(self) -> None:
        self.directory.create()
        self.directory.lock()
        self._commands()
        if self._commands.problem:
            raise PermanentFault(self._commands.problem)
        try:
            stored = self.directory.read(STATE) or {}
        except PermanentFault as fault:  # it is not flushed to disk; a damaged one is forgotten
            self._warn(f"{fault}; starting without it")
            stored = {}
        self._dataplane = self._open_dataplane()
        ports = Ports(
            record=self._recorders.__getitem__,
            signals=self.sensors.signals,
            nodes=self.sensors.nodes,
            prober=self.sensors.prober,
            events=self._open_event_log(),
            orders=self._orders,
        )
        voided = self._leave_out(self._specs, lambda specs: self._begin(specs, stored, ports))
        if voided:
            self._warn(f"{voided} recorded ticks were never applied; they are void")
        # The dataplane had no agent since the last heartbeat: report it as a tick would.
        if type(beat_ms := stored.get("beat_ms")) is int:
            self.loop.found_stale(liveness(max(0, now_ms() - beat_ms)))

    def _begin(
        self, specs: Mapping[str, GroupSpec], stored: Mapping[str, Any], ports: Ports
    ) -> int:
        groups = [self._group(spec, stored) for spec in specs.values()]
        self.loop = TrafficLoop(known(self._dataplane, "it is open"), groups, ports, paced=True)
        self._watch(groups)
        voided = self.loop.start(now_ms())
        self._specs = dict(specs)
        return voided

    def run(self, *, ticks_max: int | None = None) -> None:
        period_s, began, number = self.config.tick_ms / 1000, time.monotonic(), 0
        while not self._stop.is_set() and (ticks_max is None or self.ticks < ticks_max):
            due = began + number * period_s + self.jitter_s(number)
            if self._urgent.wait(max(0.0, due - time.monotonic())) and not self._stop.is_set():
                self.tick(early=True)  # between two; the next comes when it was due
                self.early_ticks += 1
                if self.ticks == ticks_max:
                    break
            if self._stop.wait(max(0.0, due - time.monotonic())):
                break
            self._urgent.clear()
            if self._hangup.is_set():
                self._hangup.clear()
                self._reconfigure()
            self.tick()
            number += 1
            behind = int((time.monotonic() - began) / period_s) - number
            if behind > 0:
                self.missed_ticks += behind
                number += behind

    def tick(self, *, early: bool = False) -> TickRound:
        began = time.monotonic()
        self.sensors.check()
        self._follow_services()
        round = self.loop.tick(now_ms(), early=early)
        self.last_round = round
        self.ticks += 1
        self.flips += sum(group.flipped for group in round.groups.values())
        self.faults += len(round.faults) + sum(bool(g.fault) for g in round.groups.values())
        for change in round.transitions:
            key = (change.group, change.what)
            self.transitions[key] = self.transitions.get(key, 0) + 1
        self._save(round)
        self._report(round, self)
        if self._commands.problem:
            self._warn_once("commands", f"the last commands stay: {self._commands.problem}")
        self.tick_seconds += time.monotonic() - began
        return round

    def _warn_once(self, what: str, message: str) -> None:
        """A lasting problem is reported when it begins, and when it changes."""
        if self._warned.get(what) != message:
            self._warned[what] = message
            self._warn(message)

    def jitter_s(self, number: int) -> float:
        return tick_delay_us(self.config.name, number, self.config.tick_ms) / 1_000_000

    def stop(self) -> None:
        self._stop.set()
        self._urgent.set()

    def hurry(self) -> None:
        """A backend gives nothing but errors: tick now, once, and then when it is due."""
        self._urgent.set()

    def hang_up(self) -> None:
        self._hangup.set()

    def handle_signals(self) -> None:
        """SIGINT and SIGTERM end the loop, SIGHUP reads the configuration again."""
        on_signals((signal.SIGINT, signal.SIGTERM), self.stop)
        on_signals((signal.SIGHUP,), self.hang_up)

    def close(self) -> None:
        if self.last_round is not None:
            self._save(self.last_round, at_once=True)
        self.sensors.close()
        event_log = self.loop.ports.events if hasattr(self, "loop") else None
        if event_log is not None:
            event_log.close()
        for recorder in self._recorders.values():
            recorder.close()
        if self._dataplane is not None:
            self._dataplane.detach()
        self.directory.unlock()

    @property
    def commands(self) -> Mapping[str, Mapping[str, str]]:
        return self._commands.current

    def _orders(self) -> Orders:
        """The operator's over those that come with the groups."""
        orders, drains = self._commands(), self._drains()
        groups = orders.keys() | drains.keys()
        self.orders = {n: {**drains.get(n, {}), **orders.get(n, {})} for n in groups}
        return self.orders

    # --- what survives

    def _group(self, spec: GroupSpec, stored: Mapping[str, Any]) -> Group:
        name = spec.route.name
        governor = GroupGovernor(name, spec.rules)
        if name not in self._recorders:
            self._recorders[name] = self._open_recorder(self.directory.path / RECORD / name)
        recorder = self._recorders[name]
        try:
            if name in stored.get("groups", {}):
                governor.restore(stored["groups"][name])
            tail = recorder.tail(KIND)
            if tail and may_resume(now_ms() - tail[-1].input["sighting"]["now_ms"]):
                governor.resume(tail, applied=recorder.was_applied(tail[-1].seq))
        except (BadTrafficState, TypeError, PermanentFault) as error:
            self._warn(f"{error}; starting without it")
            governor = GroupGovernor(name, spec.rules)
        return Group(self._route(spec), governor, spec.nodes, spec.own_nodes)

    def _save(self, round: TickRound, *, at_once: bool = False) -> None:
        """State and status, once a second and whenever something changed."""
        recent = self._status_ms is not None and round.time_ms - self._status_ms < STATUS_EVERY_MS
        if recent and not round.transitions and not at_once:
            return
        self._status_ms = round.time_ms
        kept_ms, kept = self._exported
        if at_once or round.transitions or not 0 <= round.time_ms - kept_ms < MEMORY_EVERY_MS:
            governors = {name: group.governor for name, group in self.loop.groups.items()}
            kept = {name: msgspec.Raw(governor.written()) for name, governor in governors.items()}
            self._exported = round.time_ms, kept
        state = {"version": 1, "beat_ms": self.loop.beat_ms, "groups": kept}
        try:
            self.directory.replace(STATE, state, durable=False)
            self.directory.replace(STATUS, status_document(round, self), durable=False)
        except Fault as fault:
            self.faults += 1
            self._warn(str(fault))

    # --- other groups

    def _reconfigure(self) -> None:
        """Read the configuration again; a bad one is reported, and changes nothing."""
        if self._reload is None:
            return
        reloaded: Reloaded | None = None
        try:
            reloaded = self._reload()
            self._leave_out({spec.route.name: spec for spec in reloaded.specs}, self._change)
        except (Fault, ValueError, OSError) as error:
            if reloaded is not None:
                reloaded.undo()
            self.behind = True
            self._warn(f"not reloaded: {error}")
        else:
            self.behind = False

    def _leave_out(
        self, specs: Mapping[str, GroupSpec], act: Callable[[Mapping[str, GroupSpec]], _T]
    ) -> _T:
        """Act on these groups, where they are apart without those that are refused."""
        refused: dict[str, str] = {}
        while True:
            try:
                done = act({name: spec for name, spec in specs.items() if name not in refused})
                self.refused = refused
                return done
            except GroupRefused as fault:
                if not self._apart or fault.group in refused:
                    raise
                refused[fault.group] = str(fault)
                self._warn_once(fault.group, f"group {fault.group!r} is not served: {fault}")

    def _follow_services(self) -> None:
        for spec in self._specs.values():
            name = spec.route.name
            if spec.looked_up and self._route(spec) != self.loop.groups[name].route:
                try:
                    self._change(self._specs)
                except Fault as fault:
                    self.faults += 1
                    self._warn_once("services", f"not followed: {fault}")
                return

    def _change(self, specs: Mapping[str, GroupSpec]) -> None:
        groups = []
        for name, spec in specs.items():
            if name in self.loop.groups:
                governor = self.loop.groups[name].governor
                groups.append(Group(self._route(spec), governor, spec.nodes, spec.own_nodes))
            else:
                groups.append(self._group(spec, {}))
        self.loop.reconfigure(groups, now_ms())
        for name, spec in specs.items():
            self.loop.groups[name].governor.rules = spec.rules
        self._specs = dict(specs)
        for name in self._recorders.keys() - specs.keys():
            self._recorders.pop(name).close()
        self._watch(groups)

    def _route(self, spec: GroupSpec) -> RouteGroup:
        if not spec.looked_up:
            return spec.route
        members = tuple(self.sensors.members(spec.route.name) or ())
        return replace(spec.route, backends=members)

    def _watch(self, groups: Sequence[Group]) -> None:
        self.sensors.watch({group.route.name: group.route.backends for group in groups})
