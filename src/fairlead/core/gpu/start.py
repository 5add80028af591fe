"""Whether a run can start now, and how wide: covered, then placed.

A malleable run starts at the widest width that is both. Where it lacks devices, no more is freed
for it than its minimum.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from fairlead.core.gpu.cover import Book, Plan
from fairlead.core.gpu.model import Request
from fairlead.core.gpu.place import Gang, Placement
from fairlead.core.gpu.remedy import Remedy, cover_or_remedy


@dataclass(frozen=True, slots=True)
class Assessment:
    """What cover and place say of a run. `placement` None: it is not funded, or not placed yet."""

    request: Request
    plan: Plan
    remedy: Remedy | None = None
    gang: Gang | None = None
    placement: Placement | None = None

    @property
    def starts(self) -> bool:
        """Whether it is funded and has devices."""
        return self.placement is not None and self.placement.placed


def assess(
    book: Book,
    request: Request,
    now_ms: int,
    *,
    gang_of: Callable[[Plan], Gang],
    place: Callable[[Gang], Placement],
    free_gpus: Callable[[], int],
) -> Assessment:
    """Cover a request and place its gang; of those that do not start, the widest."""
    first: Assessment | None = None
    while True:
        plan, remedy = cover_or_remedy(book, request, now_ms)
        if not plan.funded:
            return first or Assessment(request, plan, remedy)
        gang = gang_of(plan)
        assessed = Assessment(request, plan, remedy, gang, place(gang))
        first = first or assessed
        if assessed.starts:
            return assessed
        least, step = request.min_gpus, request.step_gpus or 1
        if least is None:
            return first
        # Wider than all free devices nothing is placed: of 100 000 widths on 8, only 8 are tried.
        width = min(plan.gpus - step, least + (free_gpus() - least) // step * step)
        if width < least:
            return first
        request = replace(request, gpus=width)


def at_least(book: Book, assessed: Assessment, now_ms: int) -> Assessment:
    """The same run at the width that preemption would make room for: its minimum, if it has one."""
    request = assessed.request
    if request.min_gpus is None:
        return assessed
    request = replace(request, gpus=request.min_gpus)
    return Assessment(request, *cover_or_remedy(book, request, now_ms))
