"""A second, independent implementation of `traffic.tick`, from the specification alone.

Dictionaries and fractions, clarity over speed, nothing imported from Fairlead. Its state is its
own, so whole sequences are compared, each side with its own state, everything but the state.
"""
# ruff: noqa: PLR0912
# mypy: ignore-errors

from tests.core.traffic import oracle_signals as signals
from tests.core.traffic import oracle_slots as table
from tests.core.traffic.oracle_input import DEFAULTS, THETA, Bad, check
from tests.core.traffic.oracle_layers import layer_terms

__all__ = ["Bad", "tick"]

HALVINGS_MAX = 8  # so that the guard's bound is whole again within 40 s
LEVELS = ("normal", "soft", "hard")
NORMAL, SOFT, HARD = range(3)


def tick(document):
    """One tick: the output document, with a state that only this function understands."""
    check(document)
    config = {**DEFAULTS, **document.get("config", {})}
    config["theta"] = {**THETA, **config.get("theta", {})}
    state = document.get("state")
    backends = sorted(document["backends"], key=lambda backend: backend["id"])
    nodes = document.get("nodes", [])
    retry = document.get("retry_index")
    ids = [backend["id"] for backend in backends]
    routable = [backend["id"] for backend in backends if not backend.get("isolated", False)]
    monopoly = len(ids) == 1 and routable == ids
    s_total = config["s_total"]

    now, later = signals.clock(state, document["now_ms"])
    psi, stall = signals.stall(state, nodes, config, later)
    usage, ttf, overdrawn = signals.time_to_failure(state, nodes, config, now, later)
    rates, counted = signals.error_rates(state, backends, now, config)
    layers = layer_terms(backends, nodes, config)
    pressure, missing, carries = signals.pressures(backends, rates, layers, config)
    blind = "both" in missing

    # Weights and targets.
    weights = dict.fromkeys(ids, 0.0)
    shares = dict(weights)
    target = dict.fromkeys(ids, 0)
    if routable:
        fresh = table.inverse_weights(pressure, routable)
        if blind and state is not None:
            fresh = table.held_weights(state["weights"], fresh)
        weights.update(fresh)
        ages = {backend["id"]: backend.get("age_ms") for backend in backends}
        shares.update(table.warm_shares(fresh, ages, config["warmup_ms"]))
        target.update(table.largest_remainder(s_total, {name: shares[name] for name in routable}))
    elif ids:
        least_bad = min(ids, key=lambda name: (pressure[name]["total"], name))
        target[least_bad] = s_total

    # Triggers that do not depend on the slots.
    hard = not routable or stall or overdrawn
    hard = hard or (ttf is not None and ttf < config["t_hard_s"])
    hard = hard or (retry is not None and retry >= config["retry_hard"])
    soft = blind or (ttf is not None and ttf < config["t_safe_s"])
    storm = retry is not None and retry >= config["retry_soft"]
    soft = soft or storm

    # What bypasses gate and slew.
    first = state is None
    before = {} if first else state["slots"]
    bypass = []
    if before and sum(before.values()) != s_total:  # the number of slots was changed
        before = table.largest_remainder(s_total, before)
    if first or not routable or not state["routable"]:
        slots = dict(target)
        if not first:
            lost = {name for name in before if before[name] > slots.get(name, 0)}
            placed = {name for name in routable if slots[name] > before.get(name, 0)}
            bypass = sorted(lost | placed)
    else:
        slots = {name: before.get(name, 0) if name in routable else 0 for name in ids}
        bypass = sorted(name for name in before if before[name] and name not in routable)
        slots = table.hand_out(sum(before[name] for name in bypass), slots, target)

    # The gate of the group.
    apart = max((abs(shares[n] - slots[n] / s_total) for n in ids), default=0.0)
    over_since, gate_open = None, False
    if apart > config["delta_w"] and routable:
        over_since = now if first or state["over_since"] is None else state["over_since"]
        gate_open = now - over_since >= config["t_hold_ms"] or (not first and state["gate_open"])

    # Would calm end in this tick? Then the step is skipped.
    mode = NORMAL if first else state["mode"]
    calm_since = None if first else state["calm_since"]
    quiet_level = (mode == HARD and not hard) or (mode == SOFT and not hard and not soft)
    if quiet_level and calm_since is None:
        calm_since = now
    ending = quiet_level and now - calm_since >= config["t_recover_min_ms"]
    crisis = hard or (mode == HARD and not ending)

    # Skew and the step, under the guard.
    requests = [backend.get("requests") for backend in backends]
    total_requests = sum(count for count in requests if count is not None)
    skew = None
    judged = not monopoly and None not in requests
    if judged and total_requests >= config["skew_requests_min"]:
        seen = {b["id"]: b["requests"] / total_requests for b in backends}
        skew = table.skew_of(seen, weights)
    halvings, guarded_at = (0, None) if first else (state["halvings"], state["guarded_at"])
    guard_hold = False
    if halvings:
        quiet = now - guarded_at
        doublings = quiet // config["guard_quiet_ms"]
        halvings = max(0, halvings - (doublings - state["doublings"]))
    else:
        doublings = 0
    if routable and gate_open and not bypass and not first and not blind and not ending:
        bound = table.delta_max(config, crisis, halvings)
        stepped = table.slew(slots, target, bound)
        if worse(stepped, slots, weights, skew, config):
            if bound > 1 and halvings < HALVINGS_MAX:
                halvings += 1
            guarded_at, doublings = now, 0
            stepped = table.slew(slots, target, table.delta_max(config, crisis, halvings))
            if worse(stepped, slots, weights, skew, config):
                stepped, guard_hold = slots, True
        slots = stepped
    changed = changed_ids({} if first else state["slots"], slots)
    moved = bool(changed & set(ids)) and not first  # the first placement is not a move

    # Conductance, on the slots after the step, and the admission it leads to.
    conductance = config["p_ref"] * sum(
        (slots[n] / s_total) / max(pressure[n]["total"], config["p_min"]) for n in ids
    )
    thin = conductance < config["g_min"]
    soft = soft or thin
    admission = admit(state, config, now, {"hard": hard, "soft": soft})
    output = {"mode": LEVELS[admission["mode"]], "rate_per_s": None, "burst": None}
    if admission["mode"] == SOFT:
        output.update(rate_per_s=admission["rate"], burst=config["bucket_burst"])
    elif admission["mode"] == HARD:
        output.update(
            rate_per_s=max(config["drip_rate_min"], config["drip_share"] * total_requests)
        )
        output.update(burst=1)
    regime = ("laminar", "recovery" if admission["after_hard"] else "transition", "crisis")

    reasons = name_reasons(
        no_backends=not ids,
        all_isolated=bool(ids) and not routable,
        psi_stall=stall,
        ttf=overdrawn or (ttf is not None and ttf < config["t_safe_s"]),
        retry_storm=storm,
        errors=any(name in carries for name in routable),
        conductance=thin,
        skew=skew is not None and skew > config["skew_max"],
        missing=missing,
        isolation=len(routable) < len(ids),
        guard_hold=guard_hold,
        pressure=moving_term(pressure, state["slots"], slots) if moved else None,
        monopoly=monopoly,
    )
    return {
        "state": {
            "now_ms": document["now_ms"],
            "clock": now,
            "psi": psi,
            "usage": usage,
            "counted": counted,
            "weights": weights,
            "slots": slots,
            "routable": bool(routable),
            "over_since": over_since,
            "gate_open": gate_open,
            "halvings": halvings,
            "guarded_at": guarded_at,
            "doublings": doublings,
            **admission,
        },
        "slots": slots,
        "weights": weights,
        "target": target,
        "pressure": pressure,
        "admission": output,
        "regime": regime[admission["mode"]],
        "ttf_s": ttf,
        "stall": stall,
        "skew": skew,
        "conductance": conductance,
        "applied": first or bool(changed),
        "reasons": reasons,
        "scale_hint": monopoly,
        "bypass": bypass,
    }


