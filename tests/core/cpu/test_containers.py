"""Several containers in a pod: one demand, one grant split back."""

from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.cpu import Container, pod_demand, split_grant


def test_pod_demand_is_the_limit_weighted_mean() -> None:
    """A large idle container and a small starved one."""
    assert pod_demand([Container("a", 900, 0.0), Container("b", 100, 1.0)]) == 0.1
    assert pod_demand([Container("a", 0, 0.2), Container("b", 0, 0.6)]) == 0.4
    assert pod_demand([]) == 0.0


@given(st.lists(st.builds(Container, st.just("c"), st.integers(0, 10**12), st.floats(0, 1))))
def test_pod_demand_is_a_ratio(containers: list[Container]) -> None:
    """Whatever the limits, the mean stays a demand, and the order never matters."""
    assert 0 <= pod_demand(containers) <= 1
    assert pod_demand(containers) == pod_demand(containers[::-1])


def test_split_by_need() -> None:
    """Σ containers = pod; nobody below survival; equal parts when nobody needs anything."""
    assert split_grant(1000, {"app": 600, "sidecar": 200}) == {"app": 750, "sidecar": 250}
    assert split_grant(1000, {"app": 5000, "sidecar": 1}) == {"app": 990, "sidecar": 10}
    assert split_grant(101, {"app": 0, "sidecar": 0}) == {"app": 51, "sidecar": 50}
    assert split_grant(5, {"app": 900, "sidecar": 1}) == {"app": 3, "sidecar": 2}
    assert split_grant(5, {}) == {}


@given(
    st.integers(0, 10**12),
    st.dictionaries(st.text(max_size=3), st.integers(0, 10**12), min_size=1, max_size=8),
)
def test_split_is_exact(grant: int, needs: dict[str, int]) -> None:
    """Σ containers = pod to the millicore."""
    parts = split_grant(grant, needs)
    assert sum(parts.values()) == grant
    assert parts.keys() == needs.keys()
