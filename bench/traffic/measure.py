"""From what was seen of a run to its figures."""

from bisect import bisect_left
from itertools import pairwise
from typing import Any

from bench.cpu.peers import percentile
from bench.traffic.generator import BROKEN, ERROR, OK, REFUSED, TIMEOUT
from bench.traffic.runner import Row, Run, Tick
from bench.traffic.scenarios import NAMES, SICK, SLO_S

GENERATOR_LAG_MAX_S = 0.005
REACTION_S = 5.0
"""How long a governor may take; what is called settled begins then."""
SMALL_SHARE = 0.05
RESTORED = 0.8
"""Of the even share: from then on the backend counts as restored."""
SPAN_S, STEP_S = 2.0, 0.1
"""A share is of the requests of 2 s: of so many, a twentieth is about 17."""
OPEN_WITHIN_S = 10.0
"""After a rush or a brown-out: from then on nothing should be refused."""
CALM_SPAN_S, FINE_SHARE = 2.0, 0.95
"""After a rush the service is back with the first 2 s of which so many requests are good."""


def measure(run: Run) -> dict[str, Any]:
    begin, end = run.scenario.window
    elapsed = end - begin
    settled = (begin + REACTION_S, end)
    return {
        "scenario": run.scenario.name,
        "arm": run.arm,
        "seconds": elapsed,
        **client_figures(run.rows, begin, end),
        "settled": client_figures(run.rows, *settled) if end > settled[0] else None,
        **share_figures(run),
        **recovery_figures(run),
        **decision_figures(run),
        "cpu_s_per_10k": run.arm_cpu_s / max(1, len(run.rows)) * 10_000,
        **_agent_figures(run),
        "generator_lag_p99_ms": percentile([row.lag_s for row in run.rows], 0.99) * 1000,
        "outside_cores": run.outside_cores,
        "stolen_cores": run.stolen_cores,
    }


def _agent_figures(run: Run) -> dict[str, float]:
    """Where one agent runs all the time: its share of a core, and what its proxy used."""
    if not run.agent_cpu_s or run.scenario.kill_agent_s is not None:
        return {}
    proxy_s = max(0.0, run.arm_cpu_s - run.agent_cpu_s)
    return {
        "agent_cores": run.agent_cpu_s / run.lasted_s,
        "proxy_cpu_s_per_10k": proxy_s / max(1, len(run.rows)) * 10_000,
    }


def client_figures(rows: list[Row], begin: float, end: float) -> dict[str, Any]:
    """What clients saw of the requests that were meant for a time. Latencies are of successes and
    of those who gave up waiting; a refusal or a 500 that comes at once is not fast, it is counted.
    """
    meant = [row for row in rows if begin <= row.at_s < end]
    counts = dict.fromkeys((OK, ERROR, REFUSED, TIMEOUT, BROKEN), 0)
    for row in meant:
        counts[row.outcome] += 1
    waited = [row.took_s for row in meant if row.outcome in (OK, TIMEOUT)]
    good = sum(row.outcome == OK and row.took_s <= SLO_S for row in meant)
    failed = counts[ERROR] + counts[TIMEOUT] + counts[BROKEN]
    return {
        "requests": len(meant),
        "goodput_per_s": good / (end - begin),
        "good_share": good / max(1, len(meant)),
        "p50_ms": percentile(waited, 0.50) * 1000,
        "p99_ms": percentile(waited, 0.99) * 1000,
        "p999_ms": percentile(waited, 0.999) * 1000,
        "errors": counts[ERROR],
        "timeouts": counts[TIMEOUT],
        "broken": counts[BROKEN],
        "failed": failed,
        "refused": counts[REFUSED],
        "late": counts[OK] - good,
    }


def share_figures(run: Run) -> dict[str, Any]:
    """Seconds from the fault to a small share, and from its end to about the usual one."""
    if run.scenario.sick is None:
        return {}
    sick_s, well_s = run.scenario.sick
    small = small_from(run, sick_s, well_s)
    even = RESTORED / len(NAMES)
    restored = first_share(run, well_s, run.scenario.until_s, lambda share: share >= even)
    returned = first_share(run, well_s, run.scenario.until_s, lambda share: share > SMALL_SHARE)
    return {
        "sick_share": share(run, sick_s, well_s),
        "small_after_s": small,
        "returned_after_s": returned,
        "restored_after_s": restored,
    }