def changed_ids(before, after):
    """Whose slots differ; an id without slots is as good as no id."""
    return {name for name in {*before, *after} if before.get(name, 0) != after.get(name, 0)}


def worse(stepped, slots, weights, skew, config):
    """The step worsens skew by more than epsilon; undefined skew, or no step, is never worse."""
    if skew is None or stepped == slots:
        return False
    predicted = table.predicted_skew(stepped, weights, config["s_total"])
    return predicted > skew + config["epsilon_skew"]


def moving_term(pressure, before, slots):
    """The term that moved the slots most: how far it is from the group's mean, per moved slot.

    Where no term differs from its mean, the largest one; then errors, latency, queue.
    """
    ranked = []
    for label, parts in (
        ("errors", ("error", "penalty")),
        ("latency", ("latency",)),
        ("queue", ("queue",)),
    ):
        values = {name: sum(pressure[name][part] for part in parts) for name in slots}
        mean = sum(values.values()) / len(values)
        moved = sum(abs(slots[n] - before.get(n, 0)) * abs(values[n] - mean) for n in slots)
        if min(values.values()) == max(values.values()):
            moved = 0.0
        ranked.append((moved, sum(values.values()), label))
    return max(ranked, key=lambda each: each[:2])[2]


def admit(state, config, now, triggers):
    """Escalate at once, relax one level after calm; in soft, the rate of the bucket."""
    before = {} if state is None else state
    mode, calm_since = before.get("mode", NORMAL), before.get("calm_since")
    after_hard, was_triggered = before.get("after_hard", False), before.get("triggered", False)
    rate = before.get("rate")
    level = HARD if triggers["hard"] else SOFT if triggers["soft"] else NORMAL
    full = config["bucket_rate"]
    if level > mode:
        mode, after_hard, calm_since, triggered = level, False, None, True
    elif level == mode and mode != NORMAL:
        calm_since, triggered = None, True
        if mode == SOFT and after_hard and not was_triggered:
            rate = rate / 2
    elif mode == NORMAL:
        triggered = False
    else:
        triggered = False
        calm_since = now if calm_since is None else calm_since
        if now - calm_since >= config["t_recover_min_ms"]:
            after_hard = mode == HARD
            mode -= 1
            triggered = mode == SOFT and level == SOFT
            calm_since = now if mode != NORMAL and not triggered else None
            rate = config["recover_share"] * full
        elif mode == SOFT and after_hard:
            grown = (now - max(calm_since, before["clock"])) / 1000
            rate = min(full, rate + config["recover_share"] * full * grown)
    if mode != SOFT:
        after_hard, rate = False, None
    elif not after_hard:
        rate = full
    return {
        "mode": mode,
        "calm_since": calm_since,
        "after_hard": after_hard,
        "triggered": triggered,
        "rate": rate,
    }


def name_reasons(*, missing, **active):
    """The top two conditions active now, in priority order; `steady` where there is nothing."""
    order = [
        "no_backends",
        "all_isolated",
        "psi_stall",
        "ttf",
        "retry_storm",
        "errors",
        "conductance",
        "skew",
    ]
    found = [name for name in order if active[name]]
    for name in ("latency", "errors", "queue", "both"):
        if name in missing:
            found.append(f"signal_missing.{name}")
    found += [name for name in ("isolation", "guard_hold") if active[name]]
    found += [f"pressure.{active['pressure']}"] if active["pressure"] else []
    found += ["monopoly"] if active["monopoly"] else []
    if found in ([], ["monopoly"]):
        found.append("steady")
    return found[:2]
