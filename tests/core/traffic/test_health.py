"""The health tracker: four ways out, one way back."""

from dataclasses import replace

import pytest

from fairlead.core.traffic import Cause
from fairlead.core.traffic.health import BackendHealth, Evidence, Tracked, median, track


class Watch:
    """Sightings that are easy to change, tick after tick."""

    def __init__(self, *names: str) -> None:
        self.seen = {name: Evidence(name, pressure=0.4) for name in names}
        self.now_ms = 0
        self.healths: tuple[BackendHealth, ...] | None = None

    def set(self, name: str, **changes: object) -> None:
        self.seen[name] = replace(self.seen[name], **changes)  # type: ignore[arg-type]

    def step(self, ms: int = 200) -> Tracked:
        self.now_ms += ms
        tracked = track(self.healths, list(self.seen.values()), now_ms=self.now_ms)
        self.healths = tracked.healths
        return tracked

    def run(self, ms: int) -> Tracked:
        for _ in range(ms // 200 - 1):
            self.step()
        return self.step()


def test_an_outlier_is_isolated_after_three_seconds() -> None:
    """Strictly above 4 times the median, without a break."""
    watch = Watch("a", "b", "c", "d")
    watch.set("d", pressure=4.0)
    assert watch.run(3_000).isolated == {}
    assert watch.step().isolated == {"d": Cause.OUTLIER}


def test_a_break_starts_the_three_seconds_anew() -> None:
    """Exactly 4 times the median is not above it."""
    watch = Watch("a", "b", "c")
    watch.set("c", pressure=4.0)
    watch.run(2_800)
    watch.set("c", pressure=1.6)
    watch.step()
    watch.set("c", pressure=4.0)
    assert watch.run(3_000).isolated == {}
    assert watch.step().isolated == {"c": Cause.OUTLIER}


def test_never_more_than_half_the_group() -> None:
    """The worst first; those that are out already count."""
    watch = Watch(*"abcdefghi")
    for name, pressure in (("a", 9.0), ("b", 8.0), ("c", 7.0)):
        watch.set(name, pressure=pressure)
    watch.set("h", operator_isolated=True)
    watch.set("i", operator_isolated=True)
    assert set(watch.run(3_200).isolated) == {"a", "b", "h", "i"}
    pair = Watch("a", "b")
    pair.set("b", check_ok=False)
    pair.set("a", pressure=99.0)
    assert set(pair.run(4_000).isolated) == {"b"}


def test_who_fails_is_an_outlier_at_once_and_before_the_slow() -> None:
    """Still never more than half the group, and nobody twice."""
    watch = Watch("a", "b", "c", "d")
    watch.set("d", failing=True)
    assert watch.step().isolated == {"d": Cause.OUTLIER}
    watch.set("c", pressure=4.0)
    watch.run(3_000)
    watch.set("a", failing=True)
    assert watch.step().isolated == dict.fromkeys("ad", Cause.OUTLIER)
    watch.set("b", failing=True)
    assert set(watch.step().isolated) == {"a", "d"}


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        ({"operator_isolated": True}, Cause.OPERATOR),
        ({"check_ok": False}, Cause.CHECK),
        ({"connect_failures_in_a_row": 5}, Cause.CONNECT),
    ],
)
def test_other_causes_isolate_at_once(change: dict[str, object], cause: Cause) -> None:
    """Even the last of the group: routing to a dead backend helps nobody."""
    watch = Watch("a")
    watch.set("a", **change)
    assert watch.step().isolated == {"a": cause}


def test_four_connect_failures_are_not_enough() -> None:
    """Nor is a health check that does not exist."""
    watch = Watch("a")
    watch.set("a", connect_failures_in_a_row=4, check_ok=None)
    assert watch.step().isolated == {}


def test_the_isolated_are_probed_in_a_drip() -> None:
    """Twice a second; the operator's are left alone."""
    watch = Watch("a", "b", "c")
    watch.set("a", check_ok=False)
    watch.set("b", operator_isolated=True)
    probes = [watch.step().probes for _ in range(7)]
    assert probes == [("a",), (), (), ("a",), (), (), ("a",)]


def test_five_successes_in_a_row_bring_it_back_as_a_newborn() -> None:
    """And its age starts at 0, for the warm-up."""
    watch = Watch("a", "b", "c")
    assert watch.step().age_ms == {"a": None, "b": None, "c": None}
    watch.set("a", check_ok=False)
    watch.step()
    watch.set("a", check_ok=True, successes=1)
    assert [("a" in watch.step().isolated) for _ in range(5)] == [True] * 4 + [False]
    watch.set("a", successes=0)
    tracked = watch.step()
    assert tracked.age_ms == {"a": 200, "b": None, "c": None}


