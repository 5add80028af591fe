"""Several containers in a pod: one reading, one grant split back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.cpu.allocate import split_grant
from fairlead.core.cpu.signal import CpuReading, pod_reading


def test_pod_reading_adds_up() -> None:
    """Sums of use and want, the worst throttling, and the shortage they make together."""
    busy, idle = CpuReading(300, 400, 0.25, 0.9), CpuReading(100, 100, 0.0, 0.0)
    assert pod_reading([busy, idle]) == CpuReading(400, 500, 1 - 400 / 500, 0.9)
    assert pod_reading([]) == CpuReading(0, 0, 0.0, 0.0)


@given(st.lists(st.tuples(st.integers(1, 100), st.integers(0, 100)), min_size=1, max_size=6))
def test_pod_demand_is_the_limit_weighted_mean(containers: list[tuple[int, int]]) -> None:
    """Minimums in proportion to limits: the demand of the sum is the weighted mean of demands."""
    limits = [100 * limit for limit, _ in containers]
    wants = [
        limit // 10 + (limit - limit // 10) * percent // 100
        for limit, (_, percent) in zip(limits, containers, strict=True)
    ]
    readings = [CpuReading(want, want, 0.0, 0.0) for want in wants]
    demands = [r.demand(limit // 10, limit) for r, limit in zip(readings, limits, strict=True)]
    mean = sum(x * d for x, d in zip(limits, demands, strict=True)) / sum(limits)
    assert pod_reading(readings).demand(sum(limits) // 10, sum(limits)) == pytest.approx(mean)


def test_split_by_need() -> None:
    """Σ containers = pod; nobody below survival; equal parts when nobody needs anything."""
    assert split_grant(1000, {"app": 600, "sidecar": 200}) == {"app": 750, "sidecar": 250}
    assert split_grant(1000, {"app": 5000, "sidecar": 1}) == {"app": 990, "sidecar": 10}
    assert split_grant(101, {"app": 0, "sidecar": 0}) == {"app": 51, "sidecar": 50}
    assert split_grant(5, {"app": 900, "sidecar": 1}) == {"app": 3, "sidecar": 2}
    assert split_grant(5, {}) == {}


def test_split_keeps_the_users_caps() -> None:
    """A container never gets more than its user allowed; the others take the rest."""
    needs = {"app": 100, "sidecar": 900}
    assert split_grant(1000, needs, {"app": None, "sidecar": 200}) == {"app": 800, "sidecar": 200}
    assert split_grant(1000, needs, {"app": 300, "sidecar": 200}) == {"app": 300, "sidecar": 200}


@given(
    st.integers(0, 10**12),
    st.dictionaries(st.text(max_size=3), st.integers(0, 10**12), min_size=1, max_size=8),
)
def test_split_is_exact(grant: int, needs: dict[str, int]) -> None:
    """Σ containers = pod to the millicore."""
    parts = split_grant(grant, needs)
    assert sum(parts.values()) == grant
    assert parts.keys() == needs.keys()
