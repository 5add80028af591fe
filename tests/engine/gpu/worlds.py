"""A ledger in memory, an executor that does as it is told, a clock that is set: the fakes."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from fairlead.core.canonical import canonical
from fairlead.engine.gpu import Author, Config, ControlPlane
from fairlead.ports.executor import Exit, Job
from fairlead.ports.ledger import Draft, Entry, HeadMoved, Snapshot
from fairlead.schema.objects import API_VERSION

HOUR = 3_600_000
START = 1_767_225_600_000  # 2026-01-01T00:00:00Z, a Thursday
ADMIN = Author("root", admin=True)


def manifest(kind: str, name: str, spec: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": {"name": name, **metadata},
            "spec": spec}  # fmt: skip


def envelope(name: str = "west", concurrency: int = 8, **more: Any) -> dict[str, Any]:
    return {"name": name, "flavor": "H100", "concurrency": concurrency, **more}


def budget(name: str, owner: str | None = None, *envelopes: dict[str, Any], **more: Any):
    spec = {"owner": owner or name, "envelopes": list(envelopes) or [envelope()], **more}
    return manifest("Budget", name, spec)


def node(name: str = "n1", devices: int = 8, **more: Any) -> dict[str, Any]:
    return manifest("Node", name, {"flavor": "H100", "devices": devices, **more})


def run(name: str, owner: str = "a", gpus: int = 1, **more: Any) -> dict[str, Any]:
    return manifest("Run", name, {"owner": owner, "flavor": "H100", "totalGPUs": gpus, **more})


class MemoryLedger:
    """The port's shape, without proofs; entries are copied through their bytes as on a disk."""

    def __init__(self) -> None:
        self.log: list[Entry] = []
        self.snapshots: dict[str, Snapshot] = {}
        self._effects: dict[tuple[str, str], Entry] = {}

    def append(self, drafts: Sequence[Draft], *, expected_size: int | None = None) -> list[Entry]:
        if expected_size is not None and expected_size != len(self.log):
            raise HeadMoved(expected=expected_size, size=len(self.log))
        found = []
        for draft in drafts:
            key = None
            if draft.plan_id is not None and draft.effect is not None:
                key = (draft.plan_id, draft.effect)
            if key is not None and key in self._effects:
                found.append(self._effects[key])
                continue
            entry = Entry(
                seq=len(self.log) + 1, kind=draft.kind, time_ms=draft.time_ms,
                author=draft.author, body=draft.body, plan_id=draft.plan_id, effect=draft.effect,
                input_digest=draft.input_digest, version=draft.version, reasons=draft.reasons,
                data=canonical(draft.body),
            )  # fmt: skip
            self.log.append(entry)
            if key is not None:
                self._effects[key] = entry
            found.append(entry)
        return found

    def entries(self, after: int = 0, limit: int = 1_000, **_: Any) -> list[Entry]:
        return self.log[after : after + limit]

    def entry(self, seq: int) -> Entry | None:
        return self.log[seq - 1] if 0 < seq <= len(self.log) else None

    def snapshot_get(self, name: str) -> Snapshot | None:
        return self.snapshots.get(name)

    def snapshot_put(self, name: str, seq: int, state: bytes) -> None:
        self.snapshots[name] = Snapshot(name, seq, state)


class FakeExecutor:
    """Starts nothing; tests say when a job ends."""

    def __init__(self) -> None:
        self.jobs: dict[str, Job] = {}
        self.calls: list[tuple[Any, ...]] = []
        self.exits: list[Exit] = []
        self.ended: set[str] = set()
        self.fail: Exception | None = None

    def start(self, job: Job) -> None:
        if self.fail is not None:
            raise self.fail
        if job.id not in self.jobs:
            self.jobs[job.id] = job
            self.calls.append(("start", job.id))

    def stop(self, run: str, grace_ms: int) -> None:
        self.calls.append(("stop", run, grace_ms))

    def pause(self, run: str) -> None:
        self.calls.append(("pause", run))

    def resume(self, run: str) -> None:
        self.calls.append(("resume", run))

    def end(self, run: str, time_ms: int, **how: Any) -> None:
        job = next(j for j in reversed(self.jobs.values()) if j.run == run)
        self.ended.add(job.id)
        self.exits.append(Exit(job.id, run, time_ms, **(how or {"code": 0})))

    def poll(self) -> list[Exit]:
        return list(self.exits)

    def acknowledge(self, exits: Iterable[Exit]) -> None:
        gone = list(exits)
        self.exits = [each for each in self.exits if each not in gone]

    def running(self) -> set[str]:
        return set(self.jobs) - self.ended

    def log_path(self, run: str) -> Path | None:
        return None


class World:
    """A control plane on fakes."""

    def __init__(self, ledger: MemoryLedger | None = None, *, config: Config | None = None) -> None:
        self.now_ms = START
        self.ledger = ledger or MemoryLedger()
        self.executor = FakeExecutor()
        self.config = config
        self.plane = self.open()

    def open(self) -> ControlPlane:
        return ControlPlane(self.ledger, self.executor, lambda: self.now_ms, self.config)  # type: ignore[arg-type]

    def apply(self, *manifests: dict[str, Any]) -> None:
        for each in manifests:
            self.plane.apply(each, author=ADMIN)

    def turn(self, hours: float = 0) -> None:
        self.now_ms += int(hours * HOUR)
        self.plane.reconcile(self.now_ms)

    def status(self, kind: str, name: str) -> dict[str, Any]:
        found = self.plane.get(kind, name)
        assert found is not None
        return found["status"]

    def headroom(self, name: str, place: int = 0) -> dict[str, Any]:
        return self.status("Budget", name)["headroom"][place]

    def kinds(self) -> list[str]:
        return [entry.kind for entry in self.ledger.log]
