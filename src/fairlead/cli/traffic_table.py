"""Tables for `fairlead traffic status`: presentation only."""

from typing import Any

import click

from fairlead.cli.show import table

HEADER = (
    "BACKEND",
    "SLOTS",
    "TARGET",
    "PRESSURE",
    "P95",
    "ERRORS",
    "QUEUE",
    "REQUESTS",
    "STANDING",
)


def print_status(document: dict[str, Any]) -> None:
    """A few lines about the agent, then each group with a row per backend."""
    for line in headlines(document):
        click.echo(line)
    for group in document["groups"]:
        click.echo("")
        for line in _group(group):
            click.echo(line)
        table(HEADER, [_row(backend) for backend in group["backends"]], indent="  ")


def headlines(document: dict[str, Any]) -> list[str]:
    """The agent itself."""
    lines = [
        f"plane {document['plane']}, {document['ticks']} ticks of {document['tick_ms']} ms, "
        f"{document['missed_ticks']} missed, {document['flips']} flips, {document['faults']} faults"
    ]
    age_s = document["age_ms"] // 1000
    if not document["running"]:
        lines.append(f"No agent is running; this is {age_s} s old.")
    elif document["stale"]:
        lines.append(f"The agent is late: its last word is {age_s} s old.")
    lines.extend(f"problem: {each}" for each in document["problems"])
    return lines


def _group(group: dict[str, Any]) -> list[str]:
    door = group["mode"]
    if group["rate_per_s"] is not None:
        door += f" at {group['rate_per_s']:.3g}/s"
    lines = [
        f"{group['group']} {group['vip']}:{group['port']}/{group['proto']}: door {door}, "
        f"{group['regime']}; {', '.join(group['reasons'])}"
    ]
    if group["fault"]:
        lines.append(f"  not in force: {group['fault']}")
    return lines


def _row(backend: dict[str, Any]) -> list[str]:
    standing = f"isolated: {backend['isolated']}" if backend["isolated"] else "in service"
    if backend["order"] == "drain":
        standing = "draining"
    return [
        backend["backend"],
        str(backend["slots"]),
        str(backend["target"]),
        f"{backend['pressure']['total']:.3g}",
        _number(backend["p95_ms"], " ms"),
        _percent(backend["error_rate"]),
        _number(backend["queue"], ""),
        _number(backend["requests"], ""),
        standing,
    ]


def _number(value: float | None, unit: str) -> str:
    return "-" if value is None else f"{value:.4g}{unit}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"
