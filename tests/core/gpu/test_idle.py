"""Since when a run is idle: readings by readings and from what was recorded it is the same."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.gpu import IdlePolicy, IdleRequest, IdleRun, IdleStreak, idle
from fairlead.core.gpu.idle import SPANS_MAX, IdleRow, IdleSpan

POLICY = IdlePolicy(gap_ms=30, resume_ms=600, recorded_every_ms=300)
readings = st.lists(st.tuples(st.sampled_from([10, 30, 31, 600, 601]), st.booleans()), max_size=20)


def by_hand(rows: list[tuple[int, bool]]) -> IdleStreak | None:
    """The definition, one reading after the other."""
    now, since, read = 1000, None, 0
    for step, busy in rows:
        now += step
        if busy:
            since = None
        elif since is None or now - read > POLICY.resume_ms:
            since = now
        elif now - read > POLICY.gap_ms:
            since += now - read
        read = now
    return None if since is None else IdleStreak(since, read)


@given(readings, st.lists(st.booleans(), min_size=20, max_size=20))
def test_what_is_recorded_in_between_changes_nothing(
    rows: list[tuple[int, bool]], recorded: list[bool]
) -> None:
    """Spans are those of the readings, and a recorded streak stands for all before it."""
    memory, now = IdleRun("r", "j"), 1000
    for (step, busy), record in zip(rows, recorded, strict=False):
        now += step
        memory = memory.read(now, POLICY, busy=busy)
        if record:
            (row,) = idle(IdleRequest((memory,), POLICY)).runs
            memory = IdleRun("r", "j", row.streak)
    assert memory.streak(POLICY) == by_hand(rows)


@given(readings)
def test_a_streak_is_due_when_it_ended_and_every_so_often(rows: list[tuple[int, bool]]) -> None:
    memory, now, kept = IdleRun("r", "j"), 1000, None
    for step, busy in rows:
        now += step
        memory = memory.read(now, POLICY, busy=busy)
        streak, due = memory.streak(POLICY), memory.is_due(POLICY)
        if busy:
            assert due is (kept is not None)
        elif streak is not None and kept is None:
            assert due is (streak.read_ms - streak.since_ms >= 300)
        if due:
            kept = streak
            memory = IdleRun("r", "j", streak)


def test_rows_are_by_run() -> None:
    found = idle(IdleRequest((IdleRun("b", "j"), IdleRun("a", "i", IdleStreak(1, 2)))))
    assert [(row.run, row.streak) for row in found.runs] == [("a", IdleStreak(1, 2)), ("b", None)]


def test_spans_are_bounded() -> None:
    """A control plane that reads too seldom, and a run whose streak is never recorded."""
    memory = IdleRun("r", "j")
    for number in range(500):
        memory = memory.read(number * 100, POLICY, busy=False)
    assert len(memory.spans) == SPANS_MAX
    assert memory.streak(POLICY) == IdleStreak(49_900, 49_900)


def test_a_streak_that_was_recorded_and_ended_is_due_and_no_other_end() -> None:
    """Nothing is to be recorded of work before which nothing was."""
    for before, due in ((IdleStreak(1, 2), True), (None, False)):
        assert IdleRun("r", "j", before).read(9, POLICY, busy=True).is_due(POLICY) is due
    assert not IdleRun("r", "j").is_due(POLICY)


def test_a_run_that_is_named_twice_is_refused() -> None:
    (fault,) = IdleRequest((IdleRun("r", "j"), IdleRun("r", "k"))).faults()
    assert "runs[1].run" in str(fault)


def test_readings_join_a_span_up_to_the_gap() -> None:
    """Two at the same time, too; the first that is further away begins another."""
    memory = IdleRun("r", "j", IdleStreak(1, 2))
    for now_ms in (1000, 1000, 1030, 1061):
        memory = memory.read(now_ms, POLICY, busy=False)
    spans = (IdleSpan(1000, 1030), IdleSpan(1061, 1061))
    assert memory == IdleRun("r", "j", IdleStreak(1, 2), False, spans)
    assert memory.read(1070, POLICY, busy=True) == IdleRun("r", "j", IdleStreak(1, 2), True)


@pytest.mark.parametrize(
    ("from_ms", "since_ms"), [(1100, 1000), (1130, 1000), (1131, 1031), (1700, 1600), (1701, 1701)]
)
def test_a_streak_goes_on_from_what_was_recorded(from_ms: int, since_ms: int) -> None:
    """Up to the gap it was read all the time; up to the resumption what was not read is taken off,
    and after that it is another one."""
    run = IdleRun("r", "j", IdleStreak(1000, 1100), spans=(IdleSpan(from_ms, 1800),))
    assert run.streak(POLICY) == IdleStreak(since_ms, 1800)
    (row,) = idle(IdleRequest((run,), POLICY)).runs
    assert row == IdleRow("r", "j", IdleStreak(since_ms, 1800))


def test_a_streak_is_recorded_again_after_its_interval() -> None:
    """From its begin, or from the record before."""
    for to_ms, due in ((1299, False), (1300, True)):
        spans = (IdleSpan(1000, to_ms),)
        assert IdleRun("r", "j", spans=spans).is_due(POLICY) is due
        assert IdleRun("r", "j", IdleStreak(10, 1000), spans=spans).is_due(POLICY) is due
