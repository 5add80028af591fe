"""What if: every recorded CPU snapshot of many nodes, decided under another policy.

Each snapshot is decided by itself. The other policy would have changed what pods use, and so every
later snapshot; that effect is not in the answer. Guardrails are dropped unless asked for: their
bounds follow the recorded limits and would hold the answer close to them.

With numpy a batch of snapshots is one call of `fairlead.fleet`; without, core decides them one by
one. All sums are integers, so both give the same result. Most of the time goes into reading.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from fairlead.core import cpu
from fairlead.core.cpu import CpuMode, NodePlan, NodeSnapshot, Plan, Policy, Snapshot
from fairlead.ports.faults import PermanentFault
from fairlead.ports.recorder import RecordEntry
from fairlead.recorder import CorruptRecord, read
from fairlead.recorder.reader import segments
from fairlead.schema.border import BadInput, check_shape
from fairlead.schema.cpu import STYLE, AllocateDocument, ClearDocument
from fairlead.schema.cpu_govern import KIND, VERSION, CpuGovernDocument, CpuLife, follow

BATCH = 2_000
GAP_MS_MAX = 60_000
"""A snapshot counts until the next one, but not longer: the agent was not running in between."""
_GOVERN = {(KIND, version) for version in range(1, VERSION + 1)}
_READ = {*_GOVERN, ("cpu.allocate", 1), ("cpu.clear", 1)}
LAST_MS = 5_000
"""For how long a record's only snapshot counts: the usual time between two."""

Progress = Callable[[str, int], None]
"""Called after each batch: the node, and how many of its snapshots are decided."""


class NoDecisions(ValueError):
    """A record holds nothing to decide again."""


class Sample(NamedTuple):
    """A recorded decision: its snapshot, what was decided, and for how long it counts."""

    time_ms: int
    duration_ms: int
    snapshot: Snapshot | NodeSnapshot
    needs: Mapping[str, int]
    allocations: Mapping[str, int]


@dataclass(slots=True)
class Side:
    """Totals under one policy; unmet need in millicore-milliseconds."""

    granted: int = 0
    below_ms: int = 0
    unmet: int = 0

    def add(self, need: int, allocation: int, duration_ms: int) -> None:
        self.granted += allocation * duration_ms
        if allocation < need:
            self.below_ms += duration_ms
            self.unmet += (need - allocation) * duration_ms

    @property
    def unmet_core_s(self) -> float:
        """Core-seconds that were needed and not allocated."""
        return round(self.unmet / 1_000_000, 3)


@dataclass(slots=True)
class PodChange:
    """One pod on one node, as recorded and what-if."""

    node: str
    pod: str
    time_ms: int = 0
    needed: int = 0
    recorded: Side = field(default_factory=Side)
    whatif: Side = field(default_factory=Side)

    @property
    def change_millicores(self) -> int:
        return self.mean(self.whatif.granted) - self.mean(self.recorded.granted)

    def mean(self, total: int) -> int:
        return round(total / self.time_ms) if self.time_ms else 0

    def as_document(self) -> dict[str, Any]:
        return {
            "node": self.node,
            "pod": self.pod,
            "seconds": self.time_ms / 1000,
            "need_millicores": self.mean(self.needed),
            "change_millicores": self.change_millicores,
            **{
                name: {
                    "mean_millicores": self.mean(side.granted),
                    "below_need_s": side.below_ms / 1000,
                    "unmet_core_s": side.unmet_core_s,
                }
                for name, side in (("recorded", self.recorded), ("whatif", self.whatif))
            },
        }


