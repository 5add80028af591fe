"""The report as Markdown: figures first, then the pictures, then the story."""

from collections.abc import Sequence

from fairlead.sim.measure import NodeFigures, PodFigures
from fairlead.sim.play import Played, Run

STORY_LINES_MAX = 80


def write_markdown(played: Played, pictures: Sequence[str]) -> str:
    """The whole page."""
    scenario = played.scenario
    lines = [f"# {scenario.name}", ""]
    if scenario.about:
        lines += [scenario.about[:1].upper() + scenario.about[1:] + ".", ""]
    lines += [
        f"Seed {played.seed}, digest `{played.digest}`. The same seed gives the same digest:",
        "",
        "```",
        f"fairlead sim run {scenario.name}.yaml --seed {played.seed}",
        "```",
        "",
        "Every decision is here and can be checked: `decisions.jsonl` holds the inputs and",
        "`results.jsonl` what was decided, line by line.",
        "",
        "```",
        "fairlead decide cpu.allocate --jsonl < decisions.jsonl | cmp - results.jsonl",
        "```",
        "",
    ]
    if len(played.runs) > 1:
        lines += ["## Side by side", "", *_side_by_side(played)]
    lines += [f"![{name}]({name})\n" for name in pictures if name.startswith("compare")]
    for run in played.runs:
        lines += [f"## {_title(run)}", "", *_one(run, pictures)]
    return "\n".join(lines) + "\n"


def _title(run: Run) -> str:
    return "policy by act" if run.name == "by-act" else run.name


def _one(run: Run, pictures: Sequence[str]) -> list[str]:
    lines = []
    if run.broken:
        lines += [f"**Broken:** {run.broken}", ""]
    lines += [*_node_lines(run.node), f"- digest `{run.digest}`"]
    if run.faults:
        fired = ", ".join(f"{point} {count}×" for point, count in run.faults.items())
        lines.append(f"- faults that fired: {fired}")
    lines += ["", *pod_table(run.pods), ""]
    lines += [f"![{name}]({name})\n" for name in pictures if name.startswith(f"{run.name}-")]
    lines += ["### What happened", "", "```"]
    for happening in run.story[:STORY_LINES_MAX]:
        lines.append(f"{happening.time_ms / 1000:7.1f} s  {happening.text}")
    if len(run.story) > STORY_LINES_MAX:
        lines.append(f"… and {len(run.story) - STORY_LINES_MAX} lines more in report.json")
    return [*lines, "```", ""]


def _node_lines(node: NodeFigures) -> list[str]:
    return [
        f"- {node.seconds:g} virtual seconds, {node.decisions} decisions",
        f"- uncongested {node.seconds_uncongested} s, congested {node.seconds_congested} s, "
        f"overloaded {node.seconds_overloaded} s, {node.mode_changes} changes of mode",
        f"- limits above the capacity: {node.seconds_over_capacity:g} s",
        f"- core-seconds: wanted {node.want_core_s:g}, granted {node.granted_core_s:g}, "
        f"used {node.used_core_s:g}",
    ]


def pod_table(pods: Sequence[PodFigures]) -> list[str]:
    """Figures per pod."""
    lines = [
        "| pod | want core-s | granted core-s | used core-s | throttled periods | slack "
        "| reversals/min |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for pod in pods:
        name = f"{pod.pod} (opted out)" if pod.opted_out else pod.pod
        granted = "–" if pod.granted_core_s is None else f"{pod.granted_core_s:.1f}"
        slack = "–" if pod.slack is None else f"{pod.slack:.1%}"
        lines.append(
            f"| {name} | {pod.want_core_s:.1f} | {granted} | {pod.used_core_s:.1f} "
            f"| {pod.throttled_ratio:.1%} | {slack} | {pod.reversals_per_minute:.1f} |"
        )
    return lines


def _side_by_side(played: Played) -> list[str]:
    """The same seeded world under each policy: one row per pod, one pair of columns per policy."""
    policies = [run.policy.value for run in played.runs]
    head = "| pod | want |" + "".join(f" {policy}: used | throttled |" for policy in policies)
    lines = [head, "|---|--:|" + "--:|--:|" * len(policies)]
    for row in zip(*(run.pods for run in played.runs), strict=False):
        cells = "".join(f" {pod.used_core_s:.1f} | {pod.throttled_ratio:.1%} |" for pod in row)
        lines.append(f"| {row[0].pod} | {row[0].want_core_s:.1f} |{cells}")
    nodes = "".join(f" {run.node.used_core_s:.1f} |  |" for run in played.runs)
    return [*lines, f"| **all governed** | {played.runs[0].node.want_core_s:.1f} |{nodes}", ""]
