"""The node agent's recorded decision, `cpu.govern`: the counters of its samples, and the plan.

A life replays from its record alone (`schema/life.py`). The entries that hold the memory hold the
configuration, too; all hold the samples and what became of each limit of the plan before. The
output is that of `cpu.allocate` with a digest of the memory, smoothed demands included, that the
samples led to.

Version 3 knows `actuate`: guarantees instead of limits, the limits beside them that contain pods,
and how long threads waited. Version 1 held the limits that were written, and not why others were
left out. Records of both former versions replay.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import add, sub
from typing import Any, NamedTuple

import msgspec

from fairlead.core import cpu
from fairlead.core.canonical import canonical
from fairlead.core.cpu import (
    Counters,
    CpuConfig,
    CpuMemory,
    NodeSample,
    PodSighting,
    WritePhase,
    WriteResult,
    WrittenLimit,
)
from fairlead.core.invariant import known
from fairlead.core.units import OutOfRange
from fairlead.schema.border import BadInput, read_document
from fairlead.schema.cpu import from_plan
from fairlead.schema.life import begin, digest

KIND, VERSION = "cpu.govern", 3
_encoder = msgspec.json.Encoder(order="deterministic")
_ZERO = Counters(0, 0, 0, 0, 0)
_SUMS = 5
"""How many counters every reading has; the last one, how long threads waited, may be missing."""
_BLIND = (None,) * _SUMS
WITH_WEIGHTS = 3
"""The version since which guarantees are known."""
LEFT_OUT = (WriteResult.DECREASE_FAILED, WriteResult.NO_ROOM)
_FURTHER = ("guarantees", "waited_us", "runs")
"""Columns that are left out where they hold nothing."""
_EMPTY: tuple["Column", ...] = ((),) * (1 + _SUMS)


class PodRow(NamedTuple):
    """A pod without its counters, as `PodSighting` has it; containers by name."""

    uid: str
    request_millicores: int
    containers: tuple[str, ...]
    priority: int
    opted_out: bool
    started_ms: int | None
    identity: str
    originals: Mapping[str, int | None] = {}
    latency_target_ms: int | None = None


Roster = tuple[PodRow, ...]


Column = tuple[int | None, ...]


class SampleDocument(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """One sample: the pods where they changed (None: those of the sample before), and a column for
    the limit in force and for each counter of the containers, in the order of the pods.

    Counters are written as what was added since the reading before, which takes half the bytes;
    the first one counts from zero. None: they could not be read.
    """

    now_ms: int
    pods: Roster | None
    limits: Column
    time_us: Column
    usage_us: Column
    periods: Column
    throttled_periods: Column
    throttled_us: Column
    guarantees: Column | None = None
    """As `limits`, where weights are governed; None: no container has one."""
    waited_us: Column | None = None
    """None: it was measured of no container."""
    runs: Column | None = None

    def rows(self) -> Iterator[tuple[int | None, ...]]:
        columns = (self.time_us, self.usage_us, self.periods, self.throttled_periods)
        none = (None,) * len(self.limits)
        further = (self.guarantees or none, self.waited_us or none, self.runs or none)
        return zip(self.limits, *columns, self.throttled_us, *further, strict=True)


def sample_document(memory: CpuMemory, sample: NodeSample) -> SampleDocument:
    """A sample as it is recorded; `memory` is what it is added to."""
    rows: list[tuple[int | None, ...]] = []
    further: list[tuple[int | None, ...]] = []
    for pod in sample.pods:
        before = memory.counters(pod.uid)
        for name, limit, seen, guarantee in pod.containers:
            base = before.get(name, _ZERO)
            added = _BLIND if seen is None else tuple(map(sub, seen[:_SUMS], base[:_SUMS]))
            rows.append((limit, *added))
            further.append((guarantee, *_added(seen, base)))
    roster = tuple(
        PodRow(pod.uid, pod.request_millicores, tuple(seen[0] for seen in pod.containers), *pod[3:])
        for pod in sample.pods
    )
    limits, at, used, periods, throttled, held = zip(*rows, strict=True) if rows else _EMPTY
    columns = zip(*further, strict=True) if further else ((), (), ())
    guarantees, waits, runs = map(_column, columns)
    return SampleDocument(
        sample.now_ms, roster, limits, at, used, periods, throttled, held, guarantees, waits, runs
    )


def _added(seen: Counters | None, base: Counters) -> tuple[int | None, int | None]:
    """What was added to the counters that may be missing."""
    if seen is None:
        return None, None
    waited, runs = seen.waited_us, seen.runs
    return (
        None if waited is None else waited - (base.waited_us or 0),
        None if runs is None else runs - (base.runs or 0),
    )


def _column(values: Column) -> Column | None:
    return None if values.count(None) == len(values) else values


def _sighting(pod: PodRow, rows: Iterator[Column], before: Mapping[str, Counters]) -> PodSighting:
    """The inverse, for one pod; takes the rows of its containers."""
    containers = []
    for name, (limit, *added, guarantee, waited, runs) in zip(pod.containers, rows, strict=False):
        numbers = [number for number in added if number is not None]
        extra = waited is not None or runs is not None
        if 0 < len(numbers) < len(added) or (extra and not numbers):
            raise BadInput("samples", "must hold all counters of a container, or none")
        base, seen = before.get(name, _ZERO), None
        if numbers:
            seen = Counters(*map(add, numbers, base[:_SUMS]))._replace(
                waited_us=None if waited is None else waited + (base.waited_us or 0),
                runs=None if runs is None else runs + (base.runs or 0),
            )
        containers.append(cpu.ContainerSighting(name, limit, seen, guarantee))
    return PodSighting(pod.uid, pod.request_millicores, tuple(containers), *pod[3:])


class CpuGovernDocument(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Input of `cpu.govern`."""

    now_ms: int
    written: tuple[WrittenLimit, ...] | None
    """What became of each limit of the plan before this one; none: they were not to be written.
    None: the life begins here, or goes on after a gap."""
    memory: CpuMemory | None
    """None, as `config`: as the entry before this one left it."""
    config: CpuConfig | None
    samples: list[SampleDocument]
    contained: tuple[WrittenLimit, ...] = ()
    """What became of each limit beside the guarantees; no limit where the user's own is back."""


