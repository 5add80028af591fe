"""The GPU governor at a glance: devices, queue, and what needs an operator's attention now.

One look at every run that has not ended, and none at history: a page asks for this every few
seconds.
"""

from collections.abc import Iterator
from heapq import nsmallest
from typing import Literal, get_args
from urllib.parse import quote

from msgspec import field
from msgspec.structs import replace

from fairlead.core.invariant import known
from fairlead.core.units import counted
from fairlead.engine.gpu.committer import Committer
from fairlead.engine.gpu.projection import Projection, node_spec, reservation_spec, starts_ms
from fairlead.engine.gpu.state import OutcomeStage, Phase, RunState
from fairlead.engine.gpu.status import waits_for_idle
from fairlead.engine.gpu.values import View
from fairlead.schema.objects import foreign_of
from fairlead.schema.times import format_time
from fairlead.schema.words import readable

LINES_MAX = 4
"""Of one kind; the next line says how many more there are."""
LATE_MS = 10_000
"""A reservation that is this much past its start without an answer is late."""


Severity = Literal["bad", "warn", "note"]
"""The worst first."""


class DeviceSums(View):
    """GPU devices. `held` are spares; `unavailable` are cordoned, quarantined or used by others."""

    total: int
    used: int
    held: int
    free: int
    unavailable: int


class QueueSums(View, rename="camel"):
    """Runs that wait. `later` wait for a time or for other runs, and not for devices."""

    running: int
    waiting: int
    waiting_gpus: int = field(name="waitingGPUs")
    not_funded: int
    later: int
    oldest_wait_ms: int | None


class ReservationSums(View):
    """Reservations whose run has not started, and when the next one is due."""

    waiting: int
    next: str | None


class AttentionLine(View):
    """One thing that needs attention, and the view that shows it."""

    kind: str
    severity: Severity
    text: str
    path: str
    since: str | None


class GpuCounts(View, rename="camel"):
    """What the governor knows without a look at charges."""

    devices: DeviceSums
    queue: QueueSums
    reservations: ReservationSums
    open_outcomes: int


class GpuOverview:
    """Sums and warnings over all GPU objects."""

    def __init__(self, committer: Committer) -> None:
        self._committer = committer

    def counts(self) -> GpuCounts:
        """Devices, queue and reservations in numbers."""
        with self._committer.current() as projection:
            queue, since_ms = projection.kept("overview.queue", lambda: _queue(projection))
            waited_ms = None if since_ms is None else max(0, self._committer.now() - since_ms)
            return GpuCounts(
                projection.kept("overview.devices", lambda: _devices(projection)),
                replace(queue, oldest_wait_ms=waited_ms),
                _reservations(projection),
                len(projection.resolver.open_seqs),
            )

    def attention(self) -> list[AttentionLine]:
        """What needs attention, by kind; the first few of each kind by name."""
        with self._committer.current() as projection:
            now_ms = self._committer.now()
            return [
                *short(_outcomes(projection), "open outcomes", "/preemption"),
                *short(_at_risk(projection, now_ms), "reservations at risk", "/gpu#reservations"),
                *projection.kept("overview.refused", lambda: _not_funded(projection)),
                *short(_caps(projection), "conditions of budgets", "/gpu#budgets"),
                *short(_quarantined(projection), "quarantined devices", "/gpu"),
                *short(_cordoned(projection), "cordoned nodes", "/gpu"),
            ]


def line(
    kind: str, severity: Severity, text: str, path: str, since_ms: int | None = None
) -> AttentionLine:
    since = None if since_ms is None else format_time(since_ms)
    return AttentionLine(kind, severity, text, path, since)


def short(
    lines: list[AttentionLine], many: str, path: str, more: int = 0
) -> Iterator[AttentionLine]:
    """The worst and oldest first; what is left out is counted, with `more` that are not there."""
    ranks = get_args(Severity)
    ordered = sorted(lines, key=lambda row: (ranks.index(row.severity), row.since or ""))
    yield from ordered[:LINES_MAX]
    left = more + max(0, len(ordered) - LINES_MAX)
    if left:
        last = ordered[min(LINES_MAX, len(ordered) - 1)]
        yield line(last.kind, last.severity, f"{left} more {many}", path)


# --- numbers


def _devices(projection: Projection) -> DeviceSums:
    total = out = taken = spares = 0
    withheld = projection.withheld
    for stored in projection.of_kind("Node"):
        spec, used = node_spec(stored), projection.taken.get(stored.name, {})
        bad = sum(f"{stored.name}#{at}" in withheld for at in range(spec.devices) if at not in used)
        unused = max(0, spec.devices - len(used))
        total += spec.devices
        taken += len(used)
        out += unused if spec.cordoned else min(unused, bad + foreign_of(spec))
    for lease in projection.leases.values():
        spares += 0 if lease.is_active else lease.gpus
    free = max(0, total - taken - out)
    return DeviceSums(total=total, used=taken - spares, held=spares, free=free, unavailable=out)


def _waits(run: RunState) -> bool:
    return run.phase is Phase.PENDING and not run.stopping


