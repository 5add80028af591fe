"""What happened to one run: its attempts with their devices, and the entries that are about it.

The ledger has no index by run. Entries are indexed here as they are recorded; of those before the
start of this process the ones of a young run are looked up once, and those of an older one only as
far as its starts cite them. `complete` says which it is.
"""

from array import array
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

from fairlead.core.invariant import known
from fairlead.engine.gpu.committer import Committer
from fairlead.engine.gpu.entries import Document, ObjectDeleted, object_of
from fairlead.engine.gpu.events import event_of
from fairlead.engine.gpu.projection import Projection
from fairlead.engine.gpu.state import LeaseFact, RunState, Stored, job_prefix
from fairlead.engine.gpu.utilisation import UseReading, Utilisation
from fairlead.engine.gpu.values import View
from fairlead.ports.ledger import Archived, Entry
from fairlead.schema.times import format_time, hours

ATTEMPTS_MAX = 50
KEPT_MAX = 1_000
"""Entries of one run that are known by number; the oldest are dropped."""
LOOKED_AT_MAX = 3_000
"""Entries before the start of this process that are read for the history of one run."""
_PER_START = 50


class AttemptLease(View):
    """A lease of one start of a run."""

    lease: str
    role: str
    slots: list[str]
    budget: str
    envelope: str
    borrowed: bool
    start: str
    end: str | None
    reason: str | None
    gpu_hours: float


class RunAttempt(View):
    """One start of a run."""

    attempt: int
    start: str
    end: str | None
    leases: list[AttemptLease]


class FoundHistory(NamedTuple):
    """A page of a run's events, the newest first, and its attempts and readings. `decisions` are
    the numbers of events that record a decision; `complete`: no event of the run is left out."""

    attempts: list[RunAttempt]
    events: list[Document]
    decisions: list[int]
    complete: bool
    next: int | None
    use: list[UseReading]


