"""The queue: first come, first served; by tier and age; and who is held back."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.gpu import (
    FlavorHold,
    OwnerUse,
    Queue,
    QueuePolicy,
    ReservedStart,
    Waiting,
    WaitingRun,
    order_stands,
    queue,
)
from fairlead.core.gpu.order import ShrunkRun, ShrunkRuns, grow
from fairlead.core.reasons import QueueReason
from fairlead.core.units import HOUR_MS
from fairlead.schema.border import BadInput
from fairlead.schema.gpu import STYLE
from fairlead.schema.kinds import KINDS
from tests.core.gpu.test_deficit import shuffled


@pytest.mark.parametrize(
    ("runs", "age_ms", "stands"),
    [
        (1_000, 0, False),
        (1_001, 0, True),
        (1_001, 1, False),
        (6_000, 999, True),
        (6_000, 1_000, False),
        (6_000, -1, False),
        (11_000, 1_999, True),
        (11_000, 2_000, False),
    ],
)
def test_an_order_of_thousands_stands_for_a_while(runs: int, age_ms: int, stands: bool) -> None:
    """A fifth of a second for each thousand above the first: clocks that went back end it."""
    assert order_stands(runs=runs, age_ms=age_ms) is stands


runs = st.lists(
    st.builds(
        WaitingRun,
        st.text("abc", min_size=1, max_size=3),
        st.sampled_from(["x", "y"]),
        st.sampled_from(["H100", "A100"]),
        st.integers(1, 64),
        st.integers(0, 20),
        st.integers(0, 10**12),
        reservation=st.none()
        | st.builds(ReservedStart, st.just("res"), st.integers(0, 2 * 10**12)),
        owner_priority=st.integers(-9, 9),
    ),
    unique_by=lambda run: run.id,
).map(tuple)
holds = st.lists(
    st.builds(
        FlavorHold,
        st.sampled_from(["H100", "A100"]),
        st.integers(1, 99),
        st.none() | st.integers(0, 2 * 10**12),
    ),
    unique_by=lambda hold: hold.flavor,
).map(tuple)
NOW_MS = 10**12


@given(runs, holds, st.randoms())
def test_every_run_is_queued_or_held_in_any_order_of_the_input(
    runs: tuple[WaitingRun, ...], holds: tuple[FlavorHold, ...], chance: Any
) -> None:
    """Positions from 1 by submission and id; the rest held with a reason; lists shuffled: same."""
    waiting = Waiting(NOW_MS, runs, holds)
    found = queue(waiting)
    assert {row.run for row in (*found.order, *found.held)} == {run.id for run in runs}
    assert len(found.order) + len(found.held) == len(runs)
    assert [row.position for row in found.order] == list(range(1, len(found.order) + 1))
    by_id = {run.id: run for run in runs}
    keys = [(by_id[row.run].submitted, row.run) for row in found.order]
    assert keys == sorted(keys)
    assert all(by_id[row.run].reservation is None for row in found.order)
    document = STYLE.from_core(waiting)
    kind = KINDS["gpu.queue"]
    first = kind.run(json.dumps(document).encode()).result
    assert first == kind.run(json.dumps(shuffled(document, chance)).encode()).result


@pytest.mark.parametrize(
    ("until_ms", "held"), [(None, True), (NOW_MS + 1, True), (NOW_MS, False), (NOW_MS - 1, False)]
)
def test_a_hold_ends_at_its_time(until_ms: int | None, held: bool) -> None:
    """The queue and the engine, which holds runs that grow or are reserved, ask the same rule."""
    hold = FlavorHold("H100", 7, until_ms)
    run = WaitingRun("a", "x", "H100", 1, 1, 0)
    assert hold.applies(NOW_MS, "a", {}) == held
    assert bool(queue(Waiting(NOW_MS, (run,), (hold,))).held) == held


def test_repeated_ids_are_refused() -> None:
    """A run waits once; a flavor is held once."""
    run = {
        "id": "a",
        "owner": "x",
        "flavor": "H100",
        "gpus": 1,
        "submitted": 1,
        "waiting_since": "2026-01-01T00:00:00Z",
    }
    hold = {"flavor": "H100", "outcome": 1}
    for runs, holds, message in (
        ([run, run], [], "runs[1].id: repeats another run's id, 'a'"),
        ([], [hold, hold], "holds[1].flavor: repeats another hold's flavor, 'H100'"),
        ([{**run, "waiting_since": "noon"}], [], "runs[0].waiting_since: must be a time like"),
    ):
        document = {"now": "2026-01-01T00:00:00Z", "runs": runs, "holds": holds}
        with pytest.raises(BadInput) as refused:
            KINDS["gpu.queue"].run(json.dumps(document).encode())
        assert str(refused.value).startswith(message)


# -- version 2 -------------------------------------------------------------------------------------

MINUTE = 60_000
ranked = st.lists(
    st.builds(
        WaitingRun,
        st.text("abc", min_size=1, max_size=3),
        st.sampled_from(["x", "y", "z"]),
        st.sampled_from(["H100", "A100"]),
        st.integers(1, 64),
        st.integers(0, 20),
        st.just(NOW_MS),
        owner_priority=st.integers(-2, 2),
        submitted_ms=st.integers(0, 200).map(lambda minute: NOW_MS + minute * MINUTE),
    ),
    unique_by=lambda run: run.id,
).map(tuple)
owners = st.lists(
    st.builds(
        OwnerUse,
        st.sampled_from(["x", "y"]),
        st.sampled_from(["H100", "A100"]),
        st.integers(0, 64),
        st.integers(0, 64),
    ),
    unique_by=lambda row: (row.owner, row.flavor),
).map(tuple)
POLICY = QueuePolicy(tier_age_ms=10 * MINUTE, tiers_max=3)


@given(ranked, owners, st.randoms())
def test_a_priority_moves_no_run_of_another_owner(
    runs: tuple[WaitingRun, ...], owners: tuple[OwnerUse, ...], chance: Any
) -> None:
    """The owners' sequence is the same whatever their priorities are; inside, these decide."""
    waiting = Waiting(NOW_MS, runs, (), POLICY, owners)
    by_id = {run.id: run for run in runs}

    def sequence(found: Queue) -> list[tuple[str, str]]:
        return [(by_id[row.run].owner, by_id[row.run].flavor) for row in found.order]

    plain = tuple(replace(run, owner_priority=0) for run in runs)
    found = queue(waiting)
    assert sequence(found) == sequence(queue(replace(waiting, runs=plain)))
    for key in set(sequence(found)):
        mine = [by_id[row.run] for row in found.order]
        mine = [run for run in mine if (run.owner, run.flavor) == key]
        keys = [(-run.owner_priority, *run.age_key) for run in mine]
        assert keys == sorted(keys)
    document = STYLE.from_core(waiting)
    shown = KINDS["gpu.queue"].run(json.dumps(shuffled(document, chance)).encode()).result
    assert shown == STYLE.from_core(found)


