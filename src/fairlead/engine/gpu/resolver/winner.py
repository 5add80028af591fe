"""The run that others are to give way for: is it paid for, does it fit, and what is missing if not.

Cuts are made for a run that is funded and lacks devices; never for one that lacks budget. A
malleable run asks for its minimum: nobody gives way for more than it needs to start.
"""

from dataclasses import dataclass, replace
from typing import Any

from fairlead.core.gpu.place import Gang
from fairlead.engine.gpu.admit import consider, elsewhere_of
from fairlead.engine.gpu.projection import Projection
from fairlead.engine.gpu.resolver.cuts import place_after
from fairlead.engine.gpu.resolver.deficit import Deficit, find_deficit
from fairlead.engine.gpu.state import LeaseFact, Phase
from fairlead.schema.gpu import fund
from fairlead.schema.objects import to_gang, to_request, without_spares

PATIENCE = 24  # trial placements in search of the time when there is room


@dataclass(frozen=True, slots=True)
class Need:
    """What a run is waiting for. At most one of refusal and gang is given; neither: it fits now."""

    starts: bool
    refusal: dict[str, Any] | None = None
    gang: Gang | None = None
    """What has to be placed, where it lacks devices only."""


def need_of(projection: Projection, run: str, now_ms: int) -> Need:
    """Why a waiting run does not start."""
    spec = projection.run_spec(run)
    verdict = consider(projection, spec, now_ms)
    if verdict.starts:
        return Need(starts=True)
    output = verdict.output
    request = to_request(spec)
    if request.min_gpus is not None:
        request = replace(request, gpus=request.min_gpus)
        output = fund(projection.book(now_ms), request, now_ms)
    if not output["funded"]:
        return Need(starts=False, refusal=output["refusal"])
    gpus = without_spares(spec, output["gpus"])
    return Need(starts=False, gang=to_gang(spec, gpus, elsewhere=elsewhere_of(output)))


def deficit_of(projection: Projection, run: str, gang: Gang) -> Deficit | None:
    """Where how many GPUs would have to be freed for it."""
    return find_deficit(projection, gang, beneficiary=run)


def obstacle(projection: Projection, run: str, ending: list[LeaseFact], now_ms: int) -> str | None:
    """Why a run could not start even if these leases ended; None: it can, and it needs them.

    Asked in the same breath as the draw is recorded: nobody is cut for a run that will not start.
    """
    state = projection.runs.get(run)
    if state is None or state.phase is not Phase.PENDING or state.stopping:
        return "the run that it was for is gone"
    need = need_of(projection, run, now_ms)
    if need.starts:
        return "the run that it was for fits without anybody giving way"
    if need.gang is None:
        return "the run that it was for is not paid for any more"
    if not place_after(projection, need.gang, ending).placed:
        return "the run that it was for would not fit into what is freed"
    return None


def free_at(projection: Projection, gang: Gang, now_ms: int) -> int | None:
    """When the gang would fit if every lease ends when it is expected to; None: not foreseeable."""
    ending = sorted(
        (lease for lease in projection.leases.values() if lease.expected_end_ms is not None),
        key=lambda lease: (lease.expected_end_ms or 0, lease.id),
    )
    times = sorted({lease.expected_end_ms or 0 for lease in ending})

    def fits(until_ms: int) -> bool:
        gone = [lease for lease in ending if (lease.expected_end_ms or 0) <= until_ms]
        return place_after(projection, gang, gone).placed

    if place_after(projection, gang, ()).placed:
        return now_ms
    if not times or not fits(times[-1]):
        return None
    low, high = 0, len(times) - 1
    for _ in range(PATIENCE):
        if low >= high:
            break
        middle = (low + high) // 2
        low, high = (low, middle) if fits(times[middle]) else (middle + 1, high)
    return max(now_ms, times[high])
