"""Border types of the simulator: how a pod's true want of CPU moves over time.

Traces add up. Outside [`from_s`, `until_s`) a trace wants nothing.
"""

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from fairlead.schema.border import BadInput, check_shape

Seconds = Annotated[int, Meta(ge=0, le=7 * 86_400, description="virtual seconds")]
SecondsAtLeastOne = Annotated[int, Meta(ge=1, le=7 * 86_400, description="virtual seconds")]
Level = Annotated[int, Meta(ge=0, le=10_000_000, description="thousandths of a CPU core")]


class TraceBase(
    msgspec.Struct, forbid_unknown_fields=True, frozen=True, tag_field="kind", kw_only=True
):
    """What all traces share: when they are on."""

    from_s: Seconds = 0
    until_s: Seconds | None = None


class Constant(TraceBase, frozen=True, tag="constant"):
    """Always the same."""

    millicores: Level


class Steps(TraceBase, frozen=True, tag="steps"):
    """One level after the other, `every_s` each, from the beginning again at the end."""

    every_s: SecondsAtLeastOne
    millicores: Annotated[list[Level], Meta(min_length=1)]


class Sine(TraceBase, frozen=True, tag="sine"):
    """A wave between a low and a high level, rising through the middle at `phase_s`."""

    low_millicores: Level
    high_millicores: Level
    period_s: SecondsAtLeastOne
    phase_s: Seconds = 0


class Bursty(TraceBase, frozen=True, tag="bursty"):
    """On and off by seeded chance; the means are of geometric times."""

    high_millicores: Level
    on_s: SecondsAtLeastOne
    off_s: SecondsAtLeastOne
    low_millicores: Level = 0


class Ramp(TraceBase, frozen=True, tag="ramp"):
    """From one level to another over `ramp_s` seconds after `from_s`; then it stays."""

    start_millicores: Level
    end_millicores: Level
    ramp_s: SecondsAtLeastOne


class Point(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A level from a time on."""

    at_s: Seconds
    millicores: Level


class Points(TraceBase, frozen=True, tag="points"):
    """Explicit levels; each holds until the next, or leads to it in a line if `linear`."""

    points: Annotated[list[Point], Meta(min_length=1)]
    linear: bool = False


class Spikes(TraceBase, frozen=True, tag="spikes"):
    """Short spikes at seeded Poisson times; those that overlap add up."""

    millicores: Level
    per_minute: Annotated[float, Meta(ge=0, le=300)]
    length_ms: Annotated[int, Meta(ge=100, le=3_600_000)] = 1_000


Trace = Constant | Steps | Sine | Bursty | Ramp | Points | Spikes
TRACES: Mapping[str, type[TraceBase]] = {
    "constant": Constant,
    "steps": Steps,
    "sine": Sine,
    "bursty": Bursty,
    "ramp": Ramp,
    "points": Points,
    "spikes": Spikes,
}


def check_trace(value: Any, path: str) -> None:
    """Check one trace against the shape of its kind; `BadInput` carries the whole path."""
    if not isinstance(value, dict):
        return  # the scenario's own shape says it better
    kind = value.get("kind")
    if not isinstance(kind, str) or kind not in TRACES:
        wanted = f"must be one of {', '.join(TRACES)}"
        raise BadInput(f"{path}.kind", wanted if "kind" in value else f"is required; {wanted}")
    try:
        trace = check_shape(value, TRACES[kind])
    except BadInput as error:
        raise BadInput(f"{path}.{error.path}", error.message) from None
    if isinstance(trace, Sine | Bursty) and trace.low_millicores > trace.high_millicores:
        raise BadInput(f"{path}.low_millicores", "must not be above high_millicores")
    if isinstance(trace, Points):
        times = [point.at_s for point in trace.points]
        if times != sorted(set(times)):
            raise BadInput(f"{path}.points", "must be in the order of at_s, no time twice")
    if trace.until_s is not None and trace.until_s <= trace.from_s:
        raise BadInput(f"{path}.until_s", "must be after from_s")
