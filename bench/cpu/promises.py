"""What the governor promises on real cgroups, judged on the medians of one run.

Every promise is judged for each of our policies by itself, with its numbers, passed or not.
"""

from collections.abc import Iterator
from typing import Any

from bench.cpu.scenarios import OURS
from bench.side_by_side import Figures, Verdict, as_lines

LIMIT_BASED = ("static-p95", "static-2x", "vpa-24h", "vpa-10min", "mbcas", "captain")
VPA = ("vpa-24h", "vpa-10min")
# The p99 of a run of 25 s moves by this much from one repetition to the next.
P99_TOLERANCE = 1.10
# Two busy pods of one weight differ by this much in what the kernel lets them use of equal limits.
USED_TOLERANCE = 1.05


def judge(runs: list[dict[str, Any]], policies: tuple[str, ...] = OURS) -> list[dict[str, Any]]:
    figures = Figures(runs)
    verdicts: list[Verdict] = []
    for policy in policies:
        verdicts.extend(_never_over(figures, runs, policy))
        verdicts.extend(_few_reversals(figures, policy))
        verdicts.extend(_scarce(figures, policy))
        verdicts.extend(_plenty(figures, policy))
    verdicts.extend(_no_gain(figures))
    return as_lines(verdicts)


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
    yield Verdict("Σ adopted limits ≤ capacity", policy, over == 0 and not incomplete, text)


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


def _no_gain(figures: Figures) -> Iterator[Verdict]:
    if "nash" not in figures.arms("adversary"):
        return
    spins, honest = (
        figures.of("adversary", "nash", "mean_used_millicores", "pods", pod)
        for pod in ("adversary", "honest")
    )
    yield Verdict(
        "the adversary uses no more than an honest busy pod of its weight",
        "nash",
        spins <= honest * USED_TOLERANCE,
        f"{spins:.0f}m against {honest:.0f}m (within 5 % counts)",
    )
    if "nash" in figures.arms("adversary-absent"):
        with_it = figures.of("adversary", "nash", "p99_ms")
        without = figures.of("adversary-absent", "nash", "p99_ms")
        free = figures.of("adversary", "no-limits", "p99_ms")
        yield Verdict(
            "the service's p99 does not suffer from the adversary",
            "nash",
            with_it <= without * 1.25 or with_it <= free,
            f"{with_it:.1f} ms with it, {without:.1f} without, {free:.1f} with it and no limits",
        )
