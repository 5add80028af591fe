"""Signal conditioning: section 1 of the equations, evidence, and imputation."""

import pytest

from fairlead.core.traffic import Backend, Config
from fairlead.core.traffic.nodes import ewma, velocity
from fairlead.core.traffic.pressure import (
    TERM_MAX,
    Imputed,
    count_errors,
    impute,
    left_sum,
    normalise,
    wilson_lower,
)
from fairlead.core.traffic.state import BackendMemory
from fairlead.core.units import FLOAT_MAX


def test_ewma_starts_at_the_first_sample_and_moves_by_alpha() -> None:
    """1.1: alpha*x + (1 - alpha)*before."""
    assert ewma(None, 7.0, 0.2) == 7.0
    assert ewma(10.0, 20.0, 0.2) == pytest.approx(12.0)


def test_ewma_of_the_largest_doubles_stays_finite() -> None:
    """Finite in, finite out, whatever the rounding."""
    assert ewma(FLOAT_MAX, FLOAT_MAX, 0.3) <= FLOAT_MAX


def test_velocity_is_positive_only_and_per_second() -> None:
    """1.2: falling counts as standing still."""
    assert velocity(600.0, 100.0, 5_000) == 100.0
    assert velocity(100.0, 600.0, 5_000) == 0.0


def test_a_term_is_normalised_by_its_reference_and_stays_finite() -> None:
    """1.3: W*x/x_ref; a weight of 0 switches the term off even for the largest double."""
    assert normalise(40.0, 1.0, 100.0) == 0.4
    assert normalise(FLOAT_MAX, 1e12, 1e-9) == TERM_MAX
    assert normalise(FLOAT_MAX, 0.0, 1e-9) == 0.0


def test_sums_run_from_left_to_right() -> None:
    """The order of the ids decides the rounding, not the version of Python."""
    assert left_sum([1e16, 1.0, 1.0]) == 1e16
    assert left_sum([]) == 0.0


def test_wilson_believes_little_of_a_few_requests() -> None:
    """One failure of one request proves 20 %, ten of ten 72 %; none prove nothing."""
    assert wilson_lower(1.0, 1, 1.96) == pytest.approx(0.2065, abs=1e-4)
    assert wilson_lower(1.0, 10, 1.96) == pytest.approx(0.7225, abs=1e-4)
    assert wilson_lower(0.5, 4, 1.96) == pytest.approx(0.1500, abs=1e-4)
    assert wilson_lower(0.5, 0, 1.96) == 0.0
    assert wilson_lower(0.0, 10, 1.96) == 0.0


def test_the_worst_stands_in_for_the_unknown() -> None:
    """Missing is never zero."""
    assert impute([1.0, None, 3.0]) == Imputed([1.0, 3.0, 3.0], missing=True)
    assert impute([1.0, 3.0]) == Imputed([1.0, 3.0], missing=False)
    assert impute([None, None]) == Imputed(None, missing=True)
    assert impute([]) == Imputed(None, missing=False)


@pytest.mark.parametrize(
    ("requests", "expected"),
    [(20, 0.5), (1000, 0.5), (19, wilson_lower(0.5, 19, 1.96)), (1, wilson_lower(0.5, 1, 1.96))],
)
def test_raw_rates_count_from_twenty_requests(requests: int, expected: float) -> None:
    """Below that only what they prove."""
    counted = count_errors(
        Backend("a", error_rate=0.5, requests=requests), BackendMemory("a"), 700, Config()
    )
    assert counted == (expected, expected, 700)


@pytest.mark.parametrize(
    "blind", [Backend("a", requests=100), Backend("a", error_rate=0.1), Backend("a")]
)
def test_without_a_rate_or_a_volume_errors_are_missing(blind: Backend) -> None:
    """And the last counted rate is not forgotten meanwhile."""
    memory = BackendMemory("a", error_rate=0.3, error_ms=100)
    assert count_errors(blind, memory, 200, Config()) == (None, 0.3, 100)


def test_silence_keeps_the_last_counted_rate_for_five_seconds() -> None:
    """A drained backend is not healthy at once; later there is no evidence against it."""
    silent, memory = Backend("a", error_rate=0.0, requests=0), BackendMemory("a", 0, 0.0, 0.3, 100)
    assert count_errors(silent, memory, 100, Config()) == (0.3, 0.3, 100)
    assert count_errors(silent, memory, 5_100, Config()) == (0.3, 0.3, 100)
    assert count_errors(silent, memory, 5_101, Config()) == (0.0, None, None)
    assert count_errors(silent, BackendMemory("a"), 100, Config()) == (0.0, None, None)


def test_a_null_rate_of_no_requests_is_silence_too() -> None:
    """0/0 is null to many a sensor: the last counted rate answers it, later it is missing."""
    silent, memory = Backend("a", requests=0), BackendMemory("a", 0, 0.0, 0.3, 100)
    assert count_errors(silent, memory, 5_100, Config()) == (0.3, 0.3, 100)
    assert count_errors(silent, memory, 5_101, Config()) == (None, None, None)
    assert count_errors(silent, BackendMemory("a"), 5_101, Config()) == (None, None, None)
