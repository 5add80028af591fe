"""The summary of a played scenario as aligned columns, the way kubectl prints them."""

from collections.abc import Iterator, Sequence

from fairlead.sim import PolicyRun, ScenarioResult
from fairlead.sim.record import NodeFigures
from fairlead.sim.report import pod_row

HEAD = ("POD", "WANT", "GRANTED", "USED", "THROTTLED", "SLACK", "REVERSALS/MIN")


def summary(played: ScenarioResult) -> Iterator[str]:
    """Line by line: a table per policy, then the policies side by side, then seed and digest."""
    for run in played.runs:
        yield f"{played.scenario.name}: policy {run.name.replace('-act', ' act')}"
        yield ""
        yield from columns([HEAD, *(pod_row(pod, missing="-") for pod in run.pods)])
        yield ""
        yield from _node(run.node)
        if run.faults:
            fired = ", ".join(f"{point} {count}" for point, count in run.faults.items())
            yield f"faults     {fired}"
        if len(played.runs) > 1:
            yield f"digest     {run.digest}"
            yield ""
    if len(played.runs) > 1:
        yield from columns(_side_by_side(played.runs))
        yield ""
    yield f"seed       {played.seed}"
    yield f"digest     {played.digest}"


def columns(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """The first column to the left, figures to the right."""
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    for row in rows:
        first, *rest = (
            cell.rjust(width) if place else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        yield "  ".join([first, *rest]).rstrip()


def _node(node: NodeFigures) -> Iterator[str]:
    yield (
        f"modes      uncongested {node.seconds_uncongested} s, congested "
        f"{node.seconds_congested} s, overloaded {node.seconds_overloaded} s"
    )
    yield (
        f"node       {node.decisions} decisions in {node.seconds:g} s, limits above the capacity "
        f"for {node.seconds_over_capacity:g} s"
    )
    yield (
        f"core-s     wanted {node.want_core_s:.1f}, granted {node.granted_core_s:.1f}, "
        f"used {node.used_core_s:.1f}"
    )


def _side_by_side(runs: Sequence[PolicyRun]) -> list[tuple[str, ...]]:
    """The same load under each policy."""
    rows: list[tuple[str, ...]] = [
        ("POLICY", "USED", "GRANTED", "UNSERVED", "CONGESTED", "OVERLOADED", "REVERSALS/MIN")
    ]
    for run in runs:
        governed = [pod for pod in run.pods if not pod.opted_out]
        rows.append(
            (
                run.name,
                f"{run.node.used_core_s:.1f}",
                f"{run.node.granted_core_s:.1f}",
                f"{sum(pod.unserved_core_s for pod in governed):.1f}",
                f"{run.node.seconds_congested} s",
                f"{run.node.seconds_overloaded} s",
                f"{sum(pod.reversals_per_minute for pod in governed):.1f}",
            )
        )
    return rows
