"""The CPU governor of a node: holds its memory between two samples. No I/O, no clock.

    governor = CpuGovernor(CpuConfig(node_millicores=8000))
    governor.observe(now_ms, sightings)           # each sample (1 s), all pods of the node
    snapshot, plan, contain = governor.decide(now_ms)   # each clear (5 s)
    sequence = governor.record(recorder, now_ms, plan, contain)
    governor.settle(now_ms, plan)                 # once it is recorded; then apply
    governor.applied(write, 700)                  # each limit of plan.writes that was written
    governor.contained(limit)                     # each limit of `contain`

The node agent and the simulator drive it; `export`/`restore` carry it across a restart.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

import msgspec

from fairlead.core import cpu
from fairlead.engine.life import LifeRecord
from fairlead.ports.recorder import Recorder
from fairlead.schema.convert import convert
from fairlead.schema.cpu_govern import (
    KIND,
    VERSION,
    Roster,
    SampleDocument,
    input_of,
    output_of,
    sample_document,
)

STATE_VERSION = 2


class BadState(ValueError):
    """A stored state that is not one of ours: refused whole rather than half believed."""


class GovernorState(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """All that survives a restart: the user's original bounds must."""

    version: int
    mode: cpu.CpuMode | None
    reserved_millicores: int
    pods: list[cpu.PodMemory]
    actuate: cpu.Actuation = cpu.Actuation.LIMITS
    """What the memory's `current_millicores` are of: limits, or guarantees."""


class CpuGovernor:
    """Keeps the memory of one node, and the samples that its record still lacks."""

    def __init__(self, config: cpu.CpuConfig, memory: cpu.CpuMemory | None = None) -> None:
        self._config, self._memory = config, memory or cpu.CpuMemory()
        self._before = self._memory
        """What the samples below were added to."""
        self._samples: list[SampleDocument] = []
        self._settled_ms = 0
        self._written: list[cpu.WrittenLimit] = []
        """What became of each limit of the last plan."""
        self._contained: list[cpu.WrittenLimit] = []
        """The same of the limits beside its guarantees."""
        self._decrease_failed = False
        self._roster: Roster | None = None
        self._life = LifeRecord(KIND, VERSION)

    @property
    def config(self) -> cpu.CpuConfig:
        return self._config

    @config.setter
    def config(self, config: cpu.CpuConfig) -> None:
        """Go on under another one (say, another policy). Frozen bounds stay frozen."""
        self._config = config
        self._life.break_off()

    @property
    def pods(self) -> Mapping[str, cpu.PodMemory]:
        return self._memory.pods

    def observe(self, now_ms: int, sightings: Iterable[cpu.PodSighting]) -> None:
        """Take one sample of the whole node. A pod that is not in it has left and is forgotten."""
        if not self._samples:
            self._before = self._memory
        sample = cpu.NodeSample(now_ms, tuple(sightings))
        self._samples.append(sample_document(self._memory, sample))
        self._memory = cpu.observe(self._memory, sample, self._config)

    def decide(
        self, now_ms: int
    ) -> tuple[cpu.NodeSnapshot, cpu.NodePlan, tuple[cpu.Containment, ...]]:
        """Decide one turn. Record it, `settle` the plan, then apply its writes."""
        snapshot = cpu.node_snapshot(self._memory, now_ms, self._config)
        plan = cpu.allocate(snapshot)
        return snapshot, plan, cpu.contain(self._memory, snapshot, plan, self._config)

    def record(
        self,
        recorder: Recorder,
        now_ms: int,
        plan: cpu.NodePlan,
        contain: Sequence[cpu.Containment] = (),
    ) -> int:
        """Record a decision before it is applied; its sequence number.

        Samples that could not be recorded are not kept: the next entry holds the memory instead.
        """
        samples, self._samples = self._samples, []
        link = self._life.next(recorder)
        document, self._roster = input_of(
            now_ms,
            samples,
            None if link.whole else self._roster,
            written=self._written if link.follows else None,
            contained=self._contained if link.follows else (),
            memory=(self._before if samples else self._memory) if link.whole else None,
            config=self._config if link.whole else None,
        )
        output = output_of(self._memory, plan, contain)
        return self._life.append(recorder, now_ms, input=document, output=output)

    def settle(self, now_ms: int, plan: cpu.NodePlan) -> None:
        """Go on from a plan once it is recorded: what is remembered follows from the record."""
        self._memory = cpu.settle(self._memory, plan.mode, plan.memory)
        self._settled_ms, self._written, self._samples = now_ms, [], []
        self._contained, self._decrease_failed = [], False

    def left_out(self, plan: cpu.NodePlan, write: cpu.LimitWrite) -> cpu.WriteResult | None:
        """Why a limit is not to be written now; None: write it."""
        return cpu.left_out(
            self._memory,
            plan,
            write,
            decrease_failed=self._decrease_failed,
            actuate=self._config.actuate,
        )

    def applied(self, write: cpu.LimitWrite, limit_millicores: int) -> None:
        written = cpu.WrittenLimit(write.uid, write.container, limit_millicores)
        self._memory = cpu.applied(self._memory, self._settled_ms, written)
        self._written.append(written)

    def not_applied(self, write: cpu.LimitWrite, result: cpu.WriteResult) -> None:
        decrease = write.phase is cpu.WritePhase.DECREASE
        self._decrease_failed |= decrease and result is cpu.WriteResult.FAILED
        self._written.append(cpu.WrittenLimit(write.uid, write.container, None, result))

    def contained(self, limit: cpu.Containment, result: cpu.WriteResult | None = None) -> None:
        """A container is contained, or has its user's own limit again; `result`: it is not."""
        written = cpu.WrittenLimit(
            limit.uid,
            limit.container,
            limit.limit_millicores if result is None else None,
            result or cpu.WriteResult.WRITTEN,
        )
        if result is None:
            self._memory = cpu.contained(self._memory, written)
        self._contained.append(written)

    @property
    def adopted_millicores(self) -> int:
        """Σ of the limits in force that are ours; of the guarantees, where weights are governed."""
        return cpu.limits_millicores(self._memory)

    def export(self) -> GovernorState:
        memory, pods = self._memory, [self.pods[uid] for uid in sorted(self.pods)]
        actuate = self._config.actuate
        return GovernorState(STATE_VERSION, memory.mode, memory.reserved_millicores, pods, actuate)

    @classmethod
    def restore(cls, config: cpu.CpuConfig, stored: Mapping[str, Any], *, now_ms: int) -> Self:
        """A governor that goes on where `export` left off; raises `BadState` on anything else.

        Times after `now_ms` (the clock was set back meanwhile) count as now.
        """
        if stored.get("version") != STATE_VERSION:
            raise BadState(f"the state's version must be {STATE_VERSION}")
        try:
            state = convert(stored, GovernorState)
        except msgspec.ValidationError as error:
            raise BadState(f"the state cannot be read: {error}") from error
        pods = {pod.uid: pod.not_after(now_ms) for pod in state.pods}
        if state.actuate is not config.actuate:
            # Its limits are no guarantees, and the other way round: what it wrote is put back, and
            # every pod is a newcomer.
            pods = {uid: pod.as_found() for uid, pod in pods.items()}
        return cls(config, cpu.CpuMemory(state.mode, state.reserved_millicores, pods))