@given(ranked, owners)
def test_no_run_is_overtaken_by_one_that_came_much_later(
    runs: tuple[WaitingRun, ...], owners: tuple[OwnerUse, ...]
) -> None:
    """Aging: what came `tiers_max * tier_age` later stays behind, so every run is first at last."""
    plain = tuple(replace(run, owner_priority=0) for run in runs)
    found = queue(Waiting(NOW_MS, plain, (), POLICY, owners))
    place = {row.run: row.position for row in found.order}
    for older in plain:
        for younger in plain:
            later_ms = younger.age_key[0] - older.age_key[0]
            if later_ms > POLICY.tiers_max * POLICY.tier_age_ms:
                assert place[older.id] < place[younger.id]


def test_tiers_count_how_often_an_owner_is_over_its_grant() -> None:
    """In use, and asked for before; the first run over is one `tier_age` back."""
    runs = tuple(
        WaitingRun(name, owner, "H100", 4, number, NOW_MS, submitted_ms=NOW_MS + number * MINUTE)
        for number, (name, owner) in enumerate(
            [("a1", "a"), ("a2", "a"), ("a3", "a"), ("b1", "b"), ("n1", "none")]
        )
    )
    use = (OwnerUse("a", "H100", 4, 0), OwnerUse("b", "H100", 4, 3))
    found = queue(Waiting(NOW_MS, runs, (), POLICY, use))
    assert [(row.run, row.tier, row.reason.value) for row in found.order] == [
        ("a1", 0, "submitted"),
        ("b1", 0, "submitted"),
        ("a2", 1, "tier"),
        ("n1", 1, "tier"),
        ("a3", 2, "tier"),
    ]


