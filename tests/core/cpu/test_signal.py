"""The demand signal: its slope, its honesty about what is missing, its smoothing."""

import pytest

from fairlead.core.cpu import Counters, Smoothing
from fairlead.core.cpu.signal import (
    CORES_MAX,
    CpuReading,
    delay_us,
    hold_peak,
    pod_reading,
    read_signal,
    smooth,
    waited_us,
)

START = Counters(time_us=0, usage_us=0, periods=0, throttled_periods=0, throttled_us=0)


def after(**fields: int) -> Counters:
    base = {"time_us": 1_000_000, "usage_us": 0, "periods": 10, "throttled_periods": 0}
    return Counters(**{**base, "throttled_us": 0, **fields})


@pytest.mark.parametrize("short_percent", [0, 1, 9, 25, 50, 90, 99])
def test_one_busy_thread_reads_its_true_shortage(short_percent: int) -> None:
    """A thread that wants one core and gets (100 - s) % of it reads s %, from 0 to 100."""
    held = short_percent * 10_000
    reading = read_signal(
        START,
        after(usage_us=1_000_000 - held, throttled_us=held, throttled_periods=10 if held else 0),
    )
    assert reading is not None
    assert reading.shortage == pytest.approx(short_percent / 100, abs=1e-12)
    assert reading.want_millicores == 1000
    assert reading.throttled_ratio == (1.0 if held else 0.0)


def test_a_service_that_runs_dry_wants_what_it_lacks_and_not_a_core() -> None:
    """300m of work done in 3/4 of each period, then held: the want is 400m, not 550m."""
    reading = read_signal(
        START, after(usage_us=300_000, throttled_us=250_000, throttled_periods=10)
    )
    assert reading is not None
    assert (reading.want_millicores, reading.shortage) == (400, 0.25)


def test_two_busy_threads_read_their_true_shortage() -> None:
    """Two spinning threads on half a core each: want 2000m, short by 3/4."""
    reading = read_signal(
        START, after(usage_us=500_000, throttled_us=1_500_000, throttled_periods=10)
    )
    assert reading is not None
    assert (reading.want_millicores, reading.shortage) == (2000, 0.75)


def test_demand_is_the_place_of_the_want_between_min_and_max() -> None:
    """0 at the minimum, 1 at the maximum, clipped; without a range, 1 only beyond it."""
    reading = CpuReading(500, 500, 0.0, 0.0)
    assert reading.demand(100, 900) == 0.5
    assert reading.demand(600, 900) == 0.0
    assert reading.demand(100, 300) == 1.0
    assert reading.demand(500, 500) == 0.0
    assert reading.demand(499, 499) == 1.0


@pytest.mark.parametrize(
    "now",
    [
        None,
        after(time_us=0),
        after(time_us=-5),
        after(usage_us=-1),
        after(periods=-1),
        after(throttled_periods=-1),
        after(throttled_us=-1),
        after(usage_us=10**12),
    ],
)
def test_rubbish_is_a_missing_signal(now: Counters | None) -> None:
    """Vanished, reset, backward or absurd counters are missing, never a zero."""
    assert read_signal(START, now) is None
    assert read_signal(None, after()) is None


def test_throttled_time_without_a_throttled_period_is_not_news() -> None:
    """The tail of an older throttle does not count as shortage now."""
    reading = read_signal(START, after(usage_us=100_000, throttled_us=50_000))
    assert reading is not None
    assert (reading.shortage, reading.want_millicores) == (0.0, 100)


def test_no_periods_means_no_limit() -> None:
    """An idle or unlimited container has no periods to be throttled in."""
    reading = read_signal(START, after(periods=0, usage_us=5))
    assert reading is not None
    assert reading.throttled_ratio == 0.0


def test_smoothing_rises_fast_and_falls_slowly() -> None:
    """A factor for each direction; the first value is taken as it is."""
    gentle = Smoothing(up=0.3, down=0.1)
    assert smooth(None, 0.7) == 0.7
    assert smooth(0.0, 1.0, gentle) == 0.3
    assert smooth(1.0, 0.0, gentle) == 0.9
    assert smooth(0.2, 1.0) == 1.0
    assert smooth(1.0, 0.0) == 0.9


def test_a_peak_counts_for_its_time_and_no_longer() -> None:
    """The highest of the last while; lower ones wait behind it for their turn."""
    peaks = hold_peak((), 0, 0.9, 100)
    assert peaks == ((0, 0.9),)
    peaks = hold_peak(peaks, 40, 0.4, 100)
    peaks = hold_peak(peaks, 60, 0.6, 100)
    assert peaks == ((0, 0.9), (60, 0.6)), "0.4 can never be the highest again"
    assert hold_peak(peaks, 99, 0.1, 100)[0] == (0, 0.9)
    assert hold_peak(peaks, 100, 0.1, 100) == ((60, 0.6), (100, 0.1))
    assert hold_peak(peaks, 61, 0.6, 100) == ((0, 0.9), (61, 0.6)), "an equal one is the newer"


