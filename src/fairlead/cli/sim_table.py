"""The summary of a played scenario as aligned columns, the way kubectl prints them."""

from collections.abc import Iterator, Sequence

from fairlead.sim import PolicyRun, ScenarioResult
from fairlead.sim.record import NodeFigures
from fairlead.sim.report import pod_row
from fairlead.sim.whatif import WhatIf
from fairlead.sim.whatif_report import (
    LIMITS_OF_THE_ANSWER,
    NODE_HEAD,
    POD_HEAD,
    node_rows,
    pod_rows,
    title,
)

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


def whatif_table(result: WhatIf, top: int) -> Iterator[str]:
    """The nodes, then the largest gains and losses."""
    yield f"what if: {title(result)}"
    yield ""
    yield from columns([_upper(NODE_HEAD), *node_rows(result)])
    for name, pods in (("gains", result.winners(top)), ("losses", result.losers(top))):
        yield ""
        yield f"largest {name}:" if pods else f"no {name}"
        if pods:
            yield from columns([_upper(POD_HEAD), *pod_rows(pods)])
    yield ""
    yield LIMITS_OF_THE_ANSWER


def _upper(head: Sequence[str]) -> tuple[str, ...]:
    return tuple(name.upper().replace(" ", "-") for name in head)
