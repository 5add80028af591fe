"""A control plane on a ledger in memory, an executor that obeys, and a clock that is set."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from fairlead.core.gpu import PreemptionPolicy
from fairlead.core.gpu.clock import ClockReading
from fairlead.engine.gpu import Author, Config, ControlPlane, Projection
from fairlead.engine.gpu.checkpoint import export
from fairlead.engine.gpu.clock import LedgerClock
from fairlead.ports.entropy import EntropySource
from fairlead.ports.executor import Exit, Job
from fairlead.ports.ledger import Entry, Ledger
from fairlead.ports.meter import DeviceMeter
from fairlead.schema.objects import API_VERSION
from tests.ledger.memory import MemoryLedger

HOUR = 3_600_000
LENIENT = PreemptionPolicy(min_notice_ms=0, max_reservations=1000, min_runtime_ms=0, cooldown_ms=0)
"""For tests of what follows: reservations without notice, and every run a candidate."""
START = 1_767_225_600_000  # 2026-01-01T00:00:00Z, a Thursday
ADMIN = Author("root", admin=True)
ALICE = Author("alice", frozenset({"a"}))


def manifest(kind: str, name: str, spec: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    return {
        "apiVersion": API_VERSION,
        "kind": kind,
        "metadata": {"name": name, **metadata},
        "spec": spec,
    }


def envelope(name: str = "west", concurrency: int = 8, **more: Any) -> dict[str, Any]:
    return {"name": name, "flavor": "H100", "concurrency": concurrency, **more}


def budget(name: str, owner: str | None = None, *envelopes: dict[str, Any], **more: Any):
    spec = {"owner": owner or name, "envelopes": list(envelopes) or [envelope()], **more}
    return manifest("Budget", name, spec)


def node(name: str = "n1", devices: int = 8, **more: Any) -> dict[str, Any]:
    return manifest("Node", name, {"flavor": "H100", "devices": devices, **more})


def run(name: str, owner: str = "a", gpus: int = 1, **more: Any) -> dict[str, Any]:
    return manifest("Run", name, {"owner": owner, "flavor": "H100", "totalGPUs": gpus, **more})


def state_of(world: "World") -> bytes:
    """All that a control plane knows, its accounts looked at now."""
    projection = world.projection
    projection.accounts.advance(max(world.now_ms, projection.time_ms))
    return export(projection)


class FakeExecutor:
    """Starts nothing; tests say when a job ends."""

    pauses = True

    def __init__(self) -> None:
        self.jobs: dict[str, Job] = {}
        self.calls: list[tuple[Any, ...]] = []
        self.decisions: list[str] = []
        self.exits: list[Exit] = []
        self.over: set[str] = set()
        self.fail: Exception | None = None
        self.seen_ms = 0
        """When it last looked after its jobs, as far as it knows."""
        self.holding: bool | None = None
        """Whether devices that were given up are still used."""

    def start(self, job: Job) -> None:
        if self.fail is not None:
            raise self.fail
        if job.id not in self.jobs:
            self.jobs[job.id] = job
            self.calls.append(("start", job.id))

    def stop(self, run: str, grace_ms: int, *, decision: str) -> None:
        self.decisions.append(decision)
        self.calls.append(("stop", run, grace_ms))

    def pause(self, run: str, *, decision: str) -> None:
        self.decisions.append(decision)
        self.calls.append(("pause", run))

    def resume(self, run: str, *, decision: str) -> None:
        self.decisions.append(decision)
        self.calls.append(("resume", run))

    def resize(self, run: str, devices: tuple[str, ...], *, grace_ms: int, decision: str) -> None:
        self.decisions.append(decision)
        self.calls.append(("resize", run, devices))

    def forget(self, run: str) -> None:
        """The machine is another one: there is no trace of the run's jobs."""
        self.jobs = {id: job for id, job in self.jobs.items() if job.run != run}

    def ended(self, job: str, run: str) -> Exit | None:
        known = job in self.jobs
        return None if known else Exit(job, run, self.seen_ms, lost=True, interrupted=True)

    def warn(self, run: str, notice: Any, *, signal: str | None, decision: str) -> None:
        self.decisions.append(decision)
        self.calls.append(("warn", run, notice, signal))

    def held(self, run: str, devices: tuple[str, ...]) -> bool | None:
        return self.holding

    def end(self, run: str, time_ms: int, **how: Any) -> None:
        job = next(j for j in reversed(self.jobs.values()) if j.run == run)
        self.over.add(job.id)
        self.exits.append(Exit(job.id, run, time_ms, **(how or {"code": 0})))

    def poll(self) -> list[Exit]:
        return list(self.exits)

    def acknowledge(self, exits: Iterable[Exit]) -> None:
        gone = list(exits)
        self.exits = [each for each in self.exits if each not in gone]

    def running(self) -> set[str]:
        return set(self.jobs) - self.over

    def devices_of(self, run: str) -> dict[str, list[str]]:
        jobs = (self.jobs[id] for id in self.running())
        return {job.id: list(job.devices) for job in jobs if job.run == run}

    def log_parts(self, run: str, jobs: str = "") -> list[Path]:
        return []


