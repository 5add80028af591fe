"""The queue: first come, first served, and who is held back."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.gpu import FlavorHold, ReservedStart, Waiting, WaitingRun, queue
from fairlead.schema.border import BadInput
from fairlead.schema.gpu import STYLE
from fairlead.schema.kinds import KINDS
from tests.core.gpu.test_deficit import shuffled

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
    assert hold.applies(NOW_MS) == held
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
