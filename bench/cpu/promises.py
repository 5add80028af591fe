"""What the governor promises on real cgroups, judged on the medians of one run.

Every promise is judged for each of our policies by itself, with its numbers, passed or not.
"""

from collections.abc import Iterator
from statistics import median
from typing import Any

from bench.cpu.scenarios import OURS, UNLIMITED, WEIGHTED
from bench.side_by_side import Comparison, Figures, Verdict, as_lines, compare

LIMIT_BASED = ("static-p95", "static-2x", "vpa-24h", "vpa-10min", "mbcas", "captain")
VPA = ("vpa-24h", "vpa-10min")
# The p99 of a run of 25 s moves by this much from one repetition to the next.
P99_TOLERANCE = 1.10
# Two busy pods of one weight differ by this much in what the kernel lets them use of equal limits.
USED_TOLERANCE = 1.05
EVERY_PEER = (*LIMIT_BASED, *UNLIMITED)
COMPARED = (
    Comparison("mixed-130", "p99_ms", EVERY_PEER, more_is_better=False, what="p99"),
    Comparison("mixed-130", "batch", EVERY_PEER, more_is_better=True, what="work", part=("work",)),
    Comparison("mixed-60", "slack", VPA, more_is_better=False, what="slack"),
    Comparison("bursty", "p99_ms", EVERY_PEER, more_is_better=False, what="p99"),
)


def judge(runs: list[dict[str, Any]], policies: tuple[str, ...] = OURS) -> list[dict[str, Any]]:
    figures = Figures(runs)
    verdicts: list[Verdict] = []
    for policy in policies:
        verdicts.extend(_never_over(figures, runs, policy))
        if policy in WEIGHTED:
            verdicts.extend(_work_conserving(figures, policy))
            verdicts.extend(_bursts(figures, policy))
            continue
        verdicts.extend(_few_reversals(figures, policy))
        verdicts.extend(_scarce(figures, policy))
        verdicts.extend(_plenty(figures, policy))
    for policy in ("nash", "nash-both"):
        verdicts.extend(_no_gain(figures, policy))
    return as_lines(verdicts)


def ratios(runs: list[dict[str, Any]], policies: tuple[str, ...]) -> list[dict[str, Any]]:
    """Ours to the best peer's, for the regression gate."""
    return compare(Figures(runs), policies, COMPARED)


def _never_over(figures: Figures, runs: list[dict[str, Any]], policy: str) -> Iterator[Verdict]:
    mine = [run for run in runs if run["arm"] == policy]
    if not mine:
        return
    over = sum(run["over_capacity_s"] for run in mine)
    incomplete = sum(run["complete_apply_s"] is None for run in mine)
    worst = max(run["limits_sum_max"] for run in mine)
    text = f"{over:.1f} s over capacity in {len(mine)} runs, highest sum {worst}m of 1350m"
    if incomplete:
        text += f"; {incomplete} runs never applied to every pod"
    noun = "guarantees" if policy in WEIGHTED else "limits"
    yield Verdict(f"Σ adopted {noun} ≤ capacity", policy, over == 0 and not incomplete, text)


def _few_reversals(figures: Figures, policy: str) -> Iterator[Verdict]:
    arms = figures.arms("bursty")
    if policy not in arms or "mbcas" not in arms:
        return
    ours = figures.of("bursty", policy, "reversals_per_pod_minute")
    theirs = figures.of("bursty", "mbcas", "reversals_per_pod_minute")
    passed = theirs > 0 and ours * 5 <= theirs
    text = f"{ours:.2f} per pod-minute against {theirs:.2f} of the MBCAS rule"
    yield Verdict("bursty: reversals at least 5× fewer than MBCAS", policy, passed, text)


