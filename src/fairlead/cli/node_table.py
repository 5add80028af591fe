"""Tables and sentences for `fairlead node`: presentation only."""

import json
import sys
from pathlib import Path
from typing import Any

import click

from fairlead.core.reasons import CpuReason

SENTENCES = {
    CpuReason.DEMAND_DRIVEN: "The need follows the measured demand, with headroom.",
    CpuReason.USAGE_FALLBACK: (
        "Demand reads 0 although usage is near the minimum: the signal looks broken, so the need "
        "is 1.3 times the usage."
    ),
    CpuReason.SIGNAL_MISSING_USAGE: "No demand signal; the need is 1.3 times the usage.",
    CpuReason.SIGNAL_MISSING_HOLD: "No demand signal and no usage; the limit in force is held.",
    CpuReason.SIGNAL_MISSING_MIN: "Nothing is known of it yet; the need is its minimum.",
    CpuReason.MIN_ABOVE_MAX: "Its minimum lies above its maximum; the maximum wins.",
    CpuReason.GUARDRAIL_RELAXED: (
        "A guardrail would have kept the limit higher, but the node has no room for that."
    ),
}
MODES = {
    "uncongested": "All needs fit the node: everybody gets its need, as fast as guardrails allow.",
    "congested": "The needs do not fit the node: the policy {policy} decides who gives way.",
    "overloaded": "Not even the minimums fit the node: they are scaled down.",
}


def print_status(document: dict[str, Any]) -> None:
    """One line about the node, a row per pod."""
    for line in _headline(document):
        click.echo(line)
    header = ("POD", "NEED", "GRANT", "LIMIT", "USED", "THROTTLED", "REASONS")
    rows: list[tuple[str, ...]] = [
        (
            pod["pod"],
            f"{pod['need_millicores']}m",
            f"{pod['grant_millicores']}m",
            _m(pod["limit_millicores"]),
            _m(pod["usage_millicores"]),
            _percent(pod["throttling"]),
            ", ".join(pod["reasons"]),
        )
        for pod in document["pods"]
    ]
    if sys.stdout.isatty():
        _rich_table(header, rows)
        return
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]
    for row in (header, *rows):
        click.echo(
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        )


def _rich_table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, header_style="bold")
    for name in header:
        table.add_column(name, justify="left" if name in ("POD", "REASONS") else "right")
    for row in rows:
        table.add_row(*row)
    Console().print(table)


def _headline(document: dict[str, Any]) -> list[str]:
    price = document["shadow_price"]
    lines = [
        f"{document['mode']}: need {document['total_need']}m of "
        f"{document['capacity_millicores']}m, "
        f"limits {document['limits_millicores']}m, policy {document['policy']}"
        + (f", price {price:.4g}" if price else "")
    ]
    if not document["running"]:
        lines.append(f"No agent is running; this is {document['age_ms'] // 1000} s old.")
    elif document["stale"]:
        lines.append(
            f"The agent is late: its last clearing was {document['age_ms'] // 1000} s ago."
        )
    if document["observed_only"]:
        lines.append("Observe-only: decisions are recorded, limits are not touched.")
    lines.extend(f"not limited: {f['pod']} {f['reason']}" for f in document["failures"])
    return lines


def _scarcity(document: dict[str, Any]) -> str:
    need, capacity = document["total_need"], document["capacity_millicores"]
    if document["mode"] == "congested" and need <= capacity:
        return f"The needs, {need}m, fit the node again; it counts as congested until they fall."
    return MODES[document["mode"]].format(policy=document["policy"])


def explain_pod(pod: dict[str, Any], document: dict[str, Any]) -> list[str]:
    """Why a pod has its limit, from the signal to the number."""
    lines = [
        f"{pod['pod']}: limit {_m(pod['limit_millicores'])}, granted {pod['grant_millicores']}m "
        f"of a need of {pod['need_millicores']}m",
        _scarcity(document),
    ]
    lines.extend(f"{reason}: {SENTENCES[CpuReason(reason)]}" for reason in pod["reasons"])
    lines.append(
        f"measured: used {_m(pod['usage_millicores'])}, demand {pod['demand']:.2f} between "
        f"{pod['min_millicores']}m and {pod['max_millicores']}m, throttled in "
        f"{_percent(pod['throttling'])} of periods, {pod['headroom_misses']} headroom misses"
    )
    lower, upper = pod["lower_millicores"], pod["upper_millicores"]
    rails = ", ".join(pod["bound_reasons"])
    if lower is not None and lower == upper:
        lines.append(f"guardrails: held at {lower}m ({rails})")
    elif upper is not None:
        lines.append(f"guardrails: between {lower}m and {upper}m this time ({rails})")
    elif lower is not None:
        lines.append(f"guardrails: at least {lower}m this time ({rails})")
    if pod["reduction_ratio"] > 0:
        lines.append(f"cut: {pod['reduction_ratio']:.0%} of what it needs above its minimum")
    original = pod["original_limit_millicores"]
    lines.append(f"the user's own limit: {_m(original)}" + (", its ceiling" if original else ""))
    if document["sequence"] is not None:
        lines.append(f"recorded as entry {document['sequence']}")
    return lines


def print_replay(path: Path, output: str) -> int:
    """Replay a record; exit 1 when a decision differs, 3 when the record is damaged."""
    from fairlead.recorder import CorruptRecord, read, replay

    counts = {"same": 0, "different": 0, "unknown": 0}
    try:
        for result in replay(read(path)):
            counts[result.verdict] += 1
            if result.verdict != "same" and output == "table":
                click.echo(f"entry {result.seq}: {result.verdict} {result.kind} v{result.version}")
    except CorruptRecord as error:
        click.echo(f"the record is damaged: {error}", err=True)
        return 3
    if output == "json":
        click.echo(json.dumps(counts))
    else:
        click.echo(", ".join(f"{count} {verdict}" for verdict, count in counts.items()))
    return 1 if counts["different"] else 0


def _m(value: int | None) -> str:
    return "none" if value is None else f"{value}m"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"