class Clocks:
    """The clocks of a machine: a test moves them together, or the wall clock alone."""

    def __init__(self, wall_ms: int = START) -> None:
        self.wall_ms, self.since_boot_ms, self.boots = wall_ms, 1_000_000, 1
        self.host = "lab"

    def pass_ms(self, passed_ms: int) -> None:
        self.wall_ms += passed_ms
        self.since_boot_ms += passed_ms

    def reboot(self, off_ms: int) -> None:
        self.wall_ms += off_ms
        self.since_boot_ms, self.boots = 10_000, self.boots + 1

    def __call__(self) -> ClockReading:
        return ClockReading(self.wall_ms, self.since_boot_ms, f"boot-{self.boots}", self.host)


class World:
    """A control plane on fakes. `clocks`: a machine's, in place of one that is believed."""

    def __init__(
        self,
        ledger: Ledger | None = None,
        *,
        config: Config | None = None,
        chance: EntropySource | None = None,
        clocks: Clocks | None = None,
    ) -> None:
        self.now_ms, self.clocks = START, clocks
        self.ledger: Ledger = ledger or MemoryLedger(time_ms=START)
        self.executor = FakeExecutor()
        self.config, self.chance = config, chance
        self.meter: DeviceMeter | None = None
        self.plane = self.open()

    def open(self) -> ControlPlane:
        return ControlPlane(
            self.ledger,
            self.executor,
            (lambda: self.now_ms) if self.clocks is None else LedgerClock(self.clocks),
            self.config,
            self.chance,
            meter=self.meter,
        )

    @property
    def projection(self) -> Projection:
        """What the control plane knows; another one after `open`."""
        return self.plane.committer.projection

    def reconfigure(self, **changes: Any) -> None:
        """The same control plane, started again with other settings."""
        self.config = replace(self.config or Config(), **changes)
        self.plane = self.open()

    def apply(self, *manifests: dict[str, Any]) -> None:
        for each in manifests:
            self.plane.objects.apply(each, author=ADMIN)

    def turn(self, hours: float = 0) -> None:
        self.now_ms += int(hours * HOUR)
        if self.clocks is None:
            self.plane.reconcile(self.now_ms)
            return
        self.clocks.pass_ms(int(hours * HOUR))
        self.plane.reconcile()

    def status(self, kind: str, name: str) -> dict[str, Any]:
        found = self.plane.objects.get(kind, name)
        assert found is not None
        return found["status"]

    def headroom(self, name: str, place: int = 0) -> dict[str, Any]:
        return self.status("Budget", name)["headroom"][place]

    @property
    def log(self) -> list[Entry]:
        """All entries but the ledger's own."""
        found = self.ledger.entries(0, 100_000)
        return [entry for entry in found if not entry.kind.startswith("ledger.")]

    def kinds(self) -> list[str]:
        return [entry.kind for entry in self.log]


def lines(found: dict[str, Any]) -> list[tuple[str, int, bool]]:
    """Who pays for how much of a plan, and whether it is borrowed."""
    return [(each["budget"], each["gpus"], each["borrowed"]) for each in found["plan"]]