@dataclass(slots=True)
class NodeChange:
    """One node, all its pods together."""

    node: str
    snapshots: int = 0
    time_ms: int = 0
    scarce_ms: int = 0
    """With more need than capacity, whatever the policy."""
    policies: set[str] = field(default_factory=set)
    pods: dict[str, PodChange] = field(default_factory=dict)
    recorded: Side = field(default_factory=Side)
    whatif: Side = field(default_factory=Side)

    def add(self, sample: Sample, decided: Plan | NodePlan) -> None:
        self.snapshots += 1
        self.time_ms += sample.duration_ms
        self.policies.add(sample.snapshot.policy.value)
        self.scarce_ms += sample.duration_ms if decided.mode is not CpuMode.UNCONGESTED else 0
        for uid, need in decided.needs.items():
            pod = self.pods.setdefault(uid, PodChange(self.node, uid))
            pod.time_ms += sample.duration_ms
            pod.needed += need * sample.duration_ms
            for sides, part in (
                ((self.recorded, pod.recorded), sample),
                ((self.whatif, pod.whatif), decided),
            ):
                for side in sides:
                    side.add(part.needs[uid], part.allocations[uid], sample.duration_ms)

    @property
    def scarce_share(self) -> float:
        return round(self.scarce_ms / self.time_ms, 4) if self.time_ms else 0.0

    def as_document(self) -> dict[str, Any]:
        return {
            "node": self.node,
            "snapshots": self.snapshots,
            "seconds": self.time_ms / 1000,
            "pods": len(self.pods),
            "scarce_share": self.scarce_share,
            "recorded_policies": sorted(self.policies),
            **{
                name: {"below_need_pod_s": side.below_ms / 1000, "unmet_core_s": side.unmet_core_s}
                for name, side in (("recorded", self.recorded), ("whatif", self.whatif))
            },
        }


@dataclass(frozen=True, slots=True)
class WhatIf:
    """The answer."""

    policy: Policy
    guardrails: bool
    nodes: tuple[NodeChange, ...]

    @property
    def snapshots(self) -> int:
        return sum(node.snapshots for node in self.nodes)

    @property
    def pods(self) -> list[PodChange]:
        return [node.pods[uid] for node in self.nodes for uid in sorted(node.pods)]

    def winners(self, count: int, sign: int = 1) -> list[PodChange]:
        """Pods that gain, the largest gain first; those that lose with a sign of -1."""
        ranked = sorted(self.pods, key=lambda pod: -sign * pod.change_millicores)
        return [pod for pod in ranked[:count] if sign * pod.change_millicores > 0]

    def losers(self, count: int) -> list[PodChange]:
        return self.winners(count, -1)


def what_if(
    records: Sequence[Path],
    policy: Policy,
    *,
    guardrails: bool = False,
    progress: Progress | None = None,
) -> WhatIf:
    """Decide every CPU snapshot of these records under `policy`."""
    clear_all = decider()
    nodes = []
    for name, path in name_nodes(records).items():
        node = NodeChange(name)
        samples = read_samples(path, guardrails=guardrails)
        while batch := list(islice(samples, BATCH)):
            snapshots = [replace(sample.snapshot, policy=policy) for sample in batch]
            for sample, decided in zip(batch, _decide(snapshots, clear_all), strict=True):
                node.add(sample, decided)
            if progress:
                progress(name, node.snapshots)
        nodes.append(node)
    return WhatIf(policy, guardrails, tuple(nodes))


def name_nodes(records: Sequence[Path]) -> dict[str, Path]:
    """Records by a short name: that of the folder, or the whole path where two are the same."""
    if len({path.resolve() for path in records}) < len(records):
        raise NoDecisions("a record is named twice")
    names = [path.resolve() for path in records]
    short = [path.parent.name if path.name == "record" else path.name for path in names]
    whole = [str(path) for path in records]
    return dict(zip(short if len(set(short)) == len(short) else whole, records, strict=True))


# --- reading