class RunHistory:
    """Attempts, events and readings of a run."""

    def __init__(self, committer: Committer, utilisation: Utilisation) -> None:
        self._committer, self._utilisation = committer, utilisation
        self._seqs: dict[str, array[int]] = {}
        self._complete: dict[str, bool] = {}
        """Runs whose earlier entries were looked up, and whether all of them were."""
        self._after = committer.listen(self._note)
        """Entries behind this one are indexed."""

    def _note(self, entry: Entry) -> None:
        run = _run_of(entry)
        if run is None:
            return
        if entry.kind == ObjectDeleted.ENTRY:
            self._seqs.pop(run, None)
            self._complete.pop(run, None)
            return
        seqs = self._seqs.setdefault(run, array("I"))
        try:
            seqs.append(entry.seq)
        except OverflowError:  # the first 4 000 million take half of the room
            seqs = self._seqs[run] = array("Q", [*seqs, entry.seq])
        if len(seqs) > KEPT_MAX:
            del seqs[: KEPT_MAX // 2]
            self._complete[run] = False

    def of(self, name: str, limit: int, below: int | None = None) -> FoundHistory:
        """The newest events first; the next page goes on below `next`."""
        with self._committer.current() as projection:
            stored = self._committer.stored("Run", name)
            state = projection.runs[name]
            complete = self._look_back(projection, name)
            seqs = [seq for seq in self._seqs.get(name, ()) if below is None or seq < below]
            entries = list(self._entries(seqs[-limit:]))
            use = self._utilisation.of(state)
            return FoundHistory(
                attempts=_attempts(projection, stored, self._committer.now()),
                events=[event_of(projection, entry) for entry in reversed(entries)],
                decisions=[row.seq for row in entries if row.input_digest is not None],
                complete=complete,
                next=seqs[-limit] if len(seqs) > limit else None,
                use=[] if use is None else list(use.recent),
            )

    def _entries(self, seqs: Sequence[int]) -> Iterator[Entry]:
        for seq in seqs:
            with suppress(Archived):
                yield known(self._committer.ledger.entry(seq), "an indexed entry was recorded")

    def _look_back(self, projection: Projection, name: str) -> bool:
        """Index what was recorded before this process; once for each run."""
        state = projection.runs[name]
        if state.submitted_seq > self._after:
            return self._complete.setdefault(name, True)
        if name not in self._complete:
            young = self._after - state.submitted_seq < LOOKED_AT_MAX
            with suppress(Archived):
                found = self._life(name, state) if young else self._cited(projection, name, state)
                later = [seq for seq in self._seqs.get(name, ()) if seq > self._after]
                self._seqs[name] = array("Q", [*sorted(found), *later])
            self._complete[name] = young and state.submitted_seq > self._archived_to()
        return self._complete[name]

    def _archived_to(self) -> int:
        return self._committer.ledger.archived_to()

    def _life(self, name: str, state: RunState) -> set[int]:
        first = max(state.submitted_seq - 1, self._archived_to())
        entries = self._committer.ledger.entries(first, max(1, self._after - first))
        return {row.seq for row in entries if row.seq <= self._after and _run_of(row) == name}

    def _cited(self, projection: Projection, name: str, state: RunState) -> set[int]:
        """The submission, what its state names, and every entry of its last starts."""
        ledger, archived = self._committer.ledger, self._archived_to()
        cited = {state.submitted_seq, state.cover_seq, state.place_seq, state.stop_seq}
        cited |= {state.pause_seq, state.width_seq, *(row.seq for row in state.warned.values())}
        prefix = job_prefix(name, projection.objects["Run"][name].uid)
        for attempt in range(max(1, state.attempt - ATTEMPTS_MAX + 1), state.attempt + 1):
            entries = ledger.entries(archived, _PER_START, plan_id=f"{prefix}{attempt}")
            cited |= {row.seq for row in entries}
        return {seq for seq in cited if seq is not None and archived < seq <= self._after}


def _run_of(entry: Entry) -> str | None:
    """The run that an entry is about."""
    changed = object_of(entry)
    if changed is not None:
        return changed.name if changed.kind == "Run" else None
    run = entry.body.get("run")
    return run if isinstance(run, str) else None


def _attempts(projection: Projection, run: Stored, now_ms: int) -> list[RunAttempt]:
    """Starts of the run with their leases, the newest first, as far as its leases are kept."""
    name, prefix = run.name, job_prefix(run.name, run.uid)
    by_attempt: dict[int, list[LeaseFact]] = {}
    for lease in (*projection.closed, *projection.leases.values()):
        if lease.run == name and lease.id.startswith(prefix):
            number = int(lease.id.removeprefix(prefix).partition(".")[0])
            by_attempt.setdefault(number, []).append(lease)
    newest = sorted(by_attempt, reverse=True)[:ATTEMPTS_MAX]
    return [_attempt(number, by_attempt[number], now_ms) for number in newest]


def _attempt(number: int, leases: list[LeaseFact], now_ms: int) -> RunAttempt:
    ends = [lease.end_ms for lease in leases if lease.end_ms is not None]
    over = len(ends) == len(leases)
    start, end = min(lease.start_ms for lease in leases), format_time(max(ends)) if over else None
    return RunAttempt(number, format_time(start), end, [_lease(lease, now_ms) for lease in leases])


def _lease(lease: LeaseFact, now_ms: int) -> AttemptLease:
    until_ms = now_ms if lease.end_ms is None else lease.end_ms
    return AttemptLease(
        lease=lease.id,
        role=lease.role,
        slots=list(lease.slots),
        budget=lease.budget,
        envelope=lease.envelope,
        borrowed=lease.borrowed,
        start=format_time(lease.start_ms),
        end=None if lease.end_ms is None else format_time(lease.end_ms),
        reason=lease.end_reason,
        gpu_hours=hours(lease.gpus * max(0, until_ms - lease.start_ms)),
    )
