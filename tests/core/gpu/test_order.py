"""Which reservations are activated, which shrunk runs grow and which runs take, in which order."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.gpu import (
    ActivateRequest,
    FlavorHold,
    LastOutcome,
    RankedRun,
    RankRequest,
    ReservedStart,
    ShrunkRun,
    ShrunkRuns,
    WaitingReservation,
    activate,
    grow,
    rank,
)
from fairlead.core.reasons import QueueHold, RankCause
from fairlead.schema.border import BadInput
from fairlead.schema.gpu import STYLE
from fairlead.schema.kinds import KINDS
from tests.core.gpu.test_deficit import shuffled

NOW_MS = 10**12
names = st.text("abc", min_size=1, max_size=3)
lasts = st.none() | st.builds(
    LastOutcome, st.integers(1, 99), st.booleans(), st.booleans(), st.booleans()
)
reservations = st.lists(
    st.builds(WaitingReservation, names, names, st.integers(NOW_MS - 3, NOW_MS + 3), lasts),
    unique_by=lambda row: row.name,
).map(tuple)
shrunk = st.lists(
    st.builds(
        ShrunkRun,
        names,
        st.sampled_from(["H100", "A100"]),
        st.integers(0, 8),
        st.integers(1, 64),
        st.booleans(),
    ),
    unique_by=lambda run: run.id,
).map(tuple)

ranked = st.lists(
    st.builds(
        RankedRun,
        names,
        st.sampled_from(["H100", "A100"]),
        st.integers(1, 9),
        reservation=st.none()
        | st.builds(ReservedStart, names, st.integers(NOW_MS - 2, NOW_MS + 2)),
    ),
    unique_by=lambda run: run.id,
).map(tuple)


def same_in_any_order(kind: str, asked: Any, chance: Any) -> None:
    document = STYLE.from_core(asked)
    first = KINDS[kind].run(json.dumps(document).encode()).result
    assert first == KINDS[kind].run(json.dumps(shuffled(document, chance)).encode()).result


@given(reservations, st.randoms())
def test_due_reservations_are_ordered_by_time_and_name(
    rows: tuple[WaitingReservation, ...], chance: Any
) -> None:
    """Each is activated or later; shuffled lists give the same bytes."""
    asked = ActivateRequest(NOW_MS, rows)
    found, by_name = activate(asked), {row.name: row for row in rows}
    due = [by_name[row.reservation] for row in found.order]
    assert due == sorted(due, key=lambda row: (row.start_ms, row.name))
    assert [row.position for row in found.order] == list(range(1, len(due) + 1))
    assert all(row.start_ms <= NOW_MS for row in due)
    assert all(row.until_ms > NOW_MS for row in found.held)
    assert {row.name for row in due} | {row.reservation for row in found.held} == by_name.keys()
    same_in_any_order("gpu.activate", asked, chance)


@pytest.mark.parametrize(
    ("last", "preempts", "reason"),
    [
        (None, True, "Due"),
        (LastOutcome(7, applied=True, changed=True), False, "PreemptedOnce"),
        (LastOutcome(7, applied=False, by_operator=True, changed=True), False, "OutcomeVoided"),
        (LastOutcome(7, applied=False, changed=False), False, "OutcomeVoided"),
        (LastOutcome(7, applied=False, changed=True), True, "Due"),
    ],
)
def test_how_the_last_outcome_ended_decides_whether_others_are_preempted(
    last: LastOutcome | None, preempts: bool, reason: str
) -> None:
    asked = ActivateRequest(NOW_MS, (WaitingReservation("r", "run", NOW_MS, last),))
    (row,) = activate(asked).order
    assert (row.preempts, row.reason.value) == (preempts, reason)


@given(shrunk, st.none() | st.integers(NOW_MS - 2, NOW_MS + 2), st.randoms())
def test_shrunk_runs_are_ordered_by_name_unless_held(
    runs: tuple[ShrunkRun, ...], until_ms: int | None, chance: Any
) -> None:
    asked = ShrunkRuns(NOW_MS, runs, (FlavorHold("H100", 7, until_ms),))
    found, kept = grow(asked), until_ms is None or until_ms > NOW_MS
    may = [run.id for run in runs if run.settled and not (kept and run.flavor == "H100")]
    assert [row.run for row in found.order] == sorted(may)
    assert [row.run for row in found.held] == sorted({run.id for run in runs} - set(may))
    same_in_any_order("gpu.grow", asked, chance)


def test_repeated_names_are_refused() -> None:
    row = WaitingReservation("r", "run", NOW_MS)
    document = STYLE.from_core(ActivateRequest(NOW_MS, (row, row)))
    with pytest.raises(BadInput, match=r"reservations\[1\]\.name: repeats"):
        KINDS["gpu.activate"].run(json.dumps(document).encode())


@given(ranked, st.sampled_from(RankCause), st.randoms())
def test_waiting_runs_are_ranked_by_submission_unless_held(
    runs: tuple[RankedRun, ...], cause: RankCause, chance: Any
) -> None:
    """A run whose reservation is due recalls, and is asked for nothing else here."""
    asked = RankRequest(NOW_MS, cause, runs, (FlavorHold("H100", 7),))
    found, by_id = rank(asked), {run.id: run for run in runs}
    held = {row.run: row.reason for row in found.held}
    order = [by_id[row.run] for row in found.order]
    assert order == sorted(order, key=lambda run: (run.submitted, run.id))
    assert [row.position for row in found.order] == list(range(1, len(order) + 1))
    for run in runs:
        start = run.reservation
        later = start is not None and start.start_ms > NOW_MS
        elsewhere = start is not None and cause is not RankCause.RECALL
        kept = run.flavor == "H100"
        expected = (
            QueueHold.RESERVATION_NOT_DUE
            if later
            else QueueHold.RESERVATION_DUE
            if elsewhere
            else QueueHold.RESOLVE_OPEN
            if kept
            else None
        )
        assert held.get(run.id) is expected
    assert list(held) == sorted(held)
    same_in_any_order("gpu.rank", asked, chance)
