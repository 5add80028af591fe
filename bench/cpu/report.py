"""Writes the results of `bench.cpu`: cpu.json, cpu.md and the pictures."""

import json
from pathlib import Path
from statistics import median
from typing import Any

from bench.cpu.promises import Figures, judge
from bench.cpu.scenarios import CAPACITY_MILLICORES, NODE_MILLICORES, OURS, SLO_S, scenarios

LABELS = {
    "static-p95": "static p95",
    "static-2x": "static 2×",
    "vpa-24h": "VPA-like, 24 h",
    "vpa-10min": "VPA-like, 10 min",
    "mbcas": "MBCAS rule ¹",
    "captain": "Captain ¹",
    "no-limits": "no limits",
    "demand-capped": "**fairlead** demand-capped",
    "nash": "**fairlead** nash",
    "market": "**fairlead** market",
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


def write_report(document: dict[str, Any], where: Path, *, wall_s: float) -> None:
    """Everything that was measured, the table, the pictures; prints the promises."""
    from bench.cpu.plots import draw_plots  # noqa: PLC0415 - matplotlib is slow to import

    where.mkdir(exist_ok=True)
    document["wall_s"] = round(wall_s)
    arms = dict.fromkeys(run["arm"] for run in document["runs"])
    document["promises"] = judge(document["runs"], tuple(arm for arm in arms if is_ours(arm)))
    text = markdown(document)
    (where / "cpu.json").write_text(json.dumps(rounded(document), separators=(",", ":")) + "\n")
    (where / "cpu.md").write_text(text)
    draw_plots(document, where)
    print(text)


def rounded(value: Any) -> Any:
    """Five digits are more than was measured."""
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [rounded(item) for item in value]
    return value


def markdown(document: dict[str, Any]) -> str:
    """The page: promises first, then a table per scenario."""
    runs = document["runs"]
    figures, known = Figures(runs), scenarios()
    repetitions = 1 + max(run["repetition"] for run in runs)
    outside = median(run["outside_cores"] for run in runs)
    lines = [
        "# CPU policies side by side",
        "",
        f"Real cgroups on one machine in one run of {document['wall_s'] / 60:.0f} min, seed "
        f"{document['seed']}; medians of {repetitions} interleaved repetitions, spread in "
        f"brackets. Node {NODE_MILLICORES}m, governed capacity {CAPACITY_MILLICORES}m; latency "
        f"from intended arrival, objective {SLO_S * 1000:.0f} ms. Other work on the machine used "
        f"{outside:.2f} cores in the median; {sum(r['discarded_before'] for r in runs)} runs were "
        "discarded and repeated (generator late, or the machine busy).",
        "",
        "## Promises",
        "",
        "| promise | policy | | numbers |",
        "|---|---|---|---|",
    ]
    for verdict in document["promises"]:
        word = "PASS" if verdict["passed"] else "FAIL"
        lines.append(
            f"| {verdict['promise']} | {verdict['policy']} | {word} | {verdict['numbers']} |"
        )
    for name in dict.fromkeys(run["scenario"] for run in runs):
        lines += ["", f"## {known[name].title}", "", *_table(figures, name, document)]
    lines += [
        "",
        "¹ Reimplemented from their published descriptions. An unlimited pod counts as allocated "
        "the whole node. The cost of deciding is the agent's for ours, the rule's (with its reads "
        "and writes) for the others.",
        "",
    ]
    return "\n".join(lines)


def _table(figures: Figures, scenario: str, document: dict[str, Any]) -> list[str]:
    arms = sorted(figures.arms(scenario), key=_place)
    needs = document.get("needs", {}).get(scenario)
    lines = []
    if needs:
        ratio = sum(needs.values()) / CAPACITY_MILLICORES
        lines += [f"Total need (Σ p95 of unlimited want): {ratio:.0%} of the capacity.", ""]
    pods = [pod.name for pod in scenarios()[scenario].pods]
    workers = [name for name in pods if name in ("batch", "honest")]
    rivals = [name for name in pods if name in ("honest", "adversary")]
    heads = [name for name, _, _ in COLUMNS]
    heads += [f"{name}: units of work/s" for name in workers] + [f"{name} uses" for name in rivals]
    lines += ["| policy | " + " | ".join(heads) + " |", "|---|" + "---:|" * len(heads)]
    for arm in arms:
        cells = [_cell(figures.values(scenario, arm, key), form) for _, key, form in COLUMNS]
        cells += [_cell(figures.work_rate(scenario, arm, name), "{:.0f}") for name in workers]
        for name in rivals:
            used = figures.values(scenario, arm, "mean_used_millicores", name)
            cells.append(_cell(used, "{:.0f}m"))
        lines.append(f"| {LABELS.get(arm, arm)} | " + " | ".join(cells) + " |")
    return lines


def _cell(values: list[float], form: str) -> str:
    middle = form.format(median(values))
    low, high = form.format(min(values)), form.format(max(values))
    return middle if low == high else f"{middle} [{low}–{high}]"


def _place(arm: str) -> tuple[int, str]:
    names = list(LABELS)
    return (names.index(arm), arm) if arm in names else (len(names), arm)


def is_ours(arm: str) -> bool:
    """Whether an arm is one of our policies or a variant of one."""
    return arm in OURS or arm not in LABELS
