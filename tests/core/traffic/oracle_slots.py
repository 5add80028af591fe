"""Weights, targets and slots of the independent `traffic.tick`.

Nothing is imported from Fairlead. Weights are doubles, as the contract shows them; what is made of
them is exact, in fractions. `routable` is what is not isolated; every tie goes by id.
"""
# mypy: ignore-errors

import math
from fractions import Fraction as F  # noqa: N817


def largest_remainder(total, shares):
    """Divide `total` in proportion to {id: share}; leftovers to the largest remainder, then id."""
    whole = sum(F(share) for share in shares.values())
    quotas = {name: F(total) * F(share) / whole for name, share in shares.items()}
    out = {name: math.floor(quota) for name, quota in quotas.items()}
    order = sorted(quotas, key=lambda name: (out[name] - quotas[name], name))
    for name in order[: total - sum(out.values())]:
        out[name] += 1
    return out


def normalised(shares):
    """The same with a sum of 1. Doubles, added in the order of the ids, as in the output."""
    whole = 0.0
    for name in sorted(shares):
        whole += shares[name]
    return {name: value / whole for name, value in shares.items()}


def inverse_weights(pressure, routable):
    """w in proportion to 1/P over the routable."""
    return normalised({name: 1.0 / pressure[name]["total"] for name in routable})


def held_weights(before, fresh):
    """Last tick's weights of those still routable; the fresh ones where nothing is left of them."""
    held = {name: before.get(name, 0.0) for name in fresh}
    if not any(held.values()):
        return fresh
    return held if math.isclose(sum(held.values()), 1.0) else normalised(held)


def warm_shares(weights, ages, warmup_ms):
    """w times age/T_warmup, renormalised; as they are where everybody is a newborn, or nobody."""
    factor = {}
    for name in weights:
        age = ages[name]
        factor[name] = 1.0 if age is None or age >= warmup_ms else age / warmup_ms
    scaled = {name: weights[name] * factor[name] for name in weights}
    newborn = [value < 1 for value in factor.values()]
    if all(newborn) or not any(newborn) or not any(scaled.values()):
        return weights
    return normalised(scaled)


def hand_out(freed, slots, target):
    """Give freed slots to those under their target, in proportion to what they lack."""
    lack = {name: target[name] - slots[name] for name in target if target[name] > slots[name]}
    out = dict(slots)
    if freed:
        for name, extra in largest_remainder(freed, lack).items():
            out[name] += extra
    return out


def slew(slots, target, delta_max):
    """Gives and takes within the bound; the smaller total moves, the larger side is apportioned."""
    gives = {n: min(slots[n] - target[n], delta_max) for n in slots if slots[n] > target[n]}
    takes = {n: min(target[n] - slots[n], delta_max) for n in slots if slots[n] < target[n]}
    moved = min(sum(gives.values()), sum(takes.values()))
    out = dict(slots)
    if moved:
        for name, less in largest_remainder(moved, gives).items():
            out[name] -= less
        for name, more in largest_remainder(moved, takes).items():
            out[name] += more
    return out


def delta_max(config, crisis, halvings):
    """max(1, S/64), or the override; x4 in crisis; halved by the guard; floored, at least 1."""
    base = max(F(1), F(config["s_total"], 64))
    if config["delta_max"] is not None:
        base = F(config["delta_max"])
    return max(1, math.floor(base * (F(config["crisis_factor"]) if crisis else 1) / 2**halvings))


def skew_of(shares, weights):
    """The largest distance between a share and its weight; everybody listed counts."""
    return max(abs(shares[name] - weights[name]) for name in weights)


def predicted_skew(slots, weights, s_total):
    return skew_of({name: slots[name] / s_total for name in weights}, weights)