def _queue(projection: Projection) -> tuple[QueueSums, int | None]:
    """And when the run that waits longest was submitted, or last preempted."""
    since_ms: int | None = None
    waiting = gpus = refused = later = 0
    reserved, following = projection.reserved, projection.following
    for name, run in projection.live.items():
        if not _waits(run):
            continue
        if (name in reserved and projection.waits_for_time(name)) or (
            name in following and projection.waits_for_runs(name)
        ):
            later += 1
            continue
        waiting += 1
        gpus += projection.run_spec(name).gpus
        refused += run.refusal is not None and not waits_for_idle(projection, name)
        waits_ms = max(projection.objects["Run"][name].created_ms, run.preempted_ms or 0)
        since_ms = waits_ms if since_ms is None else min(since_ms, waits_ms)
    return QueueSums(len(projection.running), waiting, gpus, refused, later, None), since_ms


def _reservations(projection: Projection) -> ReservationSums:
    waiting = [
        starts_ms(stored)
        for stored in projection.of_kind("Reservation")
        if projection.resolver.reservations[stored.name].waits
    ]
    return ReservationSums(len(waiting), format_time(min(waiting)) if waiting else None)


# --- attention


def _outcomes(projection: Projection) -> list[AttentionLine]:
    made = []
    for seq in sorted(projection.resolver.open_seqs.values()):
        outcome = projection.resolver.outcomes[seq]
        stage = "preempted runs are ending"
        if outcome.stage is OutcomeStage.COMMITTED:
            stage = "waits for its lottery" if outcome.beacon is None else "waits for its beacon"
        missing = counted(outcome.deficit_gpus, f"{outcome.flavor} device")
        text = f"Outcome {seq} is open: {missing} missing, {stage}"
        made.append(line("outcome", "warn", text, f"/preemption/{seq}", outcome.time_ms))
    return made


def _at_risk(projection: Projection, now_ms: int) -> list[AttentionLine]:
    made = []
    for stored in projection.of_kind("Reservation"):
        found, run = projection.resolver.reservations[stored.name], reservation_spec(stored).run
        if not found.waits:
            continue
        state = projection.runs.get(run)
        severity: Severity = "bad"
        why = ""
        if found.state == "Blocked":
            why = f"is blocked: {found.message or found.reason}"
        elif state is not None and state.refusal is not None:
            severity, why = "warn", f"is not funded yet: {readable(state.refusal.message)}"
        elif starts_ms(stored) + LATE_MS < now_ms:
            severity, why = "warn", f"is late: it was due at {format_time(starts_ms(stored))}"
        if why:
            text = f"Reservation {stored.name} {why}"
            made.append(line("reservation", severity, text, _run_path(run), found.since_ms))
    return made


def _not_funded(projection: Projection) -> list[AttentionLine]:
    """The oldest by name; of thousands the others are counted."""
    refused = [
        (run.since_ms, name)
        for name, run in projection.live.items()
        if run.refusal is not None and _waits(run) and not waits_for_idle(projection, name)
    ]
    lines = []
    for since_ms, name in nsmallest(LINES_MAX, refused):
        refusal = known(projection.live[name].refusal, "it was refused")
        text = f"Run {name} is not funded: {readable(refusal.message)}"
        lines.append(line("run", "warn", text, _run_path(name), since_ms))
    more = len(refused) - len(lines)
    return list(short(lines, "runs that are not funded", "/gpu?phase=Pending", more))


_CAPS: dict[str, tuple[Severity, str]] = {
    "Exhausted": ("bad", "has used up its hours"),
    "Overcommitted": ("bad", "is over its limit"),
    "NearLimit": ("warn", "is near its limit"),
}


def _caps(projection: Projection) -> list[AttentionLine]:
    made = []
    for (budget, kind), condition in sorted(projection.conditions.items()):
        if condition.status and kind in _CAPS:
            severity, words = _CAPS[kind]
            text = f"Budget {budget} {words}: {condition.message or condition.reason}"
            made.append(line("budget", severity, text, "/gpu#budgets", condition.since_ms))
    return made


def _quarantined(projection: Projection) -> list[AttentionLine]:
    made = [
        line("device", "bad", f"Device {slot} is quarantined: no run holds its memory", "/gpu")
        for slot in sorted(projection.quarantined)
    ]
    for _, job in sorted(projection.unknown_jobs.items()):
        text = f"A process of {job.run} that the ledger did not start is asked to end"
        made.append(line("device", "bad", text, "/gpu"))
    return made


def _cordoned(projection: Projection) -> list[AttentionLine]:
    made = []
    for stored in projection.of_kind("Node"):
        spec = node_spec(stored)
        if spec.cordoned and spec.devices:
            left = counted(len(projection.runs_on(stored.name)), "run")
            text = f"Node {stored.name} is cordoned: {left} on {spec.devices} devices"
            made.append(line("node", "note", text, "/gpu"))
    return made


def _run_path(name: str) -> str:
    return f"/runs/{quote(name, safe='')}"