def _scarce(figures: Figures, policy: str) -> Iterator[Verdict]:
    best = figures.best("mixed-130", LIMIT_BASED, "p99_ms")
    arms = figures.arms("mixed-130")
    if best is None or policy not in arms:
        return
    p99 = figures.of("mixed-130", policy, "p99_ms")
    yield Verdict(
        "130 % need: p99 no worse than the best limit-based policy",
        policy,
        p99 <= best[0] * P99_TOLERANCE,
        f"{p99:.1f} ms against {best[0]:.1f} ms of {best[1]} (within 10 % counts)",
    )
    if "static-2x" in arms:
        ours, double = (
            figures.of("mixed-130", arm, "allocated_core_s", "pods", "web")
            for arm in (policy, "static-2x")
        )
        yield Verdict(
            "130 % need: the service's allocation at least 20 % below static 2×",
            policy,
            ours <= 0.8 * double,
            f"{ours:.2f} core-s against {double:.2f} ({ours / double - 1:+.0%})",
        )


def _plenty(figures: Figures, policy: str) -> Iterator[Verdict]:
    least = figures.best("mixed-60", VPA, "slack")
    if least is None or policy not in figures.arms("mixed-60"):
        return
    throttled = figures.of("mixed-60", policy, "throttled_ratio")
    slack = figures.of("mixed-60", policy, "slack")
    yield Verdict(
        "60 % need: throttled periods under 1 %", policy, throttled < 0.01, f"{throttled:.2%}"
    )
    yield Verdict(
        "60 % need: slack at most that of the VPA-like policy",
        policy,
        slack <= least[0],
        f"{slack:.1%} against {least[0]:.1%} ({least[1]})",
    )


def _work_conserving(figures: Figures, policy: str) -> Iterator[Verdict]:
    """Beside every arm, no limits at all included."""
    arms = figures.arms("mixed-130")
    if policy not in arms or "no-limits" not in arms:
        return
    best = figures.best("mixed-130", arms, "p99_ms")
    assert best is not None
    p99 = figures.of("mixed-130", policy, "p99_ms")
    yield Verdict(
        "130 % need: p99 no worse than the best of all arms",
        policy,
        p99 <= best[0] * P99_TOLERANCE,
        f"{p99:.1f} ms against {best[0]:.1f} ms of {best[1]} (within 10 % counts)",
    )
    work = {
        arm: median(run["work"]["batch"] / run["seconds"] for run in figures.runs("mixed-130", arm))
        for arm in arms
    }
    most = max(work, key=work.__getitem__)
    yield Verdict(
        "130 % need: at least 95 % of the most batch work of all arms",
        policy,
        work[policy] >= 0.95 * work[most],
        f"{work[policy]:.0f} units/s against {work[most]:.0f} of {most} "
        f"({work[policy] / work[most]:.0%})",
    )


def _bursts(figures: Figures, policy: str) -> Iterator[Verdict]:
    arms = figures.arms("bursty")
    if not {policy, "demand-capped"} <= set(arms):
        return
    ours, theirs = (figures.of("bursty", arm, "p99_ms") for arm in (policy, "demand-capped"))
    yield Verdict(
        "bursty: p99 no worse than that of demand-capped limits",
        policy,
        ours <= theirs * P99_TOLERANCE,
        f"{ours:.1f} ms against {theirs:.1f} ms (within 10 % counts)",
    )


def _no_gain(figures: Figures, policy: str) -> Iterator[Verdict]:
    if policy not in figures.arms("adversary"):
        return
    spins, honest = (
        figures.of("adversary", policy, "mean_used_millicores", "pods", pod)
        for pod in ("adversary", "honest")
    )
    yield Verdict(
        "the adversary uses no more than an honest busy pod of its weight",
        policy,
        spins <= honest * USED_TOLERANCE,
        f"{spins:.0f}m against {honest:.0f}m (within 5 % counts)",
    )
    if policy in figures.arms("adversary-absent"):
        with_it = figures.of("adversary", policy, "p99_ms")
        without = figures.of("adversary-absent", policy, "p99_ms")
        free = figures.of("adversary", "no-limits", "p99_ms")
        yield Verdict(
            "the service's p99 does not suffer from the adversary",
            policy,
            with_it <= without * 1.25 or with_it <= free,
            f"{with_it:.1f} ms with it, {without:.1f} without, {free:.1f} with it and no limits",
        )