def test_an_idle_pod_reads_idle_in_the_end() -> None:
    """The mean of nothing comes to 0 within a few minutes, instead of never."""
    value, samples = 1.0, 0
    while value:
        value, samples = smooth(value, 0.0), samples + 1
    assert samples < 240


def test_a_reading_is_of_differences() -> None:
    """Two seconds in the life of a container: 300m used, a fifth of what it wanted."""
    before = Counters(1_000_000, 500_000, 10, 4, 100_000, 50_000, 5)
    now = Counters(3_000_000, 1_100_000, 30, 9, 500_000, 90_000, 9)
    assert read_signal(before, now) == CpuReading(300, 375, pytest.approx(0.2), 0.25)
    assert waited_us(before, now) == 40_000
    assert delay_us([(before, now)]) == 10_000.0
    assert delay_us([(before, now), (before, before._replace(runs=9))]) == 5_000.0


def test_more_cpus_than_there_are_is_rubbish() -> None:
    """Just as many as can be believed are still a reading."""
    most = 1_000_000 * CORES_MAX
    for name in ("usage_us", "throttled_us"):
        assert read_signal(START, after(throttled_periods=1, **{name: most}))
        assert read_signal(START, after(throttled_periods=1, **{name: most + 1})) is None
    first = START._replace(waited_us=0)
    assert waited_us(first, after(waited_us=most)) == most
    assert waited_us(first, after(waited_us=most + 1)) is None
    assert waited_us(first, after(waited_us=0)) == 0


def test_more_throttled_periods_than_periods_are_all_of_them() -> None:
    reading = read_signal(START, after(throttled_periods=15, throttled_us=1, usage_us=9))
    assert reading is not None
    assert reading.throttled_ratio == 1.0


def test_nothing_wanted_is_nothing_short() -> None:
    assert read_signal(START, after()) == CpuReading(0, 0, 0.0, 0.0)
    assert pod_reading([]) == CpuReading(0, 0, 0.0, 0.0)


def test_a_pod_reads_as_the_sum_of_its_containers() -> None:
    """Its throttling is that of the worst; one container is the pod."""
    app, log = CpuReading(300, 400, 0.25, 0.5), CpuReading(100, 100, 0.0, 0.75)
    assert pod_reading([app]) is app
    assert pod_reading([app, log]) == CpuReading(400, 500, pytest.approx(0.2), 0.75)


def test_only_what_falls_to_nothing_is_cut() -> None:
    """A small mean of a pod that still does something stays."""
    assert smooth(0.001, 0.0) == 0.0
    assert smooth(0.0012, 0.0) == pytest.approx(0.00108)
    assert smooth(0.0005, 0.0001) == pytest.approx(0.00046)
    assert smooth(0.002, 0.0, Smoothing(down=0.5)) == 0.001


def test_figures_are_whole_millicores_of_the_time_that_passed() -> None:
    """A microsecond is enough to be a reading."""
    before = Counters(5_000_000, 0, 0, 0, 0)
    found = read_signal(before, Counters(5_000_001, 1, 0, 0, 0))
    assert found == CpuReading(1000, 1000, 0.0, 0.0)
    found = read_signal(before, Counters(15_000_000, 3_333_333, 100, 7, 1_000_003))
    assert found is not None
    assert (found.usage_millicores, found.want_millicores) == (333, 370)
    assert {type(found.usage_millicores), type(found.want_millicores)} == {int}
    assert CpuReading(101, 101, 0.0, 0.0).demand(100, 101) == 1.0
    assert CpuReading(100, 100, 0.0, 0.0).demand(100, 101) == 0.0


def test_a_wait_is_believed_for_the_time_between_two_readings() -> None:
    """Not for all the time since the counters began."""
    before = Counters(10_000_000, 0, 0, 0, 0, 0)
    assert waited_us(before, Counters(10_000_001, 0, 0, 0, 0, CORES_MAX)) == CORES_MAX
    assert waited_us(before, Counters(10_000_001, 0, 0, 0, 0, CORES_MAX + 1)) is None


def test_a_container_in_which_nothing_ran_delays_no_other() -> None:
    still = Counters(0, 0, 0, 0, 0, 0, 4)
    ran = (Counters(0, 0, 0, 0, 0, 0, 0), Counters(1, 0, 0, 0, 0, 300, 3))
    assert delay_us([(still, still), ran]) == 100.0
    assert delay_us([(still, still)]) is None


def test_peaks_that_are_over_are_all_forgotten() -> None:
    assert hold_peak(((0, 0.9), (10, 0.8), (20, 0.7)), 115, 0.1, 100) == ((20, 0.7), (115, 0.1))
    assert hold_peak(((50, 0.9),), 60, 0.1, 100) == ((50, 0.9), (60, 0.1))


def test_of_a_row_of_peaks_only_those_that_are_over_are_forgotten() -> None:
    row = ((0, 0.9), (10, 0.8), (20, 0.7))
    assert hold_peak(row, 105, 0.1, 100) == ((10, 0.8), (20, 0.7), (105, 0.1))
