"""A straightforward allocator in plain floats, as one would write it first, to measure against.

This is a *reference for benchmarks*, not part of the product: the usual formulas with the usual
rounding and none of our repairs.

- `demand_capped`: need from demand, surplus cut by one ratio, minimums scaled when not even they
  fit; products truncated.
- `market`: proportional shares, then excess above the maximums handed on in a loop until no pod is
  above; each share rounded to nearest at the end.
- `nash`: the same loop with the weights as bids and the needs as ceilings.

It takes core's pods and returns grants in their order; reasons, ratios and prices are left out, so
that it does less work than what it is compared with.
"""

from collections.abc import Callable, Sequence

from fairlead.core.cpu import Pod, Policy

SURVIVAL_MILLICORES = 10


def float_need(pod: Pod) -> int:
    """Minimum plus the demanded part of the range, plus 10 to 25 % headroom, within bounds."""
    low, high = pod.min_millicores, pod.max_millicores
    raw = low + int((high - low) * pod.demand)
    need = raw + int(raw * (0.10 + pod.demand * 0.15))
    return max(low, min(need, high))


def demand_capped(capacity: int, pods: Sequence[Pod]) -> list[int]:
    """Needs, cut by one ratio."""
    if not pods:
        return []
    needs = [float_need(pod) for pod in pods]
    total_min = sum(pod.min_millicores for pod in pods)
    if total_min > capacity:
        return _scale_baselines(capacity, pods, total_min)
    if sum(needs) <= capacity:
        return needs
    surpluses = [need - pod.min_millicores for need, pod in zip(needs, pods, strict=True)]
    ratio = min((capacity - total_min) / sum(surpluses), 1.0)
    return [
        min(pod.min_millicores + int(surplus * ratio), pod.max_millicores)
        for pod, surplus in zip(pods, surpluses, strict=True)
    ]


def _scale_baselines(capacity: int, pods: Sequence[Pod], total_min: int) -> list[int]:
    scale = capacity / total_min
    return [max(int(pod.min_millicores * scale), SURVIVAL_MILLICORES) for pod in pods]


def market(capacity: int, pods: Sequence[Pod]) -> list[int]:
    """The whole capacity by bid, up to the maximums."""
    bids = [pod.share_weight * pod.demand for pod in pods]
    if not any(bids):
        bids = [pod.share_weight for pod in pods]
    if not any(bids):
        bids = [1.0] * len(pods)
    return _water_fill(capacity, pods, bids, [pod.max_millicores for pod in pods])


def nash(capacity: int, pods: Sequence[Pod]) -> list[int]:
    """The needs where they fit, otherwise the same loop by weight, up to the needs."""
    needs = [float_need(pod) for pod in pods]
    if sum(needs) <= capacity:
        return needs
    return _water_fill(capacity, pods, [pod.share_weight for pod in pods], needs)


def _water_fill(
    capacity: int, pods: Sequence[Pod], bids: Sequence[float], tops: Sequence[int]
) -> list[int]:
    minimums = [float(pod.min_millicores) for pod in pods]
    total_min = sum(minimums)
    if total_min > capacity:
        return [round(minimum * (capacity / total_min)) for minimum in minimums]
    total_bid, remaining = sum(bids), capacity - total_min
    targets = [
        minimum + (bid / total_bid) * remaining for minimum, bid in zip(minimums, bids, strict=True)
    ]
    while any(target > top for target, top in zip(targets, tops, strict=True)):
        excess = 0.0
        for index, top in enumerate(tops):
            if targets[index] > top:
                excess += targets[index] - top
                targets[index] = float(top)
        open_bid = sum(b for b, x, top in zip(bids, targets, tops, strict=True) if x < top)
        if open_bid <= 0:
            break
        for index, top in enumerate(tops):
            if targets[index] < top:
                targets[index] += bids[index] / open_bid * excess
    return [round(target) for target in targets]


FLOATS: dict[Policy, Callable[[int, Sequence[Pod]], list[int]]] = {
    Policy.DEMAND_CAPPED: demand_capped,
    Policy.MARKET: market,
    Policy.NASH: nash,
}
