"""One machine in virtual time: its disk, clocks and processes, and the control plane on it.

The control plane is the real one; it dies in the middle of what it does and is started again. What
survives is on the disk, and in the processes of the machine.
"""

import sqlite3
import zlib
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from fairlead.api.access import SNAPSHOT as ACCESS
from fairlead.core.gpu import PreemptionPolicy
from fairlead.core.gpu.clock import ClockReading
from fairlead.core.invariant import known
from fairlead.core.lottery import BeaconNetwork
from fairlead.engine.gpu import Config, ControlPlane
from fairlead.engine.gpu.clock import LedgerClock
from fairlead.ledger.keys import MasterEntropy
from fairlead.ledger.sqlite import sqlite_faults
from fairlead.ports.executor import Exit, Job
from fairlead.ports.faults import Fault, TemporaryFault
from fairlead.sim.clock import Entropy, VirtualClock
from fairlead.sim.executor import Behaviour, SimExecutor, SimMachine
from fairlead.sim.vopr.api import Api
from fairlead.sim.vopr.disk import Crash, SimDisk
from fairlead.sim.vopr.ledger import SimKeys, SimLedger, open_sim

START_MS = 1_767_225_600_000  # 2026-01-01T00:00:00Z
GRACE_MS = 10_000
CONFIG = Config(
    grace_ms=GRACE_MS,
    max_grace_ms=60_000,
    checkpoint_every=60,
    resolver="enforce",
    preemption=PreemptionPolicy(
        min_notice_ms=0, max_reservations=3, min_runtime_ms=5_000, cooldown_ms=30_000
    ),
)


class FaultPoints:
    """Where a crash is set: so many acts from now on. Counts all of them."""

    def __init__(self) -> None:
        self.passed = 0
        self.crash_in: int | None = None

    def __call__(self, what: str) -> None:
        self.passed += 1
        if self.crash_in is not None:
            self.crash_in -= 1
            if self.crash_in < 0:
                self.crash_in = None
                raise Crash(what)


class FaultyExecutor:
    """The executor's calls: each may be the last before a crash, or fail; checkers hear of them."""

    pauses = True

    def __init__(self, inner: SimExecutor, world: "VoprWorld") -> None:
        self._inner, self._world = inner, world

    def _call(self, name: str, *given: Any, decision: str, **more: Any) -> None:
        self._world.points(f"before {name}")
        self._answer(name)
        self._world.on_act(name, given, decision)
        cited = {} if name == "start" else {"decision": decision}
        getattr(self._inner, name)(*given, **cited, **more)
        self._world.points(f"after {name}")

    def _answer(self, name: str) -> None:
        if self._world.executor_faults:
            self._world.executor_faults -= 1
            raise TemporaryFault(f"cannot {name}: the machine does not answer")

    def start(self, job: Job) -> None:
        if any("\0" in text for text in (*job.command, *job.env, *job.env.values())):
            raise ValueError("embedded null byte")  # as `execve` cannot be called at all
        self._call("start", job, decision=job.id)

    def stop(self, run: str, grace_ms: int, *, decision: str) -> None:
        self._call("stop", run, grace_ms, decision=decision)

    def pause(self, run: str, *, decision: str) -> None:
        self._call("pause", run, decision=decision)

    def resume(self, run: str, *, decision: str) -> None:
        self._call("resume", run, decision=decision)

    def resize(self, run: str, devices: tuple[str, ...], *, grace_ms: int, decision: str) -> None:
        self._call("resize", run, devices, decision=decision, grace_ms=grace_ms)

    def warn(
        self, run: str, notice: Mapping[str, object], *, signal: str | None, decision: str
    ) -> None:
        self._call("warn", run, notice, decision=decision, signal=signal)

    def held(self, run: str, devices: tuple[str, ...]) -> bool | None:
        return self._inner.held(run, devices)

    def poll(self) -> list[Exit]:
        self._answer("poll")
        return self._inner.poll()

    def acknowledge(self, exits: Iterable[Exit]) -> None:
        self._world.points("before acknowledge")
        self._answer("acknowledge")
        self._inner.acknowledge(exits)

    def running(self) -> set[str]:
        self._answer("list the jobs")
        return self._inner.running()

    def devices_of(self, run: str) -> dict[str, list[str]]:
        self._answer("look for devices")
        return self._inner.devices_of(run)

    def ended(self, job: str, run: str) -> Exit | None:
        self._answer("look for a job")
        return self._inner.ended(job, run)

    def log_parts(self, run: str, jobs: str = "") -> list[Path]:
        return []


class ControlHost:
    """A host that the control plane can run on, and its clocks."""

    def __init__(self, name: str, boot: int, booted_ms: int) -> None:
        self.name = name
        self.boot(boot, booted_ms)
        self.set_clock(booted_ms, 0)

    def boot(self, number: int, now_ms: int) -> None:
        self.boot_name, self.booted_ms = f"boot-{number}", now_ms

    def set_clock(self, now_ms: int, skew_ms: int, drift_ppm: int = 0) -> None:
        """The wall clock is off by this, from now on, and runs so much faster."""
        self._skew_ms, self.drift_ppm, self._drifts_from_ms = skew_ms, drift_ppm, now_ms

    def skew_ms(self, now_ms: int) -> int:
        """By how much the wall clock is off."""
        return self._skew_ms + (now_ms - self._drifts_from_ms) * self.drift_ppm // 1_000_000

    def reading(self, now_ms: int) -> ClockReading:
        wall_ms = now_ms + self.skew_ms(now_ms)
        return ClockReading(wall_ms, now_ms - self.booted_ms, self.boot_name, self.name)


