"""Tables and explanations of `fairlead traffic`.

The runbook (`docs/operate/traffic.md`) explains the same reasons at length; a test keeps both
complete.
"""

from typing import Any

import click

from fairlead.cli.table import columns, percent, print_table
from fairlead.core.reasons import TrafficReason

SENTENCES = {
    TrafficReason.FAILSAFE: (
        "The proxy had no word from the agent for more than 3 s: it kept its table, and after 15 s "
        "it selected by a hash. Look for missed ticks, a full disk or a restart."
    ),
    TrafficReason.FULL: (
        "The backends hold as many requests as they can serve in time; further requests get 503 "
        "with Retry-After. Add capacity, or set `inside_max`."
    ),
    TrafficReason.NO_BACKENDS: "The group has no backends: every request is rejected. Add some.",
    TrafficReason.ALL_ISOLATED: (
        "Every backend is ejected; a few requests go to the least unhealthy one. Restore those "
        "that you isolated, and repair the others."
    ),
    TrafficReason.PSI_STALL: (
        "Tasks of a machine are stalled most of the time (PSI). Reduce its load, or add capacity; "
        "where the backends run elsewhere, `node: {watch: false}` leaves the agent's machine out."
    ),
    TrafficReason.TTF: "A machine runs out of memory, files, conntrack or disk soon.",
    TrafficReason.RETRY_STORM: "Clients retry more than they succeed; make them back off.",
    TrafficReason.ERRORS: "A backend in service returns too many errors. Look at its log.",
    TrafficReason.CONDUCTANCE: (
        "All backends together are under too much pressure for their load: add capacity."
    ),
    TrafficReason.SKEW: (
        "Requests do not follow the weights, most likely because of long connections. Drain, or "
        "make clients reconnect."
    ),
    TrafficReason.SIGNAL_MISSING_LATENCY: (
        "The latency of a backend is unknown; the group's worst is assumed. Without requests there "
        "is none; otherwise configure `scrape`."
    ),
    TrafficReason.SIGNAL_MISSING_ERRORS: (
        "The error rate of a backend is unknown; configure `scrape`."
    ),
    TrafficReason.SIGNAL_MISSING_QUEUE: "The queue of a backend is unknown; configure `scrape`.",
    TrafficReason.SIGNAL_MISSING_BOTH: (
        "Neither latency nor errors of any backend are known: slots stay, admission is soft."
    ),
    TrafficReason.ISOLATION: "A backend is ejected; it is probed until it is healthy again.",
    TrafficReason.GUARD_HOLD: "A step was skipped: it would have increased the skew.",
    TrafficReason.PRESSURE_ERRORS: "Slots move, mostly away from errors.",
    TrafficReason.PRESSURE_LATENCY: "Slots move, mostly away from latency.",
    TrafficReason.PRESSURE_QUEUE: "Slots move, mostly away from queues.",
    TrafficReason.MONOPOLY: "There is one backend: only admission can be governed. Add another.",
    TrafficReason.STEADY: "No slot moves, and no problem is known.",
}
ADMISSION = {
    "normal": "Admission is open.",
    "soft": "Admission is soft: new requests at {rate:.4g} per second, bursts of {burst:.4g}; the "
    "others get 503 with Retry-After.",
    "hard": "Admission is hard: probe requests at {rate:.4g} per second; the others are rejected.",
}
CAUSES = {
    "operator": "by the operator, until `fairlead traffic restore`",
    "health-check": "because its health check fails",
    "connect-failures": "because connections to it failed five times in a row",
    "outlier": "as an outlier: its pressure was four times the group's for 3 s, or it returned "
    "almost only errors, or its backlog was far above the others'",
}


