"""A second, independent implementation of the CPU decisions, from the specification alone.

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


def split(grant, containers):
    """{name: millicores} by want, none above the user's limit, ten each if there is enough."""
    if not containers:
        return {}
    cap = {
        c["name"]: grant
        if c["original_limit_millicores"] is None
        else min(grant, c["original_limit_millicores"])
        for c in containers
    }
    least = min(10, grant // len(containers))
    claims = {
        c["name"]: (0, F(max(1, c["want_millicores"])), min(least, cap[c["name"]]), cap[c["name"]])
        for c in containers
    }
    return largest_remainder(fill(claims, grant)[1])


def limit_of(pod):
    limits = [c["current_millicores"] for c in pod["containers"]]
    return None if not limits or None in limits else sum(limits)


def allocate(doc):
    """`cpu.allocate` in four steps: misses, a free clearing, bounds, a bounded clearing."""
    now, rails, room = doc["now_ms"], doc["guardrails"], doc["headroom"]
    spare = F(room["cap"]) - F(room["base"])
    most = math.ceil(round(float(spare) / room["per_miss"], 6)) if room["per_miss"] else 0
    pods = {p["uid"]: p for p in doc["pods"]}
    memory, claims = {}, {}
    for u, p in pods.items():
        count, at = p["headroom_misses"], p["missed_ms"]
        calm = doc["previous_mode"] in (None, "uncongested")
        settled = p["changed_ms"] is not None and now - p["changed_ms"] >= rails["cooldown_ms"]
        if calm and settled and (p["throttling"] or 0) > 0.3:
            count, at = count + 1, now
        elif count and at is not None and now - at >= 60_000:
            count, at = count - 1, now
        memory[u] = {"headroom_misses": min(count, max(0, most)), "missed_ms": at}
        claims[u] = {
            **{
                k: p[k]
                for k in (
                    "uid",
                    "min_millicores",
                    "max_millicores",
                    "demand",
                    "weight",
                    "usage_millicores",
                    "signal_ok",
                )
            },
            "current_millicores": limit_of(p),
            "headroom_misses": memory[u]["headroom_misses"],
        }
    free = decide({**doc, "pods": list(claims.values())})
    x, C = free["allocations"], doc["capacity_millicores"]

    extra = {}
    for u in sorted(pods):
        cur, young = limit_of(pods[u]), now - pods[u]["first_seen_ms"] < rails["grace_ms"]
        if cur is not None and cur > x[u] and (young or not pods[u]["adopted"]):
            extra[u] = cur - x[u]
    over, asked = C - sum(x.values()), sum(extra.values())
    if asked > over:
        extra = largest_remainder({u: F(e * over, asked) for u, e in extra.items()})

    bounds = {}
    for u, p in pods.items():
        cur = limit_of(p)
        if cur is None:
            lo, hi, why = None, None, ["unlimited"]
        elif not p["adopted"]:
            lo, hi, why = None, None, ["newcomer"]
        elif p["changed_ms"] is not None and now - p["changed_ms"] < rails["cooldown_ms"]:
            lo, hi, why = cur, cur, ["cooldown"]
        elif abs(x[u] - cur) <= rails["dead_band"] * cur:
            lo, hi, why = cur, cur, ["dead-band"]
        else:
            k, step = rails["step_ratio"], rails["step_millicores"]
            lo = max(math.ceil(cur / k), cur - step)
            hi, why = min(math.floor(cur * k), cur + step, 10**12), ["step"]
        if u in extra and x[u] + extra[u] > (lo or 0):
            lo, why = x[u] + extra[u], [*why, "grace"]
            hi = None if hi is None else max(hi, lo)
        bounds[u] = {"lower_millicores": lo, "upper_millicores": hi, "reasons": why}
        claims[u] |= {"lower_millicores": lo, "upper_millicores": hi}
    plan = decide({**doc, "pods": list(claims.values())})

    splits, phases = {}, {"decrease": [], "newcomer": [], "increase": []}
    for u in sorted(pods):
        p, g = pods[u], plan["allocations"][u]
        parts = split(g, p["containers"])
        have = {c["name"]: c["current_millicores"] for c in p["containers"]}
        if limit_of(p) == g and all(
            abs(parts[n] - have[n]) <= rails["split_band"] * have[n] for n in have
        ):
            parts = have
        splits[u] = parts
        for n in sorted(parts):
            was, new = have[n], parts[n]
            falls = was is None or new < was
            if p["adopted"] and was == new:
                continue
            phase = "increase" if not falls else "decrease" if p["adopted"] else "newcomer"
            write = {"uid": u, "container": n, "before": was, "after": new, "phase": phase}
            phases[phase].append(write)
    return {
        **plan,
        "mode": free["mode"],
        "shadow_price": free["shadow_price"],
        "bounds": bounds,
        "split": splits,
        "writes": [w for phase in phases.values() for w in phase],
        "memory": memory,
    }
