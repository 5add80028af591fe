"""The traffic agent: one loop over all groups, five times a second, and what must survive it.

Started by `fairlead traffic run`. It ends on SIGINT and SIGTERM between two ticks; connections go
on by the last table. Killed at any instant, it finds its record, its state and the operator's
orders when it returns.
"""

import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, Protocol

from fairlead.core.traffic.failsafe import fnv1a, judge, scramble
from fairlead.engine.traffic import BadTrafficState, GroupGovernor, GroupRules
from fairlead.engine.traffic_loop import KIND, Group, Ports, Round, TrafficLoop
from fairlead.host.clock import steady_now_ms as now_ms
from fairlead.node.state import RECORD, STATE, STATUS, StateDirectory
from fairlead.node.traffic.orders import OrderBook
from fairlead.node.traffic.status import status_document
from fairlead.ports.dataplane import FALLBACK_AFTER_MS, Backend, Dataplane, Liveness, RouteGroup
from fairlead.ports.faults import Fault, PermanentFault
from fairlead.ports.recorder import FlightRecorder
from fairlead.ports.traffic import Chronicle, NodeSensor, Prober, Signals

STATUS_EVERY_MS = 1_000
JITTER_PARTS = 10
"""A tick comes up to a tenth of its period late, by an amount that only depends on its number and
on the agent's name: a fleet of agents does not tick in step, and a run can be repeated."""


@dataclass(frozen=True, slots=True)
class GroupSpec:
    """A group as it is configured; without `route.backends` where they are looked up."""

    route: RouteGroup
    rules: GroupRules
    nodes: Mapping[str, str] = field(default_factory=dict)
    looked_up: bool = False


@dataclass(frozen=True, slots=True)
class AgentConfig:
    """All that an agent is told."""

    name: str
    state_directory: Path
    tick_ms: int = 200


class Eyes(Protocol):
    """Everything that follows the groups when they change."""

    alarm: Callable[[], None]
    """What they call when something cannot wait for the next tick."""

    @property
    def signals(self) -> Signals | None:
        """Applications that tell more than the plane sees."""
        ...

    @property
    def prober(self) -> Prober | None:
        """Who knocks at backends."""
        ...

    @property
    def nodes(self) -> NodeSensor | None:
        """Who sees the machines."""
        ...

    def watch(self, members: Mapping[str, Sequence[Backend]]) -> None:
        """Look at these backends and no others."""
        ...

    def members(self, group: str) -> Sequence[Backend] | None:
        """Backends that were looked up; None for a group whose backends are listed."""
        ...

    def close(self) -> None:
        """Stop looking."""
        ...


class Reloaded(NamedTuple):
    """A configuration that was read again, and how to go back if it cannot be used."""

    specs: Sequence[GroupSpec]
    undo: Callable[[], None]