def input_of(
    now_ms: int,
    samples: Iterable[SampleDocument],
    roster: Roster | None,
    *,
    written: Sequence[WrittenLimit] | None,
    contained: Sequence[WrittenLimit] = (),
    memory: CpuMemory | None = None,
    config: CpuConfig | None = None,
) -> tuple[dict[str, Any], Roster | None]:
    """The input document of a decision, and the pods of its last sample. `roster`: those of the
    last sample in the record, where this entry follows from it."""
    rows = []
    for sample in samples:
        row = {name: getattr(sample, name) for name in SampleDocument.__struct_fields__}
        for name in _FURTHER:
            if row[name] is None:
                del row[name]
        if sample.pods == roster:
            row["pods"] = None
        roster = sample.pods
        rows.append(row)
    document = {
        "now_ms": now_ms,
        "written": written,
        "memory": msgspec.to_builtins(memory),
        "config": msgspec.to_builtins(config),
        "samples": rows,
    }
    if contained:
        document["contained"] = contained
    return document, roster


def output_of(
    memory: CpuMemory,
    plan: cpu.NodePlan,
    contain: Sequence[cpu.Containment],
    *,
    version: int = VERSION,
) -> dict[str, Any]:
    """The output document of a decision; `memory` is what it was made from."""
    if version < WITH_WEIGHTS:
        return {**from_plan(plan), "digest": digest(_former(memory))}
    document = {**from_plan(plan), "contain": msgspec.to_builtins(contain)}
    return {**document, "digest": digest(_encoder.encode(memory))}


def _former(memory: CpuMemory) -> bytes:
    """The memory as versions before weights encoded it."""
    document = msgspec.to_builtins(memory, order="deterministic")
    for pod in document["pods"].values():
        del pod["latency_millicores"]
        pod["containers"] = {name: row[:3] for name, row in pod["containers"].items()}
    for uid, (used, readings, counters, _) in document["windows"].items():
        rows = {name: row[:_SUMS] for name, row in counters.items()}
        document["windows"][uid] = (used, readings, rows)
    return msgspec.json.encode(document)


class CpuLife(NamedTuple):
    """Where a life stands after an entry, its plan settled: what the next one goes on from."""

    now_ms: int
    memory: CpuMemory
    config: CpuConfig
    roster: Roster | None
    plan: cpu.NodePlan | None = None
    """Where it is known, the next entry is checked to have written what it had to."""
    contain: tuple[cpu.Containment, ...] = ()


