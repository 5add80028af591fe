"""What changed between two ticks that people ask about later: doors, isolation, the plane's trust.

Called by the traffic loop; the chronicle keeps what this finds, the log says it.
"""

from collections.abc import Mapping
from typing import NamedTuple

from fairlead.core.traffic import AdmissionMode, Cause
from fairlead.ports.dataplane import Liveness
from fairlead.ports.recorder import Head
from fairlead.ports.traffic import Transition


class Standing(NamedTuple):
    """Where a group stands."""

    mode: AdmissionMode
    liveness: Liveness
    isolated: Mapping[str, Cause]


def transitions(
    before: Standing,
    now: Standing,
    *,
    time_ms: int,
    group: str,
    reasons: tuple[str, ...],
    record: Head | None,
) -> tuple[Transition, ...]:
    """Every change, in a fixed order: the plane's trust, the door, then backends by id."""
    found: list[tuple[str, str | None, str | None, str | None]] = []
    if before.liveness != now.liveness:
        found.append(("failsafe", None, before.liveness.value, now.liveness.value))
    if before.mode is not now.mode:
        found.append(("mode", None, before.mode.value, now.mode.value))
    for backend in sorted(before.isolated.keys() | now.isolated.keys()):
        was, cause = before.isolated.get(backend), now.isolated.get(backend)
        if was is not cause:
            found.append(("isolation", backend, was and was.value, cause and cause.value))
    return tuple(
        Transition(
            time_ms=time_ms,
            group=group,
            what=what,
            backend=backend,
            before=old,
            after=new,
            reasons=reasons,
            record=record,
        )
        for what, backend, old, new in found
    )