class TrafficAgent:
    """One agent on one plane."""

    def __init__(
        self,
        config: AgentConfig,
        specs: Sequence[GroupSpec],
        *,
        open_plane: Callable[[], Dataplane],
        open_recorder: Callable[[Path], FlightRecorder],
        eyes: Eyes,
        open_chronicle: Callable[[], Chronicle | None] = lambda: None,
        report: Callable[[Round, "TrafficAgent"], None] = lambda *_: None,
        warn: Callable[[str], None] = lambda _: None,
        reload: Callable[[], Reloaded] | None = None,
    ) -> None:
        self.config, self.eyes = config, eyes
        self.directory = StateDirectory(config.state_directory)
        self.last_round: Round | None = None
        self.ticks = self.early_ticks = self.missed_ticks = self.flips = self.faults = 0
        self.tick_seconds = 0.0
        """Time spent in ticks, all together."""
        self.transitions: dict[tuple[str, str], int] = {}
        """How many there were, by group and kind."""
        self.loop: TrafficLoop
        self._specs = {spec.route.name: spec for spec in specs}
        self._open_plane, self._open_recorder = open_plane, open_recorder
        self._open_chronicle, self._reload = open_chronicle, reload
        self._report, self._warn = report, warn
        self._recorders: dict[str, FlightRecorder] = {}
        self._orders = OrderBook(self.directory)
        self._stop, self._hangup, self._news = (threading.Event() for _ in range(3))
        self._status_ms: int | None = None
        self._warned: dict[str, str] = {}
        self._plane: Dataplane | None = None
        eyes.alarm = self.hurry

    # --- life

    def start(self) -> None:
        """Take the directory, read what a predecessor left, take the plane over."""
        self.directory.create()
        self.directory.lock()
        self._orders()
        if self._orders.problem:
            raise PermanentFault(self._orders.problem)
        stored = self._stored()
        self._plane = self._open_plane()
        groups = [self._group(spec, stored) for spec in self._specs.values()]
        ports = Ports(
            record=self._recorders.get,
            signals=self.eyes.signals,
            nodes=self.eyes.nodes,
            prober=self.eyes.prober,
            chronicle=self._open_chronicle(),
            orders=self._orders,
        )
        self.loop = TrafficLoop(self._plane, groups, ports)
        self._watch(groups)
        voided = self.loop.start(now_ms())
        if voided:
            self._warn(f"{voided} recorded ticks were never applied; they are void")
        self._admit_failsafe(stored)

    def run(self, *, ticks_max: int | None = None) -> None:
        """Tick until told to stop."""
        period_s, began, number = self.config.tick_ms / 1000, time.monotonic(), 0
        while not self._stop.is_set() and (ticks_max is None or self.ticks < ticks_max):
            due = began + number * period_s + self.jitter_s(number)
            if self._news.wait(max(0.0, due - time.monotonic())) and not self._stop.is_set():
                self.tick()  # between two; the next comes when it was due
                self.early_ticks += 1
                if self.ticks == ticks_max:
                    break
            if self._stop.wait(max(0.0, due - time.monotonic())):
                break
            self._news.clear()
            if self._hangup.is_set():
                self._hangup.clear()
                self._reconfigure()
            self.tick()
            number += 1
            behind = int((time.monotonic() - began) / period_s) - number
            if behind > 0:
                self.missed_ticks += behind
                number += behind

    def tick(self) -> Round:
        """One tick, and what is told of it."""
        began = time.monotonic()
        self._follow_services()
        round = self.loop.tick(now_ms())
        self.last_round = round
        self.ticks += 1
        self.flips += sum(each.flipped for each in round.groups.values())
        self.faults += len(round.faults) + sum(bool(each.fault) for each in round.groups.values())
        for each in round.transitions:
            key = (each.group, each.what)
            self.transitions[key] = self.transitions.get(key, 0) + 1
        self._save(round)
        self._report(round, self)
        if self._orders.problem:
            self._warn_once("orders", f"the last orders stand: {self._orders.problem}")
        self.tick_seconds += time.monotonic() - began
        return round

    def _warn_once(self, what: str, message: str) -> None:
        """What stays wrong is said when it begins, and when it changes."""
        if self._warned.get(what) != message:
            self._warned[what] = message
            self._warn(message)

    def jitter_s(self, number: int) -> float:
        """How late tick `number` is on purpose."""
        span_us = self.config.tick_ms * 1000 // JITTER_PARTS
        seed = fnv1a(self.config.name.encode())
        return scramble(seed ^ number) % max(1, span_us) / 1_000_000

    def stop(self, _signal: int = 0, _frame: FrameType | None = None) -> None:
        """Ask the loop to end after the tick it is in."""
        self._stop.set()
        self._news.set()

    def hurry(self) -> None:
        """A backend gives nothing but errors: tick now, once, and then when it is due."""
        self._news.set()

    def hang_up(self, _signal: int = 0, _frame: FrameType | None = None) -> None:
        """Ask the loop to read its configuration again."""
        self._hangup.set()

    def handle_signals(self) -> None:
        """SIGINT and SIGTERM end the loop, SIGHUP reads the configuration again."""
        signal.signal(signal.SIGINT, self.stop)
        signal.signal(signal.SIGTERM, self.stop)
        signal.signal(signal.SIGHUP, self.hang_up)

    def close(self) -> None:
        """Give everything back; connections go on by the last table."""
        if self.last_round is not None:
            self._save(self.last_round, at_once=True)
        self.eyes.close()
        chronicle = self.loop.ports.chronicle if hasattr(self, "loop") else None
        if chronicle is not None:
            chronicle.close()
        for recorder in self._recorders.values():
            recorder.close()
        if self._plane is not None:
            self._plane.detach()
        self.directory.unlock()

    @property
    def orders(self) -> Mapping[str, Mapping[str, str]]:
        """What the operator wants of backends, as of the last tick."""
        return self._orders.current

    # --- what survives

    def _stored(self) -> Mapping[str, Any]:
        """What was kept last. It is written in haste, and damaged it is only forgotten."""
        try:
            return self.directory.read(STATE) or {}
        except PermanentFault as fault:
            self._warn(f"{fault}; starting without it")
            return {}

    def _group(self, spec: GroupSpec, stored: Mapping[str, Any]) -> Group:
        name = spec.route.name
        governor = GroupGovernor(name, spec.rules)
        recorder = self._recorder(name)
        last = recorder.last(KIND)
        try:
            if name in stored.get("groups", {}):
                governor.restore(stored["groups"][name])
            if last is not None and _fresh(last):
                part = "input" if recorder.unapplied() else "output"
                governor.resume(last[part]["state"], last["input"]["config"])
        except (BadTrafficState, TypeError) as error:
            self._warn(f"{error}; starting without it")
            governor = GroupGovernor(name, spec.rules)
        return Group(self._route(spec), governor, spec.nodes)

    def _recorder(self, name: str) -> FlightRecorder:
        if name not in self._recorders:
            path = self.config.state_directory / RECORD / name
            self._recorders[name] = self._open_recorder(path)
        return self._recorders[name]

    def _admit_failsafe(self, stored: Mapping[str, Any]) -> None:
        """The plane was without us from the last heartbeat until now: say so, as a tick would."""
        beat_ms = stored.get("beat_ms")
        if type(beat_ms) is int:
            standing = judge(max(0, now_ms() - beat_ms))
            self.loop.found_stale(Liveness(standing.value))

    def _save(self, round: Round, *, at_once: bool = False) -> None:
        """State and status, once a second and whenever something changed."""
        recent = self._status_ms is not None and round.time_ms - self._status_ms < STATUS_EVERY_MS
        if recent and not round.transitions and not at_once:
            return
        self._status_ms = round.time_ms
        groups = self.loop.groups
        state = {
            "version": 1,
            "beat_ms": self.loop.beat_ms,
            "groups": {name: group.governor.export() for name, group in groups.items()},
        }
        try:
            self.directory.replace(STATE, state, durable=False)
            self.directory.replace(STATUS, status_document(round, self), durable=False)
        except Fault as fault:
            self.faults += 1
            self._warn(str(fault))

    # --- other groups

    def _reconfigure(self) -> None:
        """Read the configuration again; a bad one is said, and changes nothing."""
        if self._reload is None:
            return
        read: Reloaded | None = None
        try:
            read = self._reload()
            self._change({spec.route.name: spec for spec in read.specs})
        except (Fault, ValueError, OSError) as error:
            if read is not None:
                read.undo()
            self._warn(f"not reloaded: {error}")

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
            known = self.loop.groups.get(name)
            if known is None:
                groups.append(self._group(spec, {}))
                continue
            groups.append(Group(self._route(spec), known.governor, spec.nodes))
        self.loop.reconfigure(groups)
        for name, spec in specs.items():
            self.loop.groups[name].governor.rules = spec.rules
        self._specs = dict(specs)
        for name in self._recorders.keys() - specs.keys():
            self._recorders.pop(name).close()
        self._watch(groups)

    def _route(self, spec: GroupSpec) -> RouteGroup:
        if not spec.looked_up:
            return spec.route
        route = spec.route
        members = tuple(self.eyes.members(route.name) or ())
        return RouteGroup(route.name, route.vip, route.port, route.proto, members)

    def _watch(self, groups: Sequence[Group]) -> None:
        self.eyes.watch({group.route.name: group.route.backends for group in groups})


def _fresh(last: Mapping[str, Any]) -> bool:
    """Has the plane still gone by this tick's table, or fallen back meanwhile?"""
    at_ms = last["input"]["now_ms"]
    return bool(0 <= now_ms() - at_ms < FALLBACK_AFTER_MS)