def read_samples(path: Path, *, guardrails: bool) -> Iterator[Sample]:
    """The CPU decisions of a record, or of the agent's state directory around one."""
    folder = path / "record" if (path / "record").is_dir() else path
    if folder.is_dir() and not segments(folder):
        raise NoDecisions(f"{path}: holds no record (no segment-*.jsonl)")
    previous: Sample | None = None
    duration_ms, others = LAST_MS, set()
    try:
        reader = _Reader(path, guardrails=guardrails)
        for entry in read(folder):
            sample = reader.sample(entry)
            if sample is None:
                others.add(entry.kind)
                continue
            if previous is not None:
                duration_ms = min(max(sample.time_ms - previous.time_ms, 0), GAP_MS_MAX)
                yield previous._replace(duration_ms=duration_ms)
            previous = sample
    except CorruptRecord as error:
        raise PermanentFault(f"{path}: the record is damaged: {error}") from error
    if previous is None:
        held = f"only {', '.join(sorted(others))}" if others else "it is empty"
        raise NoDecisions(f"{path}: no CPU decisions in this record: {held}")
    yield previous._replace(duration_ms=duration_ms)


class _Reader:
    """Turns the entries of one record into samples; follows the life of `cpu.govern` through it."""

    def __init__(self, path: Path, *, guardrails: bool) -> None:
        self._path, self._guardrails = path, guardrails
        self._life: CpuLife | None = None

    def sample(self, entry: RecordEntry) -> Sample | None:
        if (entry.kind, entry.version) not in _READ:
            return None
        try:
            snapshot = self._snapshot(entry)
        except BadInput as error:
            refused = f"{self._path}: entry {entry.seq} is not a CPU snapshot: {error}"
            raise NoDecisions(refused) from error
        needs, allocations = entry.output["needs"], entry.output["allocations"]
        uids = {pod.uid for pod in snapshot.pods}
        if not uids == needs.keys() == allocations.keys():
            raise NoDecisions(
                f"{self._path}: entry {entry.seq} decided for other pods than it was given"
            )
        return Sample(entry.time_ms, 0, snapshot, needs, allocations)

    def _snapshot(self, entry: RecordEntry) -> Snapshot | NodeSnapshot:
        if entry.kind == "cpu.clear":  # an earlier release: guardrails are bounds already
            snapshot = STYLE.to_core(Snapshot, check_shape(dict(entry.input), ClearDocument))
            free = [
                replace(pod, lower_millicores=None, upper_millicores=None) for pod in snapshot.pods
            ]
            return snapshot if self._guardrails else replace(snapshot, pods=tuple(free))
        misses = {uid: cpu.Misses(**pod) for uid, pod in entry.output["memory"].items()}
        if entry.kind == "cpu.allocate":
            node = STYLE.to_core(NodeSnapshot, check_shape(dict(entry.input), AllocateDocument))
        else:
            followed = follow(check_shape(dict(entry.input), CpuGovernDocument), self._life)
            if misses.keys() != followed.memory.pods.keys():
                raise BadInput("memory", "must be of the pods that were seen")
            self._life = followed.settle(CpuMode(entry.output["mode"]), misses)
            node = followed.snapshot
        return node if self._guardrails else node.claims(misses)


# --- deciding

Clear = Callable[[Sequence[Snapshot]], list[Plan]]


def _decide(
    snapshots: Sequence[Snapshot | NodeSnapshot], clear_all: Clear
) -> list[Plan | NodePlan]:
    """With guardrails one by one, since their bounds depend on the policy; without, all at once."""
    cleared = iter(clear_all([free for free in snapshots if isinstance(free, Snapshot)]))
    return [
        next(cleared) if isinstance(snapshot, Snapshot) else cpu.allocate(snapshot)
        for snapshot in snapshots
    ]


def decider() -> Clear:
    """The fleet path where numpy is installed, the scalar core otherwise."""
    try:
        import fairlead.fleet  # noqa: F401, PLC0415 - an optional extra, and slow to import
    except ImportError:
        return decide_one_by_one
    return decide_fleet


def decide_one_by_one(snapshots: Sequence[Snapshot]) -> list[Plan]:
    return [cpu.clear(snapshot) for snapshot in snapshots]


def decide_fleet(snapshots: Sequence[Snapshot]) -> list[Plan]:
    """All in one call; equal to `decide_one_by_one`."""
    from fairlead.fleet import FleetSnapshot, clear_fleet  # noqa: PLC0415 - an optional extra

    return clear_fleet(FleetSnapshot.from_snapshots(snapshots)).to_plans()
