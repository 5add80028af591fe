"""How busy the devices of runs are, read every ten seconds; and devices that are not clean.

gpu.quarantine    devices that hold memory without a lease, and those that no longer do
gpu.used          sums of the readings, every quarter of an hour, for reports

Single readings are not recorded. How long a run is idle is decided by `core.gpu.idle`, and recorded
by `limits.py`. After a restart of the control plane sums that were not recorded are lost: what was
not read is not known, and a report says how much was.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from fairlead.core import gpu
from fairlead.core.gpu.usage import DAY_MS
from fairlead.engine.gpu.committer import Committer
from fairlead.engine.gpu.entries import Document, NewEntry, QuarantineDecision, RunsUsed, UseRow
from fairlead.engine.gpu.state import RunState
from fairlead.engine.gpu.values import View
from fairlead.ports.meter import DeviceMeter, DeviceReading
from fairlead.schema.gpu import STYLE
from fairlead.schema.times import format_time

EVERY_MS = 10_000
SUMS_EVERY_MS = 900_000
IDLE = gpu.IdlePolicy()
READING_MS_MAX = IDLE.gap_ms
"""A reading stands for the time since the one before, and for no more than this."""
RECENT_MAX = 360
"""Readings of a run that are kept to be shown: an hour."""
UseKey = tuple[int, str, str, str, str, str, bool]
"""(UTC day, owner, run, payer, budget, envelope, borrowed)."""


class UseReading(View):
    """How busy the devices of a run were. `minutes` None: one reading; else the mean of so many."""

    time: str
    percent: float
    memory_bytes: int | None
    minutes: int | None


@dataclass(slots=True)
class RunUse:
    """What the devices of one start of a run did, as far as it was read."""

    percent: int = 0
    memory_bytes: int = 0
    idle: gpu.IdleRun | None = None
    idle_since_ms: int | None = None
    samples: int = 0
    percent_sum: int = 0
    recent: deque[UseReading] = field(default_factory=lambda: deque(maxlen=RECENT_MAX))
    """The last readings, for people; none is recorded."""

    @property
    def mean_percent(self) -> int:
        return self.percent_sum // self.samples if self.samples else 0


def use_document(use: RunUse | None) -> Document | None:
    """As users see it; None: nothing is known."""
    if use is None:
        return None
    return {
        "utilisationPercent": use.percent,
        "meanUtilisationPercent": use.mean_percent,
        "memoryBytes": use.memory_bytes,
        "idleSince": None if use.idle_since_ms is None else format_time(use.idle_since_ms),
    }


class Utilisation:
    """Reads and keeps; `uses` is by the job of a run."""

    def __init__(self, committer: Committer, meter: DeviceMeter | None) -> None:
        self._committer, self._meter = committer, meter
        self._projection = committer.projection
        self._read_ms = -EVERY_MS
        self._last: str | None = None
        """The lease that ended last."""
        self.uses: dict[str, RunUse] = {}
        self._sums: dict[UseKey, list[int]] = {}
        """GPU-milliseconds that were read, times the percent of use; and idle; not recorded."""
        self._recorded_ms: int | None = None

    def sample(self, now_ms: int) -> None:
        """Every ten seconds; at once when a lease has ended, before its devices are leased again;
        and every turn while one is quarantined."""
        if self._meter is None:
            return
        closed = self._projection.closed
        last = closed[-1].id if closed else None
        ended = last != self._last or bool(self._projection.quarantined)
        self._last = last
        if not ended and 0 <= now_ms - self._read_ms < EVERY_MS:
            return
        before_ms, self._read_ms, readings = self._read_ms, now_ms, self._meter.read()
        self._note(now_ms, readings)
        self._add_up(max(before_ms, now_ms - READING_MS_MAX), now_ms, readings)
        self._record_sums(now_ms)
        devices = [(slot, reading.memory_bytes) for slot, reading in sorted(readings.items())]
        self._committer.commit(lambda: self._decide(now_ms, devices))

    def of(self, state: RunState) -> RunUse | None:
        return None if state.job is None else self.uses.get(state.job)

    def idle(self, run: str, state: RunState) -> gpu.IdleRun:
        """What was read of a run since its streak was last recorded."""
        use, job = self.of(state), state.job or ""
        before = None if state.idle_ms is None else gpu.IdleStreak(*state.idle_ms)
        if use is None or use.idle is None or use.idle.before != before:
            return gpu.IdleRun(run, job, before)
        return use.idle

    def _note(self, now_ms: int, readings: Mapping[str, DeviceReading]) -> None:
        before, self.uses = self.uses, {}
        for run, state in self._projection.running.items():
            slots = [slot for lease in state.leases.values() for slot in lease.slots]
            found = [readings[slot] for slot in slots if slot in readings]
            if state.job is None or not found:
                continue
            use = self.uses[state.job] = before.get(state.job) or RunUse()
            busy = state.paused or any(reading.utilisation_percent for reading in found)
            use.idle = self.idle(run, state).read(now_ms, IDLE, busy=busy)
            streak = use.idle.streak(IDLE)
            use.idle_since_ms = None if streak is None else streak.since_ms
            use.percent = sum(reading.utilisation_percent for reading in found) // len(found)
            use.memory_bytes = sum(reading.memory_bytes for reading in found)
            use.samples, use.percent_sum = use.samples + 1, use.percent_sum + use.percent
            use.recent.append(UseReading(format_time(now_ms), use.percent, use.memory_bytes, None))

    def _add_up(self, since_ms: int, now_ms: int, readings: Mapping[str, DeviceReading]) -> None:
        for lease in self._projection.leases.values():
            span_ms = now_ms - max(since_ms, lease.start_ms)
            found = [readings[slot] for slot in lease.slots if slot in readings]
            if span_ms <= 0 or not found:
                continue
            paid = (lease.payer, lease.budget, lease.envelope, lease.borrowed)
            key = (now_ms // DAY_MS, lease.owner, lease.run, *paid)
            sums = self._sums.setdefault(key, [0, 0, 0])
            for reading in found:
                sums[0] += span_ms
                sums[1] += span_ms * reading.utilisation_percent
                sums[2] += 0 if reading.utilisation_percent else span_ms

    def _record_sums(self, now_ms: int) -> None:
        """Every quarter of an hour, one entry for all runs; none where nothing was read."""
        if self._recorded_ms is None:
            self._recorded_ms = now_ms
        if now_ms - self._recorded_ms < SUMS_EVERY_MS or not self._sums:
            return
        rows = tuple(self.rows())
        self._committer.commit(lambda: [NewEntry(RunsUsed(rows), now_ms)])
        self._recorded_ms, self._sums = now_ms, {}

    def rows(self) -> list[UseRow]:
        """What is not recorded yet."""
        return [
            UseRow(*key, read_ms, busy // 100, idle_ms)
            for key, (read_ms, busy, idle_ms) in sorted(self._sums.items())
        ]

    def _decide(self, now_ms: int, devices: Iterable[tuple[str, int]]) -> Sequence[NewEntry]:
        projection = self._projection
        leased = {slot for lease in projection.leases.values() for slot in lease.slots}
        asked = gpu.QuarantineRequest(
            tuple(
                gpu.DeviceMemory(slot, memory, slot in leased, slot in projection.quarantined)
                for slot, memory in devices
            )
        )
        found = gpu.quarantine(asked)
        if not found.quarantined and not found.cleared:
            return []
        body = QuarantineDecision(STYLE.from_core(found))
        return [NewEntry(body, now_ms, input=STYLE.from_core(asked))]
