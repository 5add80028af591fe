"""From what was seen of a run to its figures. Only the window after the warm-up counts."""

from bisect import bisect_left
from itertools import pairwise
from typing import Any

from bench.cpu.peers import percentile
from bench.cpu.runner import Point, Run
from bench.cpu.scenarios import CAPACITY_MILLICORES, NODE_MILLICORES, SLO_S, WEIGHTED

GENERATOR_LAG_MAX_S = 0.005


def measure(run: Run) -> dict[str, Any]:
    first = bisect_left(run.times, run.timing.warmup_s)
    times, points = run.times[first:], run.points[first:]
    pods = {pod.name: measure_pod(run, pod.name, times, points) for pod in run.scenario.pods}
    allocated = sum(pod["allocated_core_s"] for pod in pods.values())
    used = sum(pod["used_core_s"] for pod in pods.values())
    periods = sum(pod["periods"] for pod in pods.values())
    elapsed = times[-1] - times[0]
    moves = sum(pod["reversals"] for pod in pods.values())
    return {
        "scenario": run.scenario.name,
        "arm": run.arm,
        "seconds": elapsed,
        "allocated_core_s": allocated,
        "used_core_s": used,
        "slack": (allocated - used) / allocated,
        "throttled_ratio": sum(p["throttled_periods"] for p in pods.values()) / max(1, periods),
        "reversals_per_pod_minute": moves / len(pods) / (elapsed / 60),
        **service_figures(run),
        **sum_figures(run),
        "agent_cores": run.costs.cpu_s / elapsed,
        "agent_rss_mb": run.costs.rss_bytes / 2**20,
        "outside_cores": run.outside_cores,
        "stolen_cores": run.stolen_cores,
        "sample_gap_s_max": max(b - a for a, b in pairwise(times)),
        "work": run.work,
        "pods": pods,
    }


def measure_pod(
    run: Run, name: str, times: list[float], points: list[dict[str, Point]]
) -> dict[str, Any]:
    """One pod's figures; its limit is the sum of its containers'."""
    pod = next(pod for pod in run.scenario.pods if pod.name == name)
    paths = list(pod.paths().values())
    limits = [pod_limit(point, paths) for point in points]
    allocated = sum(
        (NODE_MILLICORES if limit is None else min(limit, NODE_MILLICORES)) * (after - before)
        for limit, before, after in zip(limits, times, times[1:], strict=False)
    )
    used = sum(_grown(points, path, "usage_us") for path in paths) / 1e6
    # From the beginning on, not only the window: writes are rare.
    written = [pod_limit(point, paths) for point in run.points]
    return {
        "allocated_core_s": allocated / 1000,
        "used_core_s": used,
        "mean_limit_millicores": allocated / (times[-1] - times[0]),
        "mean_used_millicores": used * 1000 / (times[-1] - times[0]),
        "periods": sum(_grown(points, path, "periods") for path in paths),
        "throttled_periods": sum(_grown(points, path, "throttled_periods") for path in paths),
        "throttled_s": sum(_grown(points, path, "throttled_us") for path in paths) / 1e6,
        "reversals": reversals(limits),
        "writes": sum(a != b for a, b in pairwise(written)),
    }


def pod_limit(points: dict[str, Point], paths: list[str]) -> int | None:
    """A pod's limit; None when one of its containers is unlimited."""
    limits = [points[path].limit_millicores for path in paths]
    return None if None in limits else sum(limit or 0 for limit in limits)


def _grown(points: list[dict[str, Point]], path: str, name: str) -> int:
    return int(getattr(points[-1][path].counters, name) - getattr(points[0][path].counters, name))


def reversals(limits: list[int | None]) -> int:
    """How often a written limit changed its direction. Unlimited counts as the node's capacity."""
    turns, direction = 0, 0
    values = [NODE_MILLICORES if limit is None else limit for limit in limits]
    for before, after in pairwise(values):
        if before == after:
            continue
        step = 1 if after > before else -1
        turns += direction == -step
        direction = step
    return turns


def service_figures(run: Run) -> dict[str, Any]:
    """Latency from intended arrival; a second violates when over 1 % of it missed the objective."""
    rows = [row for row in run.requests if row[0] >= run.timing.warmup_s]
    if not rows:
        return {}
    latencies = [row[2] for row in rows]
    seconds: dict[int, list[bool]] = {}
    for intended, _, latency, _ in rows:
        seconds.setdefault(int(intended), []).append(latency > SLO_S)
    return {
        "p50_ms": percentile(latencies, 0.50) * 1000,
        "p99_ms": percentile(latencies, 0.99) * 1000,
        "slo_violation_s": sum(sum(late) > 0.01 * len(late) for late in seconds.values()),
        "requests": len(rows),
        "unanswered": sum(not row[3] for row in rows),
        "generator_lag_p99_ms": percentile([row[1] for row in rows], 0.99) * 1000,
    }


def sum_figures(run: Run) -> dict[str, Any]:
    """Σ of adopted limits against the capacity, from the first moment all pods have a limit."""
    over_s, worst, complete = 0.0, 0, None
    if run.arm in WEIGHTED:
        return guarantee_figures(run)
    for index, points in enumerate(run.points):
        limits = [point.limit_millicores for point in points.values()]
        if complete is None and None in limits:
            continue
        complete = run.times[index] if complete is None else complete
        total = sum(limit or 0 for limit in limits)
        worst = max(worst, total)
        after = run.times[index + 1] if index + 1 < len(run.times) else run.times[index]
        if total > CAPACITY_MILLICORES:
            over_s += after - run.times[index]
    return {"over_capacity_s": over_s, "limits_sum_max": worst, "complete_apply_s": complete}


def guarantee_figures(run: Run) -> dict[str, Any]:
    """The same of the guarantees, from the moment that they first changed: those before are the
    requests' weights."""
    sums = [sum(point.guarantee_millicores for point in points.values()) for points in run.points]
    first = next((index for index, total in enumerate(sums) if total != sums[0]), None)
    if first is None:
        return {"over_capacity_s": 0.0, "limits_sum_max": 0, "complete_apply_s": None}
    # The weights are written one by one within a moment.
    spans = zip(run.times[first + 1 :], run.times[first + 2 :], sums[first + 1 :], strict=False)
    return {
        "over_capacity_s": sum(b - a for a, b, total in spans if total > CAPACITY_MILLICORES),
        "limits_sum_max": max(sums[first + 1 :], default=0),
        "complete_apply_s": run.times[first],
    }


def usable(figures: dict[str, Any]) -> bool:
    """Whether the generator kept its word."""
    return bool(figures.get("generator_lag_p99_ms", 0.0) <= GENERATOR_LAG_MAX_S * 1000)


def series(run: Run) -> dict[str, Any]:
    """Limit, usage and throttling per pod at 2 Hz, for the pictures."""
    step = 5
    drawn: dict[str, Any] = {"t": [round(at_s, 2) for at_s in run.times[::step][1:]], "pods": {}}
    for pod in run.scenario.pods:
        paths = list(pod.paths().values())
        rows: list[list[float | None]] = []
        picked = list(zip(run.times[::step], run.points[::step], strict=True))
        for (at, was), (then, is_) in pairwise(picked):
            used = sum(is_[p].counters.usage_us - was[p].counters.usage_us for p in paths)
            held = sum(
                is_[p].counters.throttled_periods - was[p].counters.throttled_periods for p in paths
            )
            rows.append([pod_limit(is_, paths), round(used / 1000 / (then - at), 1), held])
        drawn["pods"][pod.name] = rows
    return drawn
