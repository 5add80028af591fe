"""Writes the results of `bench.cpu`: cpu.json, cpu.md and the pictures."""

from pathlib import Path
from statistics import median
from typing import Any

from bench.cpu.promises import judge, ratios
from bench.cpu.scenarios import (
    CAPACITY_MILLICORES,
    NODE_MILLICORES,
    OURS,
    SLO_S,
    WEIGHTED,
    scenarios,
)
from bench.side_by_side import Figures, arm_table, cell, circumstances, verdict_lines, write_page

LABELS = {
    "static-p95": "static p95",
    "static-2x": "static 2×",
    "vpa-24h": "VPA-like, 24 h",
    "vpa-10min": "VPA-like, 10 min",
    "mbcas": "MBCAS rule ¹",
    "captain": "Captain ¹",
    "no-limits": "no limits, no weights",
    "static-weights": "no limits, weights by request",
    "demand-capped": "**fairlead** demand-capped",
    "nash": "**fairlead** nash",
    "market": "**fairlead** market",
    "nash-weights": "**fairlead** nash, `weights`",
    "nash-both": "**fairlead** nash, `both`",
}
COLUMNS = (
    ("p50 ms", "p50_ms", "{:.1f}"),
    ("p99 ms", "p99_ms", "{:.1f}"),
    ("SLO viol. s", "slo_violation_s", "{:.0f}"),
    ("allocated core-s", "allocated_core_s", "{:.1f}"),
    ("used core-s", "used_core_s", "{:.1f}"),
    ("slack", "slack", "{:.0%}"),
    ("throttled periods", "throttled_ratio", "{:.2%}"),
    ("reversals /pod·min", "reversals_per_pod_minute", "{:.2f}"),
    ("Σ > C s", "over_capacity_s", "{:.1f}"),
    ("decider cores", "agent_cores", "{:.4f}"),
    ("RSS MB", "agent_rss_mb", "{:.0f}"),
)


def write_report(document: dict[str, Any], where: Path) -> None:
    from bench.cpu.plots import draw_plots  # noqa: PLC0415 - matplotlib is slow to import

    document["wall_s"] = round(document["wall_s"])
    arms = dict.fromkeys(run["arm"] for run in document["runs"])
    ours = tuple(arm for arm in arms if is_ours(arm))
    document["promises"] = judge(document["runs"], ours)
    document["ratios"] = ratios(document["runs"], ours)
    write_page(document.get("name", "cpu"), document, where, markdown(document), draw_plots)


def markdown(document: dict[str, Any]) -> str:
    """The page: promises first, then a table per scenario."""
    runs = document["runs"]
    figures, known = Figures(runs), scenarios()
    repetitions = 1 + max(run["repetition"] for run in runs)
    outside = median(run["outside_cores"] for run in runs)
    lines = [
        "# CPU policies side by side",
        "",
        f"Real cgroups on one machine in {circumstances(document)}, "
        f"{document.get('timing', 'full length')}; medians of {repetitions} interleaved "
        f"repetitions, spread in brackets. Node {NODE_MILLICORES}m, governed capacity "
        f"{CAPACITY_MILLICORES}m; latency from intended arrival, objective {SLO_S * 1000:.0f} "
        f"ms. Other work on the machine used {outside:.2f} cores in the median; "
        f"{sum(r['discarded_before'] for r in runs)} runs were "
        "discarded and repeated (generator late, or the machine busy).",
        "",
        *verdict_lines(document["promises"], "policy"),
    ]
    for name in dict.fromkeys(run["scenario"] for run in runs):
        lines += ["", f"## {known[name].title}", "", *_table(figures, name, document)]
    lines += [
        "",
        "¹ Reimplemented from their published descriptions. An unlimited pod counts as allocated "
        "the whole node; where weights are governed, Σ is that of the guarantees. "
        "The cost of deciding is the agent's for ours, the rule's (with its reads "
        "and writes) for the others.",
        "",
    ]
    return "\n".join(lines)


def _table(figures: Figures, scenario: str, document: dict[str, Any]) -> list[str]:
    needs = document.get("needs", {}).get(scenario)
    lines = []
    if needs:
        ratio = sum(needs.values()) / CAPACITY_MILLICORES
        lines += [f"Total need (Σ p95 of unlimited want): {ratio:.0%} of the capacity.", ""]
    pods = [pod.name for pod in scenarios()[scenario].pods]
    workers = [name for name in pods if name in ("batch", "honest")]
    rivals = [name for name in pods if name in ("honest", "adversary")]
    heads = [f"{name}: units of work/s" for name in workers] + [f"{name} uses" for name in rivals]

    def further(arm: str) -> list[str]:
        runs = figures.runs(scenario, arm)
        cells = [
            cell([run["work"][name] / run["seconds"] for run in runs], "{:.0f}") for name in workers
        ]
        for name in rivals:
            used = figures.values(scenario, arm, "mean_used_millicores", "pods", name)
            cells.append(cell(used, "{:.0f}m"))
        return cells

    return lines + arm_table(
        figures,
        scenario,
        who="policy",
        columns=COLUMNS,
        labels=LABELS,
        further=further,
        further_heads=heads,
    )


def is_ours(arm: str) -> bool:
    """Whether an arm is one of our policies or a variant of one."""
    return arm in (*OURS, *WEIGHTED) or arm not in LABELS
