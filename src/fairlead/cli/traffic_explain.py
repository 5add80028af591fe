"""Sentences for `fairlead traffic explain`: what each reason means, and what to do about it.

The runbook (`docs/operate/traffic.md`) says the same at length; a test keeps the two complete.
"""

from typing import Any

from fairlead.core.reasons import TrafficReason

SENTENCES = {
    TrafficReason.FAILSAFE: (
        "The plane had not heard of the agent for more than 3 s: it held its table, and from 15 s "
        "on it chose by a hash. Look for missed ticks, a full disk or a restart."
    ),
    TrafficReason.FULL: (
        "As many requests are inside as the backends can serve in time; what comes beyond is told "
        "to try again, so that those inside are not late too. Add capacity, or set `inside_max`."
    ),
    TrafficReason.NO_BACKENDS: "The group is empty, everything is refused. Give it backends.",
    TrafficReason.ALL_ISOLATED: (
        "Every backend is isolated; a drip goes to the least bad. Restore those that you isolated, "
        "look after the others."
    ),
    TrafficReason.PSI_STALL: (
        "Tasks of a machine stand still most of the time (PSI). Take load off it, or give it more."
    ),
    TrafficReason.TTF: "Something of a machine runs out soon: memory, files, conntrack, disk.",
    TrafficReason.RETRY_STORM: "Clients repeat themselves more than they succeed; have them wait.",
    TrafficReason.ERRORS: "A backend that is in service fails too often. Look at its log.",
    TrafficReason.CONDUCTANCE: (
        "All backends together are under too much pressure for their load: add capacity."
    ),
    TrafficReason.SKEW: (
        "Requests go elsewhere than the weights want: long connections, most likely. Drain, or "
        "have clients reconnect."
    ),
    TrafficReason.SIGNAL_MISSING_LATENCY: (
        "Latency is unknown for somebody; the group's worst is assumed. Without any requests there "
        "is none; else let the agent scrape it."
    ),
    TrafficReason.SIGNAL_MISSING_ERRORS: "Error rates are unknown for somebody; let it be scraped.",
    TrafficReason.SIGNAL_MISSING_QUEUE: "Queues are unknown for somebody; let them be scraped.",
    TrafficReason.SIGNAL_MISSING_BOTH: (
        "Neither latency nor errors are known of anybody: the slots stay, the door is careful."
    ),
    TrafficReason.ISOLATION: "A backend is isolated; it is probed until it answers well again.",
    TrafficReason.GUARD_HOLD: "A step was not taken: it would have made the skew worse.",
    TrafficReason.PRESSURE_ERRORS: "Slots move, mostly away from errors.",
    TrafficReason.PRESSURE_LATENCY: "Slots move, mostly away from latency.",
    TrafficReason.PRESSURE_QUEUE: "Slots move, mostly away from queues.",
    TrafficReason.MONOPOLY: "One backend: nothing to choose from, only the door. Add another.",
    TrafficReason.STEADY: "Nothing moves and nothing is wrong.",
}
DOORS = {
    "normal": "The door is open.",
    "soft": "The door is half open: {rate:.4g} new requests per second, bursts of {burst:.4g}; the "
    "others are told to try again.",
    "hard": "The door is shut but for a drip of {rate:.4g} per second, to see whether it got "
    "better; the others are refused.",
}
CAUSES = {
    "operator": "by the operator, until `fairlead traffic restore`",
    "health-check": "because its health check fails",
    "connect-failures": "because connections to it failed five times in a row",
    "outlier": "because its pressure was four times the group's for 3 s, or it gave hardly "
    "anything but errors, or it piled up far more than the others",
}


def explain_group(group: dict[str, Any], document: dict[str, Any]) -> list[str]:
    """Why the door is as it is, and what holds now."""
    door = DOORS[group["mode"]].format(rate=group["rate_per_s"] or 0, burst=group["burst"] or 0)
    lines = [f"{group['group']}: {group['mode']}, {group['regime']}. {door}"]
    lines += [f"{reason}: {SENTENCES[TrafficReason(reason)]}" for reason in group["reasons"]]
    facts = [f"conductance {group['conductance']:.3g}"]
    if group["inside_max"] is not None:
        facts.append(f"at most {group['inside_max']} inside")
    if group["skew"] is not None:
        facts.append(f"skew {group['skew']:.2f}")
    if group["ttf_s"] is not None:
        facts.append(f"{group['ttf_s']:.0f} s until something runs out")
    if group["retry_index"] is not None:
        facts.append(f"{group['retry_index']:.2f} retries per success")
    lines.append("measured: " + ", ".join(facts) + (", the machine stalls" * group["stall"]))
    sources = "; ".join(f"{name}: {where}" for name, where in document["sources"].items())
    lines.append(f"signals of the {document['plane']} plane: {sources}")
    if group["scale_hint"]:
        lines.append("a second backend would help: there is nobody to move requests to")
    if group["fault"]:
        lines.append(f"not in force: {group['fault']}")
    if group["sequence"] is not None:
        lines.append(f"recorded as entry {group['sequence']}")
    return lines


def explain_backend(backend: dict[str, Any], group: dict[str, Any]) -> list[str]:
    """Why a backend has its slots, from the signals to the number."""
    total = sum(each["slots"] for each in group["backends"])
    pressure = backend["pressure"]
    terms = ", ".join(
        f"{name} {value:.3g}" for name, value in pressure.items() if name != "total" and value
    )
    lines = [
        f"{backend['backend']}: {backend['slots']} of {total} slots, on its way to "
        f"{backend['target']}; a share of {backend['weight']:.1%} is due to it",
        f"pressure {pressure['total']:.3g}: {terms or 'no term counts, this is the floor'}",
        f"measured: p95 {_of(backend['p95_ms'], 'ms')}, errors {_share(backend['error_rate'])}, "
        f"queue {_of(backend['queue'], '')}, {_of(backend['requests'], 'requests')} in the window",
    ]
    if backend["isolated"]:
        lines.append(f"isolated {CAUSES[backend['isolated']]}")
    elif backend["age_ms"] is not None and backend["slots"] < backend["target"]:
        lines.append(f"it came {backend['age_ms'] / 1000:.0f} s ago and is warming up")
    if backend["order"] == "drain":
        lines.append(f"draining: {_of(backend['open'], 'connections')} left")
    return lines


def _of(value: float | None, unit: str) -> str:
    return "unknown" if value is None else f"{value:.4g} {unit}".rstrip()


def _share(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.1%}"