def test_a_failure_breaks_the_row() -> None:
    """Five in a row, not five in all."""
    watch = Watch("a", "b", "c")
    watch.set("a", connect_failures_in_a_row=5)
    watch.step()
    watch.set("a", connect_failures_in_a_row=0, successes=4)
    watch.step()
    watch.set("a", successes=1, failures=1)
    watch.step()
    watch.set("a", successes=4, failures=0)
    assert "a" in watch.step().isolated
    watch.set("a", successes=1)
    assert "a" not in watch.step().isolated


def test_successes_count_only_while_the_pressure_is_low() -> None:
    """Below twice the median of those in service; an unknown pressure is not low."""
    watch = Watch("a", "b", "c")
    watch.set("a", pressure=4.0)
    watch.run(3_200)
    watch.set("a", pressure=0.8, successes=9)
    assert "a" in watch.step().isolated
    watch.set("a", pressure=None)
    assert "a" in watch.step().isolated
    watch.set("a", pressure=0.79)
    assert "a" not in watch.step().isolated


def test_with_nobody_in_service_successes_are_enough() -> None:
    """There is no median to be measured by."""
    watch = Watch("a")
    watch.set("a", check_ok=False)
    watch.step()
    watch.set("a", check_ok=True, successes=5, pressure=50.0)
    assert watch.step().isolated == {}


def test_a_late_arrival_is_a_newborn_and_unknown_pressure_is_no_outlier() -> None:
    """Those that were there at the start count as warm."""
    watch = Watch("a", "b")
    watch.step()
    watch.seen["c"] = Evidence("c")
    assert watch.step().age_ms == {"a": None, "b": None, "c": 0}
    assert watch.run(4_000).age_ms["c"] == 4_000
    assert watch.step().isolated == {}


def test_the_order_of_the_sightings_does_not_matter() -> None:
    """The same verdicts from a reversed list."""
    seen = [Evidence(name, pressure=p) for name, p in (("a", 9.0), ("b", 9.0), ("c", 1.0))]
    before = [
        BackendHealth("a", high_since_ms=0),
        BackendHealth("b", high_since_ms=0),
        BackendHealth("c"),
    ]
    one = track(before, seen, now_ms=5_000)
    assert one == track(before[::-1], seen[::-1], now_ms=5_000)


def test_the_median() -> None:
    """The middle, the mean of the middle two, or nothing."""
    assert median([3.0, 1.0, 2.0]) == 2.0
    assert median([4.0, 1.0, 2.0, 3.0]) == 2.0
    assert median([]) is None


def test_of_two_that_fail_the_one_known_to_be_slow_goes_first() -> None:
    """What is not known of a backend does not count against it."""
    watch = Watch("a", "b")
    watch.set("a", failing=True, pressure=None)
    watch.set("b", failing=True, pressure=0.5)
    assert watch.step().isolated == {"b": Cause.OUTLIER}


def test_a_probe_is_due_after_exactly_half_a_second() -> None:
    watch = Watch("a")
    watch.set("a", check_ok=False)
    assert [watch.step(ms).probes for ms in (1, 499, 1, 500)] == [("a",), (), ("a",), ("a",)]


def test_isolation_begins_with_nothing_remembered() -> None:
    """No pressure of before, no successes of before a relapse; an outlier is probed later on."""
    outlier = BackendHealth("c", high_since_ms=0)
    pair = [BackendHealth(name) for name in "ab"]
    seen = [Evidence(name, pressure=p) for name, p in (("a", 0.4), ("b", 0.4), ("c", 4.0))]
    tracked = track([*pair, outlier], seen, now_ms=3_000)
    assert tracked.healths[2] == BackendHealth("c", Cause.OUTLIER, probed_ms=3_000)
    assert tracked.probes == ()
    relapsed = BackendHealth("c", Cause.OUTLIER, high_since_ms=0, streak=4, probed_ms=2_900)
    failed = replace(seen[2], check_ok=False, successes=4)
    tracked = track([*pair, relapsed], [*seen[:2], failed], now_ms=3_000)
    assert tracked.healths[2] == BackendHealth("c", Cause.CHECK, probed_ms=2_900)
