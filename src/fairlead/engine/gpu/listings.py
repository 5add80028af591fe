"""Runs and the queue page by page, filtered here: a reader with ten thousand runs gets fifty.

A page goes on below the number of a submission. That number never changes and is never given
again, so a reader that follows the pages sees every run that was there all the time exactly once,
whatever starts, ends or is submitted meanwhile.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from msgspec import Struct

from fairlead.engine.gpu.admission import RunAdmission
from fairlead.engine.gpu.committer import Committer
from fairlead.engine.gpu.entries import ObjectDeleted, object_of
from fairlead.engine.gpu.projection import Projection
from fairlead.engine.gpu.state import Phase, RunState
from fairlead.engine.gpu.status import PHASES, PhaseName, idle_first, run_message, shown_phase
from fairlead.engine.gpu.values import View
from fairlead.ports.ledger import Entry
from fairlead.schema.times import format_time
from fairlead.schema.words import readable


@dataclass(frozen=True, slots=True)
class RunFilter:
    """Which runs are listed; None and empty: all of them."""

    phases: frozenset[str] = frozenset()
    owner: str | None = None
    flavor: str | None = None
    text: str = ""
    """A part of the name or of the owner, in any case of letters."""
    fold_ended: bool = False
    """Count runs that have ended, and leave them out; unless their phase is asked for."""

    def shows(self, phase: str) -> bool:
        if self.phases:
            return phase in self.phases
        return not (self.fold_ended and phase in _ENDED)


class RunRow(View):
    """A run in a list. `reason` and `message` say why it is as it is."""

    name: str
    uid: str
    seq: int
    """The number of its submission; pages are ordered by it."""
    owner: str
    flavor: str
    gpus: int
    width: int
    phase: PhaseName
    paused: bool
    reason: str
    message: str
    since: str
    submitted: str
    position: int | None
    """In the queue."""
    earliest_start: str | None
    """As it was promised to the first runs of the queue."""
    after: str | None
    """The run whose end makes that start possible."""
    assumed: bool
    """Whether that end is only assumed."""
    reservation: str | None
    virtual: bool


class RunPage(View):
    """The newest runs first. `total` match; `phases` counts those that would with any phase."""

    items: list[RunRow]
    total: int
    phases: dict[str, int]
    next: int | None


class QueuePage(View):
    """Waiting runs in the order in which they are considered."""

    items: list[RunRow]
    total: int
    next: int | None


class _Row(Struct, frozen=True, gc=False):
    """What a run is found by; none of it changes."""

    seq: int
    name: str
    owner: str
    flavor: str
    state: RunState
    """Its own: the same object as long as the run is there."""


class _Found(NamedTuple):
    """What a filter finds, the newest first, and how many of each phase without its phases."""

    rows: list[_Row]
    counts: dict[str, int]


ExitReasons = Mapping[str, str | None]
"""Why the commands of runs did not start, by name: a part of the message that only those may read
who act for the owner."""
KEPT_MAX = 16
"""Filters whose findings are kept until the next entry."""
_ENDED = frozenset(phase.value for phase in Phase if phase.ended)


class RunListings:
    """Follows the ledger, so that a page costs a look at each run and rows for those shown."""

    def __init__(self, committer: Committer, admission: RunAdmission) -> None:
        self._committer, self._admission = committer, admission
        self._rows: dict[str, _Row] = {}
        """Every run, in the order of submission."""
        self._kept: tuple[int, dict[RunFilter, _Found]] = (0, {})
        with committer.current() as projection:
            committer.listen(self._note)
            for name, _ in sorted(projection.runs.items(), key=lambda row: row[1].submitted_seq):
                self._add(projection, name)

    def _note(self, entry: Entry) -> None:
        changed = object_of(entry)
        if changed is None or changed.kind != "Run":
            return
        if isinstance(changed, ObjectDeleted):
            self._rows.pop(changed.name, None)
        elif changed.name not in self._rows:
            self._add(self._committer.projection, changed.name)

    def _add(self, projection: Projection, name: str) -> None:
        spec, state = projection.run_spec(name), projection.runs[name]
        self._rows[name] = _Row(state.submitted_seq, name, spec.owner, spec.flavor, state)

    def runs(
        self, wanted: RunFilter, limit: int, below: int | None = None
    ) -> tuple[RunPage, ExitReasons]:
        """The newest runs first; the next page goes on below `next`."""
        with self._committer.current() as projection:
            found = self._found(projection, wanted)
            below_them = (row for row in found.rows if below is None or row.seq < below)
            shown = list(islice(below_them, limit + 1))
            page = RunPage(
                items=[self._shown(projection, row) for row in shown[:limit]],
                total=len(found.rows),
                phases=found.counts,
                next=shown[limit - 1].seq if len(shown) > limit else None,
            )
            return page, _exit_reasons(shown)

    def _found(self, projection: Projection, wanted: RunFilter) -> _Found:
        """Looked at once until the next entry: many readers ask for the same after each event."""
        if self._kept[0] != projection.seq or len(self._kept[1]) >= KEPT_MAX:
            self._kept = (projection.seq, {})
        kept = self._kept[1]
        if wanted not in kept:
            rows = self._matching(wanted)
            timed = {run for run in projection.reserved if projection.waits_for_time(run)}
            phases = [shown_phase(row.state, reserved=row.name in timed) for row in rows]
            shows = {phase for phase in PHASES if wanted.shows(phase)}
            shown = [row for row, phase in zip(rows, phases, strict=True) if phase in shows]
            kept[wanted] = _Found(shown, {phase: phases.count(phase) for phase in PHASES})
        return kept[wanted]

    def _matching(self, wanted: RunFilter) -> list[_Row]:
        """In one pass per filter over ten thousand rows, without a call for each."""
        rows = list(reversed(self._rows.values()))
        if wanted.owner is not None:
            rows = [row for row in rows if row.owner == wanted.owner]
        if wanted.flavor is not None:
            rows = [row for row in rows if row.flavor == wanted.flavor]
        if text := wanted.text.casefold():  # names have small letters only
            rows = [row for row in rows if text in row.name or text in row.owner.casefold()]
        return rows

    def queue(self, limit: int, after: int = 0) -> tuple[QueuePage, ExitReasons]:
        """Waiting runs in the order in which they are considered, behind a position."""
        with self._committer.current() as projection:
            positions = self._admission.positions()
            rows = [self._rows[name] for name in list(positions)[after : after + limit]]
            last, total = after + len(rows), len(positions)
            items = [self._shown(projection, row) for row in rows]
            page = QueuePage(items=items, total=total, next=last if last < total else None)
            return page, _exit_reasons(rows)

    def _shown(self, projection: Projection, row: _Row) -> RunRow:
        state, stored = row.state, projection.objects["Run"][row.name]
        refusal, place = state.refusal, self._admission.place(row.name)
        return RunRow(
            name=row.name,
            uid=stored.uid,
            seq=row.seq,
            owner=row.owner,
            flavor=row.flavor,
            gpus=projection.run_spec(row.name).gpus,
            width=state.width,
            phase=shown_phase(state, reserved=projection.waits_for_time(row.name)),
            paused=state.paused,
            reason=state.reason if refusal is None else refusal.code,
            message=run_message(projection, row.name)
            if refusal is None
            else idle_first(projection, row.name, readable(refusal.message)),
            since=format_time(state.since_ms),
            submitted=format_time(stored.created_ms),
            position=None if place is None else place["position"],
            earliest_start=None if place is None else place.get("earliestStart"),
            after=None if place is None else place.get("after"),
            assumed=bool(place is not None and place.get("assumed")),
            reservation=projection.reserved.get(row.name),
            virtual=projection.is_virtual(state.leases.values()),
        )


def _exit_reasons(rows: Iterable[_Row]) -> ExitReasons:
    return {row.name: row.state.exit_reason for row in rows}
