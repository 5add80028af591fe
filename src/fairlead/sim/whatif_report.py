"""The report of a what-if question: as data, as rows for a terminal, as a folder."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fairlead import __version__
from fairlead.sim.plots import drawn
from fairlead.sim.report import picture_lines, table, write_csv, write_folder
from fairlead.sim.whatif import PodChange, WhatIf

LIMITS_OF_THE_ANSWER = (
    "Each snapshot is decided by itself: how pods would have reacted to the other policy, and what "
    "later snapshots would have shown, is not in these figures."
)
NODE_HEAD = ("node", "snapshots", "hours", "pods", "scarce", "unmet core-s", "what-if")
POD_HEAD = ("pod", "node", "need", "recorded", "what-if", "change", "below need", "what-if")
_PLOTTED = 12


def as_document(result: WhatIf, *, top: int) -> dict[str, Any]:
    return {
        "fairlead": __version__,
        "policy": result.policy.value,
        "guardrails": result.guardrails,
        "snapshots": result.snapshots,
        "nodes": [node.as_document() for node in result.nodes],
        "pods": [pod.as_document() for pod in result.pods],
        "winners": [[pod.node, pod.pod] for pod in result.winners(top)],
        "losers": [[pod.node, pod.pod] for pod in result.losers(top)],
    }


def title(result: WhatIf) -> str:
    policies = sorted({policy for node in result.nodes for policy in node.policies})
    kept = "recorded guardrails kept" if result.guardrails else "no guardrails"
    return (
        f"policy {result.policy.value} instead of {', '.join(policies)}, {kept}: "
        f"{result.snapshots} snapshots of {len(result.nodes)} node{'s' * (len(result.nodes) > 1)}"
    )


def node_rows(result: WhatIf) -> list[tuple[str, ...]]:
    return [
        (
            node.node,
            str(node.snapshots),
            f"{node.time_ms / 3_600_000:.1f}",
            str(len(node.pods)),
            f"{node.scarce_share:.1%}",
            f"{node.recorded.unmet_core_s:.1f}",
            f"{node.whatif.unmet_core_s:.1f}",
        )
        for node in result.nodes
    ]


def pod_rows(pods: Sequence[PodChange]) -> list[tuple[str, ...]]:
    return [
        (
            pod.pod,
            pod.node,
            f"{pod.mean(pod.needed)}m",
            f"{pod.mean(pod.recorded.granted)}m",
            f"{pod.mean(pod.whatif.granted)}m",
            f"{pod.change_millicores:+d}m",
            f"{pod.recorded.below_ms / 1000:g} s",
            f"{pod.whatif.below_ms / 1000:g} s",
        )
        for pod in pods
    ]


def write_whatif(result: WhatIf, target: Path, *, top: int, plots: bool) -> list[str]:
    """Write the report to `target`, replacing an earlier one; returns the names of its files."""
    pods = [pod.as_document() for pod in result.pods]
    return write_folder(
        target,
        as_document(result, top=top),
        page=lambda pictures: _page(result, pictures, top),
        parts={"pods.csv": lambda path: write_csv(path, *_flat(pods))},
        draw=(lambda folder: _draw(result, folder)) if plots else None,
    )


def _flat(documents: Sequence[dict[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    """Columns and rows; a nested field is named `recorded_unmet_core_s`."""
    rows = []
    for document in documents:
        row: dict[str, Any] = {}
        for key, value in document.items():
            if isinstance(value, dict):
                row |= {f"{key}_{name}": part for name, part in value.items()}
            else:
                row[key] = value
        rows.append(row)
    return list(rows[0]) if rows else [], [list(row.values()) for row in rows]


def _page(result: WhatIf, pictures: Sequence[str], top: int) -> str:
    text = title(result)
    lines = ["# What if", "", text[:1].upper() + text[1:] + ".", "", LIMITS_OF_THE_ANSWER, ""]
    lines += ["## Nodes", "", *table(NODE_HEAD, node_rows(result)), ""]
    for name, pods in (("gains", result.winners(top)), ("losses", result.losers(top))):
        rows = table(POD_HEAD, pod_rows(pods)) if pods else ["None."]
        lines += [f"## Largest {name}", "", *rows, ""]
    lines += picture_lines(pictures)
    return "\n".join([*lines, "Every pod is in `pods.csv` and `report.json`.", ""])


def _draw(result: WhatIf, folder: Path) -> list[str]:
    pods = result.winners(_PLOTTED) + result.losers(_PLOTTED)[::-1]
    if not pods:
        return []
    title = f"what if: {result.policy.value}"
    with drawn(folder / "whatif.png", 9, 1.2 + 0.3 * len(pods), title) as figure:
        axes = figure.subplots()
        changes = [pod.change_millicores for pod in pods]
        colours = ["#0072B2" if change > 0 else "#D55E00" for change in changes]
        axes.barh([f"{pod.pod} ({pod.node})" for pod in pods], changes, color=colours)
        axes.invert_yaxis()
        axes.set(xlabel="change of the mean allocation, millicores")
    return ["whatif.png"]