def test_a_document_of_version_1_keeps_its_bytes() -> None:
    """No tiers, by submission, whatever the priorities say."""
    runs = [
        {
            "id": name,
            "owner": "x",
            "flavor": "H100",
            "gpus": 1,
            "submitted": number,
            "waiting_since": "2026-01-01T00:00:00Z",
            "owner_priority": priority,
        }
        for name, number, priority in (("b", 1, 0), ("a", 2, 9))
    ]
    document = {"now": "2026-01-01T00:00:00Z", "runs": runs, "holds": []}
    assert json.dumps(KINDS["gpu.queue"].run(json.dumps(document).encode()).result) == (
        '{"order": [{"run": "b", "position": 1, "reason": "submitted"}, '
        '{"run": "a", "position": 2, "reason": "submitted"}], "held": []}'
    )


def test_an_owner_is_listed_once_per_flavor() -> None:
    row = {"owner": "x", "flavor": "H100", "granted_gpus": 1, "used_gpus": 0}
    document = {"now": "2026-01-01T00:00:00Z", "runs": [], "holds": [], "owners": [row, row]}
    with pytest.raises(BadInput, match="owners: names an owner and flavor twice"):
        KINDS["gpu.queue"].run(json.dumps(document).encode())


@pytest.mark.parametrize(
    ("location", "held", "could_be_inside"),
    [
        ({}, False, True),
        ({"region": "west"}, True, True),
        ({"region": "west", "rack": "1"}, True, True),
        ({"region": "east"}, False, False),
        ({"rack": "1"}, False, True),
        ({"region": "*"}, False, False),
    ],
)
def test_a_hold_is_for_runs_that_need_its_scope(
    location: dict[str, str], held: bool, could_be_inside: bool
) -> None:
    """A run that names no location, or another one, starts where the outcome frees nothing. Its
    winner waits for it. Before version 3 a run was held that could start inside, too."""
    hold = FlavorHold("H100", 7, None, {"region": "west"}, scoped=True)
    run = WaitingRun("a", "x", "H100", 1, 1, 0, location=location)
    shrunk = ShrunkRun("a", "H100", 1, 2, True, location)

    def is_held(hold: FlavorHold) -> bool:
        waits = bool(queue(Waiting(NOW_MS, (run,), (hold,))).held)
        assert waits == bool(grow(ShrunkRuns(NOW_MS, (shrunk,), (hold,))).held)
        return waits

    assert is_held(hold) == held
    assert is_held(replace(hold, winner="a"))
    assert is_held(replace(hold, scoped=False)) == could_be_inside
    assert is_held(replace(hold, location={})), "it frees devices anywhere"


def test_devices_are_kept_in_the_scope_of_an_outcome() -> None:
    hold = FlavorHold("H100", 7, None, {"region": "west"}, scoped=True)
    assert hold.keeps({"region": "west", "rack": "1"})
    assert not hold.keeps({"region": "east"})
    assert not hold.keeps({})
    assert replace(hold, location={}).keeps({"region": "east"})


def test_a_run_that_was_promised_its_start_stays_first() -> None:
    """Runs of owners within their grants, that come later, do not take its place; only its own
    owner's priority does."""
    wide = WaitingRun("wide", "a", "H100", 8, 1, 0, promised_ms=50)
    other = WaitingRun("other", "b", "H100", 8, 2, HOUR_MS)
    also = WaitingRun("also", "c", "H100", 8, 3, 2 * HOUR_MS, promised_ms=40)
    own = WaitingRun("own", "a", "H100", 8, 4, 3 * HOUR_MS)
    use = (OwnerUse("a", "H100", 1, 8),)

    def order(*runs: WaitingRun) -> list[str]:
        found = queue(Waiting(9 * HOUR_MS, runs, (), QueuePolicy(), use))
        assert [row.position for row in found.order] == [1, 2, 3, 4]
        assert {row.run for row in found.order if row.reason is QueueReason.PROMISED} == {
            run.id for run in runs if run.promised_ms is not None
        } - {"wide" for run in runs if run.owner_priority}
        return [row.run for row in found.order]

    assert order(wide, other, also, own) == ["also", "wide", "other", "own"]
    assert order(own, also, other, wide) == ["also", "wide", "other", "own"]
    urgent = replace(own, owner_priority=5)
    assert order(wide, other, also, urgent) == ["also", "other", "own", "wide"]


def test_of_runs_of_one_time_the_smaller_number_is_older() -> None:
    """Not the smaller id; the other one is beyond what its owner is granted."""
    runs = tuple(
        WaitingRun(name, "a", "H100", 4, number, NOW_MS, submitted_ms=NOW_MS)
        for number, name in enumerate("ba")
    )
    found = queue(Waiting(NOW_MS, runs, (), POLICY, (OwnerUse("a", "H100", 4, 0),)))
    assert [(row.run, row.tier) for row in found.order] == [("b", 0), ("a", 1)]
