"""Pods of several containers: one demand for the market, one grant split back to the containers.

The kernel keeps throttling statistics per container cgroup and does not roll them up to the pod,
so the agent senses containers, clears pods, and splits each grant here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import fsum

from fairlead.core import units
from fairlead.core.apportion import Claim, water_fill
from fairlead.core.cpu.market import SURVIVAL_MILLICORES


@dataclass(frozen=True, slots=True)
class Container:
    """What was sensed of one container."""

    name: str
    limit_millicores: int
    demand: float

    def __post_init__(self) -> None:
        units.name(self.name, "name")
        units.size(self.limit_millicores, "limit_millicores")
        object.__setattr__(self, "demand", units.ratio(self.demand, "demand"))


def pod_demand(containers: Sequence[Container]) -> float:
    """The limit-weighted mean of the containers' demands (`fsum`: their order never matters)."""
    if not containers:
        return 0.0
    whole = sum(container.limit_millicores for container in containers)
    if whole == 0:
        mean = fsum(container.demand for container in containers) / len(containers)
    else:
        mean = fsum(c.limit_millicores * c.demand for c in containers) / whole
    return min(mean, 1.0)


def split_grant(grant_millicores: int, needs: Mapping[str, int]) -> dict[str, int]:
    """Split a pod's grant by container need, Σ = grant, no container starved below survival."""
    if not needs:
        return {}
    names = sorted(needs)
    survival = min(SURVIVAL_MILLICORES, grant_millicores // len(names))
    # A pod whose containers all need nothing is split equally.
    rates = [needs[name] for name in names] if any(needs.values()) else [1] * len(names)
    claims = [Claim(0, rate, survival, max(grant_millicores, survival)) for rate in rates]
    return dict(zip(names, water_fill(grant_millicores, claims).grants, strict=True))