def recovery_figures(run: Run) -> dict[str, Any]:
    """Seconds from the end of the rush until requests are good again, and how often was tried."""
    calm_s = run.scenario.calm_s
    if calm_s is None:
        return {}
    begin, end = run.scenario.window
    tries = [row.tries for row in run.rows if begin <= row.at_s < end]
    rest_s = run.scenario.until_s - CALM_SPAN_S - calm_s
    steps = range(int(rest_s / STEP_S + 1e-9) + 1)
    spans = ((step * STEP_S, calm_s + step * STEP_S) for step in steps)
    fine = (
        after_s
        for after_s, at_s in spans
        if client_figures(run.rows, at_s, at_s + CALM_SPAN_S)["good_share"] >= FINE_SHARE
    )
    return {
        "recovered_after_s": next(fine, None),
        "refused_later": client_figures(run.rows, calm_s + OPEN_WITHIN_S, run.scenario.until_s)[
            "refused"
        ],
        "tries_per_request": sum(tries) / max(1, len(tries)),
    }


def share(run: Run, begin: float, end: float) -> float:
    """The unhealthy backend's part of all requests that came to backends in a time."""
    came = {
        name: bisect_left(arrivals, end) - bisect_left(arrivals, begin)
        for name, arrivals in run.arrivals.items()
    }
    return came[SICK] / max(1, sum(came.values()))


def small_from(run: Run, begin: float, end: float) -> float | None:
    """From when on, counted from `begin`, it stays small: on the whole, and in all but a tenth of
    the spans, for who is probed with real requests gets a handful at a time. None: never.
    """
    steps = int((end - SPAN_S - begin) / STEP_S + 1e-9)
    large = [
        share(run, begin + step * STEP_S, begin + step * STEP_S + SPAN_S) > SMALL_SHARE
        for step in range(steps + 1)
    ]
    for step in range(steps + 1):
        at_s, rest = begin + step * STEP_S, large[step:]
        if not rest[0] and share(run, at_s, end) <= SMALL_SHARE and 10 * sum(rest) <= len(rest):
            return step * STEP_S
    return None


def first_share(run: Run, begin: float, end: float, fits: Any) -> float | None:
    """When, counted from `begin`, a span starts whose share fits; None: in no span before `end`."""
    steps = int((end - SPAN_S - begin) / STEP_S + 1e-9)
    for step in range(steps + 1):
        at_s = begin + step * STEP_S
        if fits(share(run, at_s, at_s + SPAN_S)):
            return step * STEP_S
    return None


def decision_figures(run: Run) -> dict[str, Any]:
    """How much our agent moved, from the beginning of the window on; others tell nothing."""
    begin, _ = run.scenario.window
    ticks = [tick for tick in run.ticks if tick.at_s >= begin]
    if run.scenario.kill_agent_s is not None or len(ticks) < 2:
        return {}
    minutes = (ticks[-1].at_s - ticks[0].at_s) / 60
    return {
        "slot_churn_per_min": sum(_moved(a, b) for a, b in pairwise(ticks)) / minutes,
        "mode_transitions_per_min": sum(a.mode != b.mode for a, b in pairwise(ticks)) / minutes,
        "restricted_s": sum(b.at_s - a.at_s for a, b in pairwise(ticks) if a.mode != "normal"),
        "ticks": len(ticks),
    }


def _moved(before: Tick, after: Tick) -> float:
    """Slots that changed hands."""
    return sum(abs(after.slots[id] - before.slots.get(id, 0)) for id in after.slots) / 2


def usable(figures: dict[str, Any]) -> bool:
    """Whether the generator kept its word."""
    return bool(figures["generator_lag_p99_ms"] <= GENERATOR_LAG_MAX_S * 1000)


def series(run: Run) -> dict[str, Any]:
    """Twice a second: each backend's arrivals, and what clients saw, for the pictures."""
    step = 0.5
    count = int(run.scenario.until_s / step)
    came = {
        name: [
            bisect_left(arrivals, (i + 1) * step) - bisect_left(arrivals, i * step)
            for i in range(count)
        ]
        for name, arrivals in run.arrivals.items()
    }
    seen = [[0, 0, 0, 0] for _ in range(count)]
    for row in run.rows:
        place = min(int(row.at_s / step), count - 1)
        good = row.outcome == OK and row.took_s <= SLO_S
        kind = 0 if good else 1 if row.outcome == OK else 2 if row.outcome == REFUSED else 3
        seen[place][kind] += 1
    modes = [
        [round(after.at_s, 1), after.mode]
        for before, after in pairwise(run.ticks)
        if before.mode != after.mode
    ]
    return {"step_s": step, "came": came, "good_late_refused_failed": seen, "modes": modes}
