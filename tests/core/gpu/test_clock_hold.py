"""Clock hold: the ledger's time, whether runs may start, and what is recorded, from one input."""

from dataclasses import replace
from typing import Any

import pytest

from fairlead.core.gpu.clock import (
    ClockAnchor,
    ClockJump,
    ClockPolicy,
    ClockReading,
    ClockReason,
    OpenRun,
)
from fairlead.core.gpu.clock_hold import (
    BeforeBoot,
    ClockDecision,
    ClockJudgement,
    ClockMemory,
    ClockRecord,
    ClockRequest,
    follow_clock,
    judge_clock,
)

DAY = 86_400_000
NOW = 1_000 * DAY
MINUTE = 60_000
KNOWN = ClockAnchor(NOW, 50_000, "b1", "h1")
JUMP = ClockJump(7, NOW, DAY, "b1", 50_000, "h1")


def asked(passed_ms: int = 0, off_ms: int = 0, boot: str = "b1", **more: Any) -> ClockRequest:
    """So long after the anchor, with a wall clock that is off."""
    monotonic_ms = (KNOWN.monotonic_ms if boot == "b1" else 0) + passed_ms
    reading = ClockReading(NOW + passed_ms + off_ms, monotonic_ms, boot, "h1")
    return ClockRequest(reading, **{"last_ms": NOW, "known": KNOWN, **more})


def said(found: ClockDecision) -> tuple[str | None, str, bool]:
    return found.record, found.reason, found.admits


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (asked(1_000), (None, "Steady", True)),
        (asked(1_000, known=None, last_ms=0), ("anchored", "Started", True)),
        (asked(1_000, boot="b2"), ("anchored", "Started", True)),
        (asked(1_000, DAY), ("held", "JumpedAhead", False)),
        (asked(1_000, -DAY), ("held", "JumpedBack", False)),
        (asked(1_000, DAY, jump=JUMP), (None, "JumpedAhead", False)),
        (asked(1_000, jump=JUMP), ("anchored", "Returned", True)),
        (asked(1_000, known=replace(KNOWN, offset_ms=DAY)), ("anchored", "Returned", True)),
        (asked(5 * MINUTE), (None, "Steady", True)),
        (asked(5 * MINUTE, running=True), ("anchored", "Steady", True)),
        (asked(MINUTE, running=True), (None, "Steady", True)),
        (asked(MINUTE, running=True, elsewhere=True), ("anchored", "Steady", True)),
        (asked(boot=""), (None, "Steady", True)),
    ],
)
def test_what_is_recorded_and_whether_runs_start(
    request_: ClockRequest, expected: tuple[str | None, str, bool]
) -> None:
    assert said(judge_clock(request_)) == expected


def test_an_anchor_that_slews_have_left_behind_is_replaced() -> None:
    base = ClockAnchor(NOW + 10_000, 58_900, "b1", "h1")
    found = judge_clock(asked(9_000, 2_000, last_ms=NOW + 10_000, memory=ClockMemory(base)))
    assert said(found) == ("anchored", "Steady", True)
    base = replace(base, monotonic_ms=59_000)
    found = judge_clock(asked(9_000, 1_000, last_ms=NOW + 10_000, memory=ClockMemory(base)))
    assert said(found) == (None, "Steady", True), "a second behind is not too far"


@pytest.mark.parametrize("off_ms", [DAY, -DAY])
def test_a_judgement_ends_the_hold(off_ms: int) -> None:
    """An accepted clock ahead moves time by the shift; no judgement moves time back."""
    held = asked(1_000, off_ms, jump=JUMP)
    accepted = judge_clock(replace(held, judgement=ClockJudgement.ACCEPT))
    rejected = judge_clock(replace(held, judgement=ClockJudgement.REJECT))
    assert said(accepted) == (ClockRecord.ANCHORED, ClockReason.ACCEPTED, True)
    assert said(rejected) == (ClockRecord.ANCHORED, ClockReason.REJECTED, True)
    shift_ms = max(0, off_ms)
    assert (accepted.now_ms, accepted.shift_ms) == (NOW + 1_000 + shift_ms, shift_ms)
    assert accepted.offset_ms == max(0, -off_ms)
    assert (rejected.now_ms, rejected.shift_ms) == (NOW + 1_000, 0)
    assert rejected.offset_ms == -off_ms


def test_there_is_nothing_to_judge_in_a_clock_that_agrees() -> None:
    for judgement in ClockJudgement:
        found = judge_clock(asked(1_000, judgement=judgement))
        assert found == ClockDecision(NOW + 1_000, 0, 0, 0, ClockReason.STEADY, True, None)
    offset = asked(1_000, DAY, known=replace(KNOWN, offset_ms=-DAY))
    assert judge_clock(replace(offset, judgement=ClockJudgement.REJECT)).record is None
    late = judge_clock(replace(offset, judgement=ClockJudgement.ACCEPT))
    assert (said(late), late.shift_ms) == (("anchored", "Accepted", True), DAY)


