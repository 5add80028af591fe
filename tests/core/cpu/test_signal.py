"""The demand signal: its slope, its honesty about what is missing, its smoothing."""

import pytest

from fairlead.core.cpu import Counters, Smoothing
from fairlead.core.cpu.signal import CpuReading, hold_peak, read_signal, smooth

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