class Followed(NamedTuple):
    """What an entry decides about; the plan of its snapshot is still to be settled."""

    memory: CpuMemory
    snapshot: cpu.NodeSnapshot
    config: CpuConfig
    roster: Roster | None

    def decide(self) -> tuple[cpu.NodePlan, tuple[cpu.Containment, ...]]:
        plan = cpu.allocate(self.snapshot)
        return plan, cpu.contain(self.memory, self.snapshot, plan, self.config)

    def settle(
        self,
        mode: cpu.CpuMode,
        misses: Mapping[str, cpu.Misses],
        plan: cpu.NodePlan | None = None,
        contain: tuple[cpu.Containment, ...] = (),
    ) -> CpuLife:
        memory = cpu.settle(self.memory, mode, misses)
        return CpuLife(self.snapshot.now_ms, memory, self.config, self.roster, plan, contain)


def follow(document: CpuGovernDocument, before: CpuLife | None) -> Followed:
    """Observe an entry's samples again. `BadInput` where the memory that it holds is not what the
    entries before it lead to, where those are missing, or where a value is none of ours.
    """
    memory, config, roster = _begin(document, before)
    try:
        for row in document.samples:
            roster = roster if row.pods is None else row.pods
            memory = cpu.observe(memory, _sample(row, roster, memory), config)
        snapshot = cpu.node_snapshot(memory, document.now_ms, config)
    except OutOfRange as error:
        raise BadInput(error.field, error.message) from error
    return Followed(memory, snapshot, config, roster)


def _begin(
    document: CpuGovernDocument, before: CpuLife | None
) -> tuple[CpuMemory, CpuConfig, Roster | None]:
    led = None
    if before is not None and document.written is not None:
        led = _contained(_carried_out(before, document.written), before, document)
    memory = begin(document.memory, led, _encoder.encode)
    if document.memory is None or document.config is None:
        life = known(before, "what is left out follows from an entry")
        return memory, life.config, life.roster
    if led is not None and before is not None and document.config != before.config:
        raise BadInput("config", "is not that of the entry before")
    return memory, document.config, None


def _carried_out(before: CpuLife, written: tuple[WrittenLimit, ...]) -> CpuMemory:
    """The memory once a plan was applied; `BadInput` where a limit was left out that was to be
    written, or written though it was to be left out."""
    memory, plan, failed = before.memory, before.plan, False
    if plan is not None and written and len(written) != len(plan.writes):
        raise BadInput("written", f"must hold all {len(plan.writes)} limits of the plan, or none")
    for index, row in enumerate(written):
        if plan is not None:
            write = plan.writes[index]
            reason = cpu.left_out(
                memory, plan, write, decrease_failed=failed, actuate=before.config.actuate
            )
            if (row.uid, row.container) != (write.uid, write.container):
                raise BadInput(f"written[{index}]", "is not the limit that the plan has there")
            if (row.result if row.result in LEFT_OUT else None) != reason:
                was = "written" if reason is None else f"left out: {reason}"
                raise BadInput(f"written[{index}]", f"was to be {was}")
            failed |= write.phase is WritePhase.DECREASE and row.result is WriteResult.FAILED
        memory = cpu.applied(memory, before.now_ms, row)
    return memory


def _contained(memory: CpuMemory, before: CpuLife, document: CpuGovernDocument) -> CpuMemory:
    """The same for the limits beside the guarantees: all of the plan, or none."""
    rows = document.contained
    named = [(row.uid, row.container) for row in before.contain]
    if before.plan is not None and rows and [(row.uid, row.container) for row in rows] != named:
        raise BadInput("contained", f"must hold all {len(named)} limits of the plan, or none")
    for row in rows:
        if row.result is WriteResult.WRITTEN:
            memory = cpu.contained(memory, row)
    return memory


def _sample(row: SampleDocument, roster: Roster | None, memory: CpuMemory) -> NodeSample:
    if roster is None:
        raise BadInput("samples", "name no pods, and neither does the entry before")
    try:
        rows = list(row.rows())
    except ValueError:
        rows = []
    if len(rows) != sum(len(pod.containers) for pod in roster):
        raise BadInput("samples", "must hold a reading of each container")
    left = iter(rows)
    pods = tuple(_sighting(pod, left, memory.counters(pod.uid)) for pod in roster)
    return NodeSample(row.now_ms, pods)


def replay_cpu(
    input: Mapping[str, Any], before: Any, *, version: int = VERSION
) -> tuple[Mapping[str, Any], CpuLife]:
    """An entry of `cpu.govern` decided again, given what the one before it led to."""
    followed = follow(read_document(canonical(input), CpuGovernDocument), before)
    plan, contain = followed.decide()
    life = followed.settle(plan.mode, plan.memory, plan if version > 1 else None, contain)
    return output_of(followed.memory, plan, contain, version=version), life
