"""What the traffic governor promises against real peers, judged on the medians of one run.

Every promise is judged for each of our planes by itself, with its numbers, kept or not.
"""

from collections.abc import Iterator
from typing import Any

from bench.side_by_side import Comparison, Figures, Verdict, as_lines, compare
from bench.traffic.scenarios import CAPACITY_PER_S, EXPERTS, PEERS, PLAIN, TUNED

SMALL_WITHIN_S, RESTORED_WITHIN_S = 5.0, 20.0
OVERLOAD_GOODPUT = 0.9
MODES_PER_MIN = 2.0
DEAD_GOODPUT, RECOVERED_WITHIN_S = 0.9, 20.0
PROXY_CPU_TIMES, AGENT_CORES = 1.1, 0.01
COMPARED = (
    Comparison("slow", "goodput_per_s", EXPERTS, more_is_better=True, what="goodput"),
    Comparison("slow", "p99_ms", EXPERTS, more_is_better=False, what="p99"),
    Comparison("overload", "goodput_per_s", EXPERTS, more_is_better=True, what="goodput"),
    Comparison("noisy", "goodput_per_s", (PLAIN,), more_is_better=True, what="goodput"),
    Comparison("healthy", "cpu_s_per_10k", (PLAIN,), more_is_better=False, what="cpu"),
)


def judge(runs: list[dict[str, Any]], ours: tuple[str, ...]) -> list[dict[str, Any]]:
    figures = Figures(runs)
    verdicts: list[Verdict] = []
    for promised in (_slow, _errors, _overload, _killed, _dead, _reaction, _noisy):
        for arm in ours:
            verdicts.extend(promised(figures, arm))
    return as_lines(verdicts)


def judge_experts(runs: list[dict[str, Any]], ours: tuple[str, ...]) -> list[dict[str, Any]]:
    """Beside peers whose limits were set by hand."""
    figures = Figures(runs)
    verdicts: list[Verdict] = []
    for arm in ours:
        verdicts.extend(_beside_experts(figures, arm))
        verdicts.extend(_cost(figures, arm))
    return as_lines(verdicts)


def ratios(runs: list[dict[str, Any]], ours: tuple[str, ...]) -> list[dict[str, Any]]:
    """Ours to the best expert's, for the regression gate."""
    return compare(Figures(runs), ours, COMPARED)


def _beside_experts(figures: Figures, arm: str) -> Iterator[Verdict]:
    expert = figures.best("overload", EXPERTS, "goodput_per_s", most=True)
    if arm in figures.arms("overload") and expert is not None:
        goodput = figures.of("overload", arm, "goodput_per_s") or 0.0
        yield Verdict(
            "twice the capacity: goodput no less than the best expert's",
            arm,
            goodput >= expert[0],
            f"{goodput:.1f}/s against {expert[0]:.1f}/s of {expert[1]}",
        )
    if {arm, PLAIN} <= set(figures.arms("noisy")):
        good, least = (figures.of("noisy", name, "goodput_per_s") or 0.0 for name in (arm, PLAIN))
        yield Verdict(
            "noisy: goodput no less than leastconn's",
            arm,
            good >= least,
            f"{good:.1f}/s against {least:.1f}/s",
        )
    if arm in figures.arms("brown-out"):
        later = figures.of("brown-out", arm, "refused_later")
        yield Verdict(
            "brown-out: nothing refused from 10 s after the recovery on",
            arm,
            later == 0,
            f"{later:.0f} refused",
        )
    expert = figures.best("errors", EXPERTS, "failed", most=False)
    if arm in figures.arms("errors") and expert is not None:
        failed = figures.of("errors", arm, "failed") or 0.0
        yield Verdict(
            "fast 500s: errors that clients see at most the best expert's",
            arm,
            failed <= expert[0],
            f"{failed:.0f} against {expert[0]:.0f} of {expert[1]}",
        )
    expert = figures.best("slow", EXPERTS, "goodput_per_s", most=True)
    if arm in figures.arms("slow") and expert is not None:
        goodput = figures.of("slow", arm, "goodput_per_s") or 0.0
        yield Verdict(
            "one slow ×10: goodput no less than the best expert's",
            arm,
            goodput >= expert[0],
            f"{goodput:.1f}/s against {expert[0]:.1f}/s of {expert[1]}",
        )


def _cost(figures: Figures, arm: str) -> Iterator[Verdict]:
    """What the agent and its proxy use beside a plain HAProxy, while all is well."""
    if not {arm, PLAIN} <= set(figures.arms("healthy")):
        return
    plain = figures.of("healthy", PLAIN, "cpu_s_per_10k") or 0.0
    proxy = figures.of("healthy", arm, "proxy_cpu_s_per_10k")
    cores = figures.of("healthy", arm, "agent_cores")
    if "haproxy" in arm and proxy is not None:
        yield Verdict(
            "healthy: its HAProxy uses at most 1.1 times the CPU of a plain one",
            arm,
            proxy <= PROXY_CPU_TIMES * plain,
            f"{proxy:.2f} against {plain:.2f} s per 10 000 requests: {proxy / plain:.2f} times",
        )
    if "ebpf" in arm:
        whole = figures.of("healthy", arm, "cpu_s_per_10k") or 0.0
        yield Verdict(
            "healthy: agent and kernel use less CPU than a plain HAProxy",
            arm,
            whole <= plain,
            f"{whole:.2f} against {plain:.2f} s per 10 000 requests",
        )
    if cores is not None:
        yield Verdict(
            "healthy: the agent uses less than 1 % of a core",
            arm,
            cores < AGENT_CORES,
            f"{cores:.1%} of a core",
        )