def explain_group(group: dict[str, Any], document: dict[str, Any]) -> list[str]:
    """Why admission is in its mode, and the measured values."""
    rates = {"rate": group["rate_per_s"] or 0, "burst": group["burst"] or 0}
    admission = ADMISSION[group["mode"]].format(**rates)
    lines = [f"{group['group']}: {group['mode']}, {group['regime']}. {admission}"]
    lines += [f"{reason}: {SENTENCES[TrafficReason(reason)]}" for reason in group["reasons"]]
    facts = [f"conductance {group['conductance']:.3g}"]
    if group["inside_max"] is not None:
        facts.append(f"at most {group['inside_max']} concurrent requests")
    if group["skew"] is not None:
        facts.append(f"skew {group['skew']:.2f}")
    if group["ttf_s"] is not None:
        facts.append(f"{group['ttf_s']:.0f} s until a resource runs out")
    if group["retry_index"] is not None:
        facts.append(f"{group['retry_index']:.2f} retries per success")
    lines.append("measured: " + ", ".join(facts) + (", the machine is stalled" * group["stall"]))
    sources = "; ".join(f"{name}: {where}" for name, where in document["sources"].items())
    lines.append(f"signals of the {document['plane']} dataplane: {sources}")
    if group["scale_hint"]:
        lines.append("a second backend would help: there is no other to move requests to")
    if group["fault"]:
        lines.append(f"not in force: {group['fault']}")
    if group["sequence"] is not None:
        lines.append(f"recorded as entry {group['sequence']}")
    return lines


def explain_backend(backend: dict[str, Any], group: dict[str, Any]) -> list[str]:
    """How a backend's slots were computed, from the signals to the number."""
    total = sum(row["slots"] for row in group["backends"])
    pressure = backend["pressure"]
    terms = ", ".join(
        f"{name} {value:.3g}" for name, value in pressure.items() if name != "total" and value
    )
    lines = [
        f"{backend['backend']}: {backend['slots']} of {total} slots, target "
        f"{backend['target']}, weight {backend['weight']:.1%}",
        f"pressure {pressure['total']:.3g}: {terms or 'every term is zero, this is the floor'}",
        f"measured: p95 {_of(backend['p95_ms'], 'ms')}, errors {_share(backend['error_rate'])}, "
        f"queue {_of(backend['queue'], '')}, {_of(backend['requests'], 'requests')} in the window",
    ]
    if backend["isolated"]:
        lines.append(f"ejected {CAUSES[backend['isolated']]}")
    elif backend["age_ms"] is not None and backend["slots"] < backend["target"]:
        lines.append(f"added {backend['age_ms'] / 1000:.0f} s ago, warming up")
    if backend["order"] == "drain":
        lines.append(f"draining: {_of(backend['open'], 'connections')} left")
    return lines


def _of(value: float | None, unit: str) -> str:
    return "unknown" if value is None else f"{value:.4g} {unit}".rstrip()


def _share(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.1%}"


def _number(unit: str, key: str) -> Any:
    return lambda row: "-" if row[key] is None else f"{row[key]:.4g}{unit}"


def _state(backend: dict[str, Any]) -> str:
    if backend["order"] == "drain":
        return "draining"
    return f"isolated: {backend['isolated']}" if backend["isolated"] else "in service"


_BACKENDS = columns(
    "backend slots target",
    ("PRESSURE", lambda row: f"{row['pressure']['total']:.3g}"),
    ("P95", _number(" ms", "p95_ms")),
    ("ERRORS", lambda row: percent(row["error_rate"], 1)),
    ("QUEUE", _number("", "queue")),
    ("REQUESTS", _number("", "requests")),
    ("STATE", _state),
    wide=[("WEIGHT", lambda row: percent(row["weight"], 1)), ("OPEN", _number("", "open"))],
)


def print_status(document: dict[str, Any], *, wide: bool = False) -> None:
    click.echo(
        f"plane {document['plane']}, {document['ticks']} ticks of {document['tick_ms']} ms, "
        f"{document['missed_ticks']} missed, {document['flips']} flips, {document['faults']} faults"
    )
    age_s = document["age_ms"] // 1000
    if not document["running"]:
        click.echo(f"No agent is running; this is {age_s} s old.")
    elif document["stale"]:
        click.echo(f"The agent is late: its last status is {age_s} s old.")
    for problem in document["problems"]:
        click.echo(f"problem: {problem}")
    for group in document["groups"]:
        mode = group["mode"]
        if group["rate_per_s"] is not None:
            mode += f" at {group['rate_per_s']:.3g}/s"
        click.echo(
            f"\n{group['group']} {group['vip']}:{group['port']}/{group['proto']}: "
            f"admission {mode}, {group['regime']}; {', '.join(group['reasons'])}"
        )
        if group["fault"]:
            click.echo(f"  not in force: {group['fault']}")
        print_table(group["backends"], _BACKENDS, "  ", wide=wide)
