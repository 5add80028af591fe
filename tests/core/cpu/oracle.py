"""A second, independent implementation of `cpu.clear`, from the specification alone.

Fractions and dictionaries, clarity over speed, nothing imported from Fairlead: what the core is
compared with, to the last millicore and reason. One-letter names are the specification's.
"""
# ruff: noqa: N803, N806, PLR0912, SIM114, SIM300, PLC0206
# mypy: ignore-errors

import math
from fractions import Fraction as F  # noqa: N817


def clamp(v, lo, hi):
    return max(lo, min(v, hi))


def fill(pods, target):
    """Least t >= 0 with sum(clamp(base + rate*t, lo, hi)) == target, and the x.

    pods: {uid: (base, rate, lo, hi)} with base <= lo <= hi. t is None where every rate is spent
    before the target: then x is the most there is.
    """
    total, slope, now = F(sum(p[2] for p in pods.values())), F(0), F(0)
    events = []
    for base, rate, lo, hi in pods.values():
        if rate > 0 and hi > lo:
            events += [(F(lo - base) / rate, rate), (F(hi - base) / rate, -rate)]
    events.sort()
    t = F(0) if total >= target else None
    for at, change in events:
        if t is not None:
            break
        reach = total + slope * (at - now)
        if reach >= target:
            t = now + (target - total) / slope
            break
        total, now, slope = reach, at, slope + change
    xs = {}
    for uid, (base, rate, lo, hi) in pods.items():
        if rate == 0:
            xs[uid] = F(lo)
        elif t is None:
            xs[uid] = F(hi)
        else:
            xs[uid] = clamp(base + rate * t, F(lo), F(hi))
    return t, xs


def largest_remainder(xs):
    """Integers with the same total, ties by uid; ceil(x) never passes an integer upper bound."""
    out = {u: math.floor(x) for u, x in xs.items()}
    total = sum(xs.values(), F(0))
    assert total.denominator == 1, total
    left = int(total) - sum(out.values())
    for u in sorted(xs, key=lambda u: (-(xs[u] - out[u]), u))[:left]:
        assert xs[u] != out[u]
        out[u] += 1
    return out


def overload(pods, C):
    """pods: {uid: (m, floor)}: x = max(floor, m*s), sum C."""
    floored = {u for u, (m, f) in pods.items() if m == 0}
    while True:
        act = [u for u in pods if u not in floored]
        rest = C - sum(pods[u][1] for u in floored)
        s = F(rest, sum(pods[u][0] for u in act)) if act else F(0)
        more = {u for u in act if pods[u][0] * s < pods[u][1]}
        if not more:
            break
        floored |= more
    return {u: F(f) if u in floored else m * s for u, (m, f) in pods.items()}


def need_of(p, m, M, room):
    usage, cur = p.get("usage_millicores"), p.get("current_millicores")
    demand = float(p["demand"])
    if not p.get("signal_ok", True):
        if usage is not None:
            return clamp(int(usage * 1.3), m, M), "signal-missing.usage"
        if cur is not None:
            return clamp(cur, m, M), "signal-missing.hold"
        return m, "signal-missing.min"
    if demand == 0 and usage is not None and usage > 0.9 * m:
        return clamp(int(usage * 1.3), m, M), "usage-fallback"
    raw = m + int((M - m) * demand)
    room = room or {"base": 0.10, "per_demand": 0.15, "per_miss": 0.05, "cap": 0.50}
    misses = p.get("headroom_misses", 0)
    factor = min(
        room["cap"], room["base"] + room["per_demand"] * demand + room["per_miss"] * misses
    )
    return clamp(raw + int(raw * factor), m, M), "demand-driven"


def price(t):
    if t is None:
        return 0.0
    if t == 0:
        return None
    try:
        return float(1 / t)
    except OverflowError:
        return None


def decide(doc):
    C = doc["capacity_millicores"]
    policy = doc.get("policy", "demand-capped")
    prev = doc.get("previous_mode")
    band = F(repr(doc.get("hysteresis_band", 0.05)))  # 0.05 means 1/20, not the double next to it
    m, M, w, d, u, lo, hi, reasons = {}, {}, {}, {}, {}, {}, {}, {}
    for p in sorted(doc["pods"], key=lambda p: p["uid"]):
        i = p["uid"]
        reasons[i] = []
        m[i], M[i] = p["min_millicores"], p["max_millicores"]
        w[i] = (
            F(p["weight"]) if p.get("weight") is not None else F(max(1, m[i]))
        )  # the min as given
        d[i] = F(p["demand"])
        if M[i] < m[i]:
            m[i] = M[i]
            reasons[i].append("min-above-max")
        u[i], why = need_of(p, m[i], M[i], doc.get("headroom"))
        reasons[i].append(why)
        low, up = p.get("lower_millicores"), p.get("upper_millicores")
        hi[i] = M[i] if up is None else clamp(up, m[i], M[i])  # the minimum wins over a step bound
        lo[i] = m[i] if low is None else clamp(low, m[i], hi[i])  # upper wins over lower
    n, sm, asked = len(m), sum(m.values()), dict(lo)

    # guardrails that do not fit
    if sum(lo.values()) > C:
        if sm > C:
            new = dict(m)
        else:
            s = F(C - sm, sum(lo.values()) - sm)
            new = largest_remainder({i: m[i] + (lo[i] - m[i]) * s for i in m})
        lo = new

    v = {i: clamp(u[i], lo[i], hi[i]) for i in m}  # what the pod may get of its need
    T = sum(v.values())

    if sm > C:
        mode = "overloaded"
    elif T > C:
        mode = "congested"
    elif n and prev == "congested" and T > C * (1 - band):
        mode = "congested"
    else:
        mode = "uncongested"

    if mode == "overloaded":
        lam = None
        xs = overload({i: (m[i], min(10, C // n, M[i])) for i in m}, C)
    elif policy == "market":
        rate = {i: w[i] * d[i] for i in m}
        if not any(rate.values()):
            rate = dict(w)
        if not any(rate.values()):
            rate = {i: F(1) for i in m}
        t, xs = fill({i: (m[i], rate[i], lo[i], hi[i]) for i in m}, C)
        capped = sum(hi[i] if rate[i] else lo[i] for i in m) <= C
        lam = 0.0 if capped else price(t)
    elif T <= C:
        lam = 0.0
        xs = {i: F(v[i]) for i in m}
    elif policy == "nash":
        t, xs = fill({i: (m[i], w[i], lo[i], v[i]) for i in m}, C)
        lam = price(t)
        if t is None:  # the weighted are full: the weightless share the rest equally
            zero = [i for i in m if w[i] == 0]
            rest = C - sum((xs[i] for i in m if w[i] != 0), F(0))
            xs.update(fill({i: (m[i], F(1), lo[i], v[i]) for i in zero}, rest)[1])
    else:
        lam = None
        _, xs = fill({i: (m[i], F(u[i] - m[i]), lo[i], hi[i]) for i in m}, C)

    x = largest_remainder(xs)

    for i in m:
        if x[i] < asked[i] and asked[i] > m[i]:
            reasons[i].append("guardrail-relaxed")
    return {
        "mode": mode,
        "capacity_millicores": C,
        "total_min": sm,
        "total_need": sum(u.values()),
        "shadow_price": lam,
        "needs": u,
        "allocations": x,
        "reduction_ratio": {i: (u[i] - x[i]) / (u[i] - m[i]) if u[i] != m[i] else 0.0 for i in m},
        "reasons": reasons,
    }
