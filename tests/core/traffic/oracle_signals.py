"""Signals of the independent `traffic.tick`: time, stall, time to failure, errors, pressure.

One function per paragraph of the specification; the state is a plain dictionary that only the
oracle reads. Nothing is imported from Fairlead.
"""
# mypy: ignore-errors

import math
from fractions import Fraction as F  # noqa: N817

EPSILON = 1e-9


def clock(state, now_ms):
    """(virtual clock in ms, whether this tick is later than the one before).

    Equal or backward time is accepted and counts as no elapsed time.
    """
    if state is None:
        return 0, True
    elapsed = max(0, now_ms - state["now_ms"])
    return state["clock"] + elapsed, elapsed > 0


def stalled_now(psi, theta):
    """Strictly above theta in cpu some, mem some, mem full or io full; io some never stalls."""
    psi = psi or {}
    fields = ("cpu_some", "mem_some", "mem_full", "io_full")
    return any(psi.get(name) is not None and psi[name] > theta[name] for name in fields)


def stall(state, nodes, config, later):
    """({node: its samples, oldest first}, whether any node has stalled for p of the last m)."""
    before = state["psi"] if state else {}
    present = {node["id"]: node.get("psi") for node in nodes}
    samples = {}
    for name in {*before, *present}:
        window = list(before.get(name, []))
        if later:  # an absent sample counts as unstalled
            window.append(stalled_now(present.get(name), config["theta"]))
        window = window[-config["stall_m"] :]
        if name in present or any(window):
            samples[name] = window
    need = F(repr(config["stall_p"])) * config["stall_m"]  # 0.7 means seven tenths
    return samples, any(sum(window) >= need for window in samples.values())


def time_to_failure(state, nodes, config, now, later):
    """({(node, resource): [(when, ewma), ...]}, the least TTF in seconds or None, R < 0 anywhere).

    EWMA inside the velocity only; what remains is taken from raw usage. A resource that is no
    longer listed is forgotten; one that is listed without a reading is not.
    """
    before, usage = (state["usage"] if state else {}), {}
    window, alpha = config["derivative_window_ms"], config["alpha"]
    known, overdrawn = [], False
    for node in nodes:
        for resource in node.get("resources", []):
            if resource["name"] == "cpu":
                continue
            key = (node["id"], resource["name"])
            series = usage[key] = list(before.get(key, []))
            if resource["used"] is None:
                continue
            used = float(resource["used"])
            if not series:
                series.append((now, used))
            elif later:
                series.append((now, alpha * used + (1 - alpha) * series[-1][1]))
            if resource["limit"] is None:
                continue
            remaining = resource["limit"] - used
            if remaining <= 0:
                known.append(0.0)
                overdrawn = overdrawn or remaining < 0
                continue
            past = [ewma for when, ewma in series if when <= now - window]
            if not past:
                continue  # less than the window of history: unknown
            velocity = max(0.0, (series[-1][1] - past[-1]) / (window / 1000))
            known.append(min(config["ttf_max_s"], remaining / max(EPSILON, velocity)))
    return usage, min(known, default=None), overdrawn


def wilson_lower(rate, count, z):
    """The lower end of Wilson's interval for `rate` seen in `count` requests; of none, 0."""
    if count == 0 or rate == 0:
        return 0.0
    centre = rate + z * z / (2 * count)
    spread = z * math.sqrt(rate * (1 - rate) / count + z * z / (4 * count * count))
    return max(0.0, (centre - spread) / (1 + z * z / count))


def error_rates(state, backends, now, config):
    """({id: rate or None where it is missing}, {id: (last counted rate, when)}).

    Raw from a minimum volume, Wilson's lower bound below it; a backend with 0 requests keeps its
    last counted rate for a while.
    """
    before = state["counted"] if state else {}
    rates, counted = {}, {}
    for backend in backends:
        name, raw, count = backend["id"], backend.get("error_rate"), backend.get("requests")
        last = before.get(name)
        if count == 0 and last is not None and now - last[1] <= config["error_keep_ms"]:
            rates[name], counted[name] = last[0], last
        elif raw is None or count is None:
            rates[name] = None
            if last is not None:
                counted[name] = last
        elif count == 0:
            rates[name] = 0.0
        else:
            enough = count >= config["error_requests_min"]
            rates[name] = raw if enough else wilson_lower(raw, count, config["wilson_z"])
            counted[name] = (rates[name], now)
    return rates, counted


def has_errors(backend):
    """Errors are signalled now; a rate kept from before is no signal of now."""
    return backend.get("error_rate") is not None and backend.get("requests") is not None


def impute(values):
    """({id: value, the group's worst where it is missing}, how much is missing).

    The second is "none", "some" or "all"; with all missing there is nothing to impute.
    """
    present = [value for value in values.values() if value is not None]
    if not present:
        return dict.fromkeys(values), "all" if values else "none"
    missing = "some" if len(present) < len(values) else "none"
    return {name: max(present) if v is None else v for name, v in values.items()}, missing


def pressures(backends, rates, layers, config):
    """({id: labelled terms and total}, what is missing, the ids whose E is above eta).

    What is missing is a set of "latency", "errors", "queue" and "both"; `both` stands for the
    first two where no backend has either.
    """
    queue, no_queue = impute({b["id"]: b.get("queue") for b in backends})
    latency, no_latency = impute({b["id"]: b.get("p95_ms") for b in backends})
    errors, no_errors = impute(rates)
    missing = set()
    if backends and all(b.get("p95_ms") is None and not has_errors(b) for b in backends):
        missing.add("both")
    else:
        missing |= {"latency"} if no_latency != "none" else set()
        missing |= {"errors"} if no_errors != "none" else set()
    missing |= {"queue"} if no_queue != "none" else set()
    out = {}
    for backend in backends:
        name = backend["id"]
        terms = {"queue": 0.0, "latency": 0.0, "error": 0.0, "penalty": 0.0}
        if queue[name] is not None:
            terms["queue"] = config["w_q"] * (queue[name] / config["q_ref"])
        if latency[name] is not None:
            terms["latency"] = config["w_l"] * (latency[name] / config["l_ref_ms"])
        if errors[name] is not None:
            relative = max(0.0, min(errors[name] / config["e_ref"], config["e_max"]))
            terms["error"] = config["w_e"] * relative
            terms["penalty"] = config["k_e"] if errors[name] > config["eta"] else 0.0
        terms.update(layers[name])
        total = 0.0
        for value in terms.values():
            total += value
        out[name] = {**terms, "total": max(total, config["p_min"])}
    carries = {name for name in errors if errors[name] is not None and errors[name] > config["eta"]}
    return out, missing, carries
