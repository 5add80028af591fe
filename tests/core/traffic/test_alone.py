"""How much may be inside a group whose agent is dead."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.traffic.alone import (
    UNLEARNED_EACH,
    FallbackBound,
    Relaxed,
    bound_alone,
    has_room,
    relax,
)

BOUND = FallbackBound(inside_max=60, most=240, step=3, stay_ms=240)


def test_the_last_learned_bound_is_kept() -> None:
    """With a twentieth as the step, and four times as much as the most."""
    kept = bound_alone(60, members=4, open=900, stay_ms=240)
    assert (kept.inside_max, kept.most, kept.step, kept.stay_ms) == (60, 240, 3, 240)
    assert bound_alone(1, members=1, open=0).step == 1


def test_a_group_is_never_without_a_bound() -> None:
    """Before anything was learned: so many for each backend, or twice what is open, in powers of
    two, so that it does not change with every connection."""
    assert bound_alone(None, members=4, open=0).inside_max == 4 * UNLEARNED_EACH
    assert bound_alone(None, members=0, open=0).inside_max == UNLEARNED_EACH
    assert bound_alone(None, members=1, open=300).inside_max == 1024
    assert bound_alone(None, members=1, open=301) == bound_alone(None, members=1, open=512)


def test_it_begins_with_what_was_learned_and_moves_a_step_a_period() -> None:
    """Up while so many succeed that at this bound they would stay no longer than they should."""
    first = relax(BOUND, None, now_ms=1_000, successes=500)
    assert first == Relaxed(60, 1_000, 500)
    assert relax(BOUND, first, now_ms=5_999, successes=10_000) is first
    # 60 inside for 5 s, 0.24 s each: 1250 have to succeed.
    assert relax(BOUND, first, now_ms=6_000, successes=500 + 1_250) == Relaxed(63, 6_000, 1_750)
    assert relax(BOUND, first, now_ms=6_000, successes=500 + 1_249).inside_max == 60
    wide = Relaxed(90, 0, 0)
    assert relax(BOUND, wide, now_ms=5_000, successes=0).inside_max == 87


@given(st.lists(st.tuples(st.integers(0, 30_000), st.integers(0, 10**9)), max_size=200))
def test_it_never_leaves_its_range(steps: list[tuple[int, int]]) -> None:
    """Whatever succeeds and whenever: not below what was learned, not above the most."""
    now, now_ms, successes = None, 0, 0
    for later_ms, more in steps:
        now_ms, successes = now_ms + later_ms, successes + more
        now = relax(BOUND, now, now_ms=now_ms, successes=successes)
        assert BOUND.inside_max <= now.inside_max <= BOUND.most


@given(st.lists(st.integers(0, 50), min_size=1, max_size=12))
def test_one_member_always_has_room(held: list[int]) -> None:
    """The one that holds least."""
    room = {"inside": sum(held) + 1, "members": len(held)}
    assert any(has_room(BOUND, open=count, **room) for count in held)


def test_a_step_is_a_whole_number_and_a_stay_at_least_a_millisecond() -> None:
    assert bound_alone(79, members=1, open=0, stay_ms=1) == FallbackBound(79, 316, 3)
    assert type(bound_alone(79, members=1, open=0).step) is int
    assert [bound_alone(9, members=1, open=0, stay_ms=ms).stay_ms for ms in (0, 1, 2)] == [1, 1, 2]


@pytest.mark.parametrize(
    ("open", "inside", "members", "room"),
    [(3, 4, 2, False), (2, 4, 2, True), (74, 99, 2, True), (75, 99, 2, False), (30, 10, 4, False)],
)
def test_a_member_has_room_below_half_more_than_its_even_share(
    open: int, inside: int, members: int, room: bool
) -> None:
    assert has_room(BOUND, open=open, inside=inside, members=members) is room