class VoprWorld:
    """All of it. `behaves` says what a job's command does."""

    def __init__(
        self, seed: int, behaves: Callable[[Job], Behaviour], *, config: Config = CONFIG
    ) -> None:
        self.entropy, self._config = Entropy(seed), config
        self.time = VirtualClock()
        self.time.run_until(START_MS)
        self._hosts = [ControlHost("sim", 1, START_MS - 60_000)]
        self.boots = 1
        """How often another monotonic clock has been gone by: boots and failovers."""
        self.points = FaultPoints()
        self.disk = SimDisk(self.points)
        self.machine = SimMachine(self.time, behaves)
        self.machine.boot, self.machine.booted_ms = self.host.boot_name, self.host.booted_ms
        self.executor_faults = 0
        """So many of the executor's next calls fail."""
        self.on_act: Callable[[str, tuple[Any, ...], str], None] = lambda name, given, cited: None
        """A checker's: what the executor is asked, and the decision that is cited."""
        self.crashes = 0
        self.tampered = False
        """Whether an intruder has edited the disk."""
        self._keys = SimKeys(seed)
        self._chance = MasterEntropy(seed.to_bytes(32, "big"))
        self.ledger: SimLedger | None = None
        self.plane: ControlPlane | None = None
        self._api: Api | None = None

    @property
    def host(self) -> ControlHost:
        """Where the control plane runs."""
        return self._hosts[-1]

    def reading(self) -> ClockReading:
        return self.host.reading(self.time.now_ms)

    def jump(self, far_ms: int) -> None:
        """The wall clock jumps; it runs as fast as before."""
        host, now_ms = self.host, self.time.now_ms
        host.set_clock(now_ms, host.skew_ms(now_ms) + far_ms, host.drift_ppm)

    def drift(self, ppm: int) -> None:
        """The wall clock runs so much faster from now on."""
        now_ms = self.time.now_ms
        self.host.set_clock(now_ms, self.host.skew_ms(now_ms), ppm)

    def set_clocks(self) -> None:
        """All wall clocks are right."""
        for host in self._hosts:
            host.set_clock(self.time.now_ms, 0)

    def use_beacon(self, network: BeaconNetwork | None) -> None:
        """The operator restarts the control plane with, or without, public entropy."""
        self.kill()
        self._config = replace(self._config, beacon=network)

    def up(self) -> ControlPlane:
        """The control plane, started if it is down. Raises `Crash` where one is set."""
        if self.plane is None:
            try:
                self._open()
            except Fault:
                self.kill()  # a process that could not start is gone
                raise
        return known(self.plane, "it is up")

    def api(self) -> Api:
        """Of the control plane, which is started if it is down; made when it is asked first."""
        plane = self.up()
        if self._api is None:
            self._api = Api(plane, known(self.ledger, "it is up"))
        return self._api

    def _open(self) -> None:
        clock = LedgerClock(self.reading, self._config.clock, elsewhere=self.in_cluster)
        with sqlite_faults("open the ledger"):
            self.ledger = SimLedger(self.disk, self._keys, time_ms=self.reading().wall_ms)
        executor = FaultyExecutor(SimExecutor(self.machine), self)
        self.plane = ControlPlane(self.ledger, executor, clock, self._config, self._chance)

    def down(self) -> None:
        """The power goes: the process is gone, and with it what was not synced."""
        self.kill()
        self.disk.lose(self.entropy.stream("loss", str(self.crashes)))

    def kill(self) -> None:
        """`kill -9`: the process is gone; what it wrote is in the page cache, and stays."""
        self.crashes += 1
        self.points.crash_in = None
        self.disk.detach()
        self.ledger = self.plane = self._api = None

    def tamper(self) -> None:
        """An intruder, who can write to the disk and has no key, gives one owner's runs and budgets
        to another in the states that are kept beside the ledger, and its users to that, too."""
        self.kill()
        self.tampered = True
        with suppress(sqlite3.Error):
            connection = open_sim(self.disk)
            for row in connection.execute("SELECT name, state FROM snapshots").fetchall():
                if row[0] == ACCESS:
                    state = row[1].replace(b'"owners":["a"]', b'"owners":["c"]')
                else:
                    state = zlib.decompress(row[1]).replace(b'"owner":"a"', b'"owner":"c"')
                    state = zlib.compress(state)
                change = "UPDATE snapshots SET state = ? WHERE name = ?"
                connection.execute(change, (state, row[0])).fetchall()
        self.kill()

    def reboot(self, off_ms: int) -> None:
        """The host goes down; in a cluster, runs go on on others."""
        self.down()
        if not self.in_cluster:
            self.machine.power_off()
        self.time.run_until(self.time.now_ms + off_ms)
        self.boots += 1
        self.host.boot(self.boots, self.time.now_ms)
        if not self.in_cluster:
            self.machine.power_on(self.host.boot_name)
        self.time.run_until(self.time.now_ms + 10_000)

    @property
    def in_cluster(self) -> bool:
        """Whether runs have machines of their own: of their ends only the wall time is known."""
        return not self.machine.boot

    def fail_over(self, skew_ms: int) -> None:
        """A replica on another host, whose clock is off by this, takes over; runs go on."""
        self.kill()
        self.boots += 1
        self.machine.boot, now_ms = "", self.time.now_ms
        if len(self._hosts) == 1:
            self._hosts.insert(0, ControlHost("sim-2", self.boots, now_ms - 86_400_000))
        self._hosts.reverse()
        self.host.set_clock(now_ms, skew_ms)
