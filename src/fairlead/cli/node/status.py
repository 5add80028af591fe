"""Tables and explanations of `fairlead node`."""

from typing import Any

import click

from fairlead.cli.table import Column, columns, percent, print_table
from fairlead.core.reasons import CpuReason

SENTENCES = {
    CpuReason.DEMAND_DRIVEN: "The need follows the measured demand, with headroom.",
    CpuReason.USAGE_FALLBACK: (
        "Demand reads 0 although usage is near the minimum: the signal looks broken, so the need "
        "is 1.3 times the usage."
    ),
    CpuReason.SIGNAL_MISSING_USAGE: "No demand signal; the need is 1.3 times the usage.",
    CpuReason.SIGNAL_MISSING_HOLD: "No demand signal and no usage; the limit in force is held.",
    CpuReason.SIGNAL_MISSING_MIN: "There is no measurement yet; the need is its minimum.",
    CpuReason.MIN_ABOVE_MAX: "Its minimum is above its maximum; the maximum is used.",
    CpuReason.GUARDRAIL_RELAXED: (
        "A guardrail would have kept the limit higher, but the node has no room for that."
    ),
}
MODES = {
    "uncongested": "All needs fit the node: every pod gets its need, as fast as guardrails allow.",
    "congested": "The needs do not fit the node: policy {policy} divides the shortage.",
    "overloaded": "Not even the minimums fit the node: they are scaled down.",
}

UNREAD = "not all of its cgroups can be read; with cgroup v1 it has to be in cpu and in cpuacct"


def _millicores(value: int | None) -> str:
    return "none" if value is None else f"{value}m"


def _figure(title: str, key: str) -> Column:
    return Column(title, lambda pod: _millicores(pod.get(f"{key}_millicores")))


_PODS = columns(
    "pod",
    _figure("NEED", "need"),
    _figure("GRANT", "grant"),
    _figure("GUARANTEE", "guarantee"),
    _figure("LIMIT", "limit"),
    _figure("USED", "usage"),
    ("THROTTLED", lambda pod: percent(pod["throttling"])),
    ("REASONS", lambda pod: ", ".join(pod["reasons"])),
    wide=[
        _figure("MIN", "min"),
        _figure("MAX", "max"),
        "demand",
        _figure("ORIGINAL", "original_limit"),
    ],
)


def print_status(document: dict[str, Any], *, wide: bool = False) -> None:
    for line in _headline(document):
        click.echo(line)
    print_table(document["pods"], _PODS, wide=wide)


def _headline(document: dict[str, Any]) -> list[str]:
    price = document["shadow_price"]
    lines = [
        f"{document['mode']}: need {document['total_need']}m of "
        f"{document['capacity_millicores']}m, "
        f"{_governs(document)} {document['limits_millicores']}m, policy {document['policy']}"
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
    lines.extend(f"not governed: {pod}: {UNREAD}" for pod in document.get("unread", ()))
    return lines


def _governs(document: dict[str, Any]) -> str:
    # A status of an earlier release says nothing: there were limits only.
    return "limits" if document.get("actuate", "limits") == "limits" else "guarantees"


def _guaranteed(pod: dict[str, Any]) -> str:
    guarantee = pod.get("guarantee_millicores")
    return "" if guarantee is None else f"guaranteed {guarantee}m, "


def _scarcity(document: dict[str, Any]) -> str:
    need, capacity = document["total_need"], document["capacity_millicores"]
    if document["mode"] == "congested" and need <= capacity:
        return (
            f"The needs, {need}m, fit the node again; it stays congested until they fall further."
        )
    return MODES[document["mode"]].format(policy=document["policy"])


def explain_pod(pod: dict[str, Any], document: dict[str, Any]) -> list[str]:
    """How a pod's limit was computed, from the signal to the number."""
    lines = [
        f"{pod['pod']}: {_guaranteed(pod)}limit {_millicores(pod['limit_millicores'])}, "
        f"granted {pod['grant_millicores']}m of a need of {pod['need_millicores']}m",
        _scarcity(document),
    ]
    lines.extend(f"{reason}: {SENTENCES[CpuReason(reason)]}" for reason in pod["reasons"])
    lines.append(
        f"measured: used {_millicores(pod['usage_millicores'])}, demand {pod['demand']:.2f} "
        f"between {pod['min_millicores']}m and {pod['max_millicores']}m, throttled in "
        f"{percent(pod['throttling'])} of periods, {pod['headroom_misses']} headroom misses"
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
        lines.append(f"reduced by {pod['reduction_ratio']:.0%} of its need above the minimum")
    original = pod["original_limit_millicores"]
    lines.append(
        f"the user's own limit: {_millicores(original)}" + (", its ceiling" if original else "")
    )
    if document["sequence"] is not None:
        lines.append(f"recorded as entry {document['sequence']}")
    return lines