def test_a_gap_between_boots_that_a_lease_would_be_charged_for_is_a_jump() -> None:
    """Also one after a jump of an earlier boot; a week off without runs is none."""
    week = asked(1_000, 7 * DAY, "b2")
    assert judge_clock(week).admits
    assert judge_clock(replace(week, runs=(OpenRun(False), OpenRun(True, NOW)))).admits
    assert not judge_clock(replace(week, runs=(OpenRun(True),))).admits
    assert not judge_clock(replace(week, jump=JUMP)).admits
    of_boot = replace(JUMP, boot="b2", asked=True)
    assert not judge_clock(replace(week, jump=of_boot)).admits


@pytest.mark.parametrize("known", [KNOWN, None, replace(KNOWN, offset_ms=7_000)])
def test_a_process_goes_on_from_a_jump_that_another_one_of_the_boot_saw(
    known: ClockAnchor | None,
) -> None:
    seen = ClockJump(9, NOW, DAY, "b2", 1_000, "h1")
    request = asked(61_000, 7 * DAY, "b2", known=known, jump=seen, runs=(OpenRun(True),))
    found, memory = follow_clock(request)
    assert (found.now_ms, found.admits) == (NOW + 60_000, False)
    offset_ms = 0 if known is None else known.offset_ms
    base = ClockAnchor(NOW, 1_000, "b2", "h1", offset_ms)
    assert memory == ClockMemory(base, BeforeBoot(known, NOW))


def test_a_clock_that_is_set_right_after_the_boot_did_not_jump() -> None:
    off = asked(1_000, -30 * DAY, "b2")
    found, memory = follow_clock(off)
    assert not found.admits
    right = asked(61_000, 2 * DAY, "b2", jump=replace(JUMP, boot="b2"), memory=memory)
    assert said(judge_clock(right)) == ("anchored", "Started", True)
    later = ClockMemory(replace(memory.base or KNOWN, ledger_ms=NOW + 3 * DAY), memory.before)
    assert not judge_clock(replace(right, memory=later)).admits, "time is not taken back"


def test_a_reading_is_gone_by_for_a_second() -> None:
    """Slews are whole milliseconds: a new base every turn of 200 ms would make up for none."""
    _, first = follow_clock(asked(0))
    _, same = follow_clock(asked(999, memory=first))
    _, next_ = follow_clock(asked(1_000, memory=first))
    assert same.base == first.base
    assert next_ == ClockMemory(ClockAnchor(NOW + 1_000, 51_000, "b1", "h1"))
    _, booted = follow_clock(asked(5_000, 0, "b2"))
    _, later = follow_clock(asked(6_000, 0, "b2", memory=booted))
    assert booted.before == later.before == BeforeBoot(KNOWN, NOW), "it may still be set right"
    _, shifted = follow_clock(asked(1_000, 0, known=replace(KNOWN, offset_ms=7_000)))
    assert shifted.base == ClockAnchor(NOW + 1_000, 51_000, "b1", "h1", 7_000)


def test_the_bound_is_of_the_input() -> None:
    narrow = replace(asked(1_000, MINUTE), policy=ClockPolicy(jump_ms=1_000))
    assert said(judge_clock(narrow)) == ("held", "JumpedAhead", False)


def test_without_a_monotonic_clock_the_wall_clock_is_the_time() -> None:
    """Nothing is known of the boot: no jump is seen, and nothing is remembered."""
    asked = ClockRequest(ClockReading(wall_ms=7_000, monotonic_ms=5, boot="", host="h"), 9_000)
    found, memory = follow_clock(asked)
    assert (found.now_ms, found.ahead_ms, found.offset_ms) == (7_000, 0, 0)
    assert found.reason is ClockReason.STEADY
    assert memory == asked.memory


def test_a_new_process_begins_to_make_up_for_a_difference() -> None:
    """It does not go back for the day since the anchor."""
    found, _ = follow_clock(asked(DAY, MINUTE))
    assert (found.now_ms, found.reason) == (NOW + DAY, ClockReason.STEADY)


def test_a_small_difference_after_a_boot_is_made_up_for_like_any_other() -> None:
    _, booted = follow_clock(asked(5_000, 0, "b2"))
    found, _ = follow_clock(asked(6_000, 500, "b2", memory=booted))
    assert (found.now_ms, found.reason) == (NOW + 6_001, ClockReason.STEADY)


def test_an_offset_is_known_to_a_clock_that_is_set_right_after_the_boot() -> None:
    """It may still be set again: what was known before the boot is kept."""
    known = replace(KNOWN, offset_ms=DAY)
    _, memory = follow_clock(asked(1_000, -40 * DAY, "b2", known=known))
    right = asked(61_000, DAY, "b2", known=known, memory=memory)
    found, after = follow_clock(right)
    assert (found.now_ms, found.offset_ms) == (NOW + 61_000 + 2 * DAY, DAY)
    assert (found.reason, after.before) == (ClockReason.STARTED, BeforeBoot(known, NOW))


def test_a_clock_that_needs_its_offset_again_did_not_jump() -> None:
    """At the boot it fitted without: now it shows, with it, the very time that has passed."""
    known = replace(KNOWN, offset_ms=400 * DAY)
    first, memory = follow_clock(asked(1_000, 0, "b2", known=known))
    assert (first.offset_ms, first.reason) == (0, ClockReason.STARTED)
    found, _ = follow_clock(asked(61_000, -400 * DAY, "b2", known=known, memory=memory))
    assert (found.now_ms, found.offset_ms) == (NOW + 61_000, 400 * DAY)
    assert found.reason is ClockReason.STARTED
