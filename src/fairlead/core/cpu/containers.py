"""Pods of several containers: one reading for the market, one grant split back to the containers.

The kernel keeps throttling statistics per container cgroup and does not roll them up to the pod,
so the agent senses containers, clears pods, and splits each grant here.
"""

from collections.abc import Mapping, Sequence

from fairlead.core.apportion import Claim, water_fill
from fairlead.core.cpu.market import SURVIVAL_MILLICORES
from fairlead.core.cpu.signal import Reading


def pod_reading(readings: Sequence[Reading]) -> Reading:
    """What the containers' readings say about their pod: sums, and the worst throttling.

    A pod's demand is the limit-weighted mean of its containers' demands. Adding up the wants and
    asking where they lie between the pod's minimum and maximum is that mean, and stays right where
    a container has no limit to weigh by.
    """
    used = sum(reading.usage_millicores for reading in readings)
    want = sum(reading.want_millicores for reading in readings)
    return Reading(
        usage_millicores=used,
        want_millicores=want,
        shortage=1 - used / want if want else 0.0,
        throttled_ratio=max((reading.throttled_ratio for reading in readings), default=0.0),
    )


def split_grant(
    grant_millicores: int, needs: Mapping[str, int], caps: Mapping[str, int | None] | None = None
) -> dict[str, int]:
    """Split a pod's grant by container need: Σ = grant, nobody starved, nobody above its cap.

    A cap is the limit that the user gave a container (None: none). Where the caps together are
    below the grant, the rest stays unused.
    """
    if not needs:
        return {}
    names = sorted(needs)
    tops = [(caps or {}).get(name) for name in names]
    highs = [grant_millicores if top is None else min(top, grant_millicores) for top in tops]
    survival = min(SURVIVAL_MILLICORES, grant_millicores // len(names))
    # A pod whose containers all need nothing is split equally.
    rates = [max(needs[name], 1) for name in names]
    claims = [
        Claim(0, rate, min(survival, high), high) for rate, high in zip(rates, highs, strict=True)
    ]
    return dict(zip(names, water_fill(grant_millicores, claims).grants, strict=True))