def _slow(figures: Figures, arm: str) -> Iterator[Verdict]:
    most = figures.best("slow", PEERS, "goodput_per_s", most=True)
    least = figures.best("slow", PEERS, "p99_ms", most=False)
    if arm not in figures.arms("slow") or most is None or least is None:
        return
    goodput, p99 = (figures.of("slow", arm, name) or 0.0 for name in ("goodput_per_s", "p99_ms"))
    yield Verdict(
        "one slow ×10: goodput within the objective at least the best peer's",
        arm,
        goodput >= most[0],
        f"{goodput:.1f}/s against {most[0]:.1f}/s of {most[1]}",
    )
    later = figures.of("slow", arm, "p99_ms", "settled") or 0.0
    yield Verdict(
        "one slow ×10: p99 no worse than the best peer's",
        arm,
        p99 <= least[0],
        f"{p99:.0f} ms against {least[0]:.0f} ms of {least[1]}; "
        f"{later:.0f} ms from the sixth second on",
    )


def _errors(figures: Figures, arm: str) -> Iterator[Verdict]:
    least = figures.best("errors", PEERS, "failed", most=False)
    if arm not in figures.arms("errors") or least is None:
        return
    failed = figures.of("errors", arm, "failed") or 0.0
    yield Verdict(
        "fast 500s: errors that clients see at most the best peer's",
        arm,
        failed <= least[0],
        f"{failed:.0f} against {least[0]:.0f} of {least[1]}",
    )


def _overload(figures: Figures, arm: str) -> Iterator[Verdict]:
    if arm not in figures.arms("overload"):
        return
    goodput, failed, refused = (
        figures.of("overload", arm, name) or 0.0 for name in ("goodput_per_s", "failed", "refused")
    )
    yield Verdict(
        "twice the capacity: goodput at least 90 % of capacity, explicit rejections for the rest",
        arm,
        goodput >= OVERLOAD_GOODPUT * CAPACITY_PER_S and failed == 0,
        f"{goodput:.1f}/s of {CAPACITY_PER_S:.0f}/s ({goodput / CAPACITY_PER_S:.0%}), "
        f"{refused:.0f} refused, {failed:.0f} failed without a word",
    )


def _killed(figures: Figures, arm: str) -> Iterator[Verdict]:
    if arm not in figures.arms("killed") or arm not in figures.arms("healthy"):
        return
    failed = figures.of("killed", arm, "failed") or 0.0
    refused = figures.of("killed", arm, "refused") or 0.0
    usual = (figures.of("healthy", arm, "failed") or 0.0) / (
        figures.of("healthy", arm, "requests") or 1.0
    )
    requests = figures.of("killed", arm, "requests") or 0.0
    yield Verdict(
        "agent killed: no failed requests beyond the baseline",
        arm,
        failed + refused <= usual * requests,
        f"{failed:.0f} failed and {refused:.0f} refused of {requests:.0f}; "
        f"baseline {usual * requests:.0f}",
    )


def _dead(figures: Figures, arm: str) -> Iterator[Verdict]:
    arms = figures.arms("dead")
    if arm not in arms or TUNED not in arms:
        return
    tuned = figures.of("dead", TUNED, "goodput_per_s")
    goodput = figures.of("dead", arm, "goodput_per_s")
    yield Verdict(
        "agent killed at twice the capacity: after 30 s goodput at least 90 % of HAProxy's with "
        "limits set by hand",
        arm,
        goodput >= DEAD_GOODPUT * tuned,
        f"{goodput:.1f}/s against {tuned:.1f}/s",
    )
    recovered = figures.of("dead", arm, "recovered_after_s")
    yield Verdict(
        "agent killed at twice the capacity: recovered within 20 s of its restart at half of it",
        arm,
        recovered is not None and recovered <= RECOVERED_WITHIN_S,
        _seconds(recovered),
    )


def _reaction(figures: Figures, arm: str) -> Iterator[Verdict]:
    for scenario, name in (("slow", "one slow ×10"), ("errors", "fast 500s")):
        if arm not in figures.arms(scenario):
            continue
        small = figures.of(scenario, arm, "small_after_s")
        restored = figures.of(scenario, arm, "restored_after_s")
        yield Verdict(
            f"{name}: the unhealthy backend's share at most 5 % within 5 s",
            arm,
            small is not None and small <= SMALL_WITHIN_S,
            _seconds(small),
        )
        yield Verdict(
            f"{name}: restored within 20 s after recovery",
            arm,
            restored is not None and restored <= RESTORED_WITHIN_S,
            _seconds(restored),
        )


def _noisy(figures: Figures, arm: str) -> Iterator[Verdict]:
    if arm not in figures.arms("noisy"):
        return
    changes = figures.of("noisy", arm, "mode_transitions_per_min")
    yield Verdict(
        "noisy: at most 2 mode transitions per minute",
        arm,
        changes is not None and changes <= MODES_PER_MIN,
        "unknown" if changes is None else f"{changes:.1f} per minute",
    )


def _seconds(value: float | None) -> str:
    return "not in this run" if value is None else f"{value:.1f} s"
