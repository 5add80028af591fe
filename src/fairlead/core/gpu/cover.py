"""Cover: which envelopes pay for a request, all or nothing, and if none can, why not.

One greedy walk in cover order, no backtracking. What an earlier line of the same plan takes counts
against every cap, so two envelopes of 8 under a cap of 10 give 8 + 2 and never 16.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from fairlead.core.gpu.model import Request
from fairlead.core.gpu.route import Book, find_route
from fairlead.core.gpu.walk import Binding, Line, Route, Walk, take
from fairlead.core.invariant import require
from fairlead.core.reasons import CoverRefusal


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request is not covered: the first single relaxation that would have covered it."""

    code: CoverRefusal
    shortfall_gpus: int
    binding: tuple[Binding, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """Who pays how many GPUs, in cover order; or a refusal, and then nothing is granted."""

    gpus: int
    lines: tuple[Line, ...]
    refusal: Refusal | None = None

    @property
    def funded(self) -> bool:
        """Whether the request is covered."""
        return self.refusal is None


# What a refusal can be about, in the order in which it is asked: would the request be covered
# without these caps? Borrowing means both `allow_borrow` and its limit, hours all caps on hours.
_Concerns = Callable[[Binding], bool]
RELAXATIONS: tuple[tuple[CoverRefusal, _Concerns], ...] = (
    (CoverRefusal.BORROW_LIMIT_EXCEEDED, lambda cap: cap.kind == "borrow"),
    (CoverRefusal.ACL_DENIED, lambda cap: cap.kind == "acl"),
    (CoverRefusal.INTEGRAL_CAP_EXCEEDED, lambda cap: cap.hours),
)


def cover(book: Book, request: Request, now_ms: int) -> Plan:
    """Cover a request, or refuse it with the reason."""
    return plan_on(*find_route(book, request, now_ms), request)


def plan_on(route: Route, walk: Walk, request: Request) -> Plan:
    """The plan of a walk that was made."""
    enough = request.enough_gpus
    if walk.gpus < enough:
        return Plan(0, (), _refusal(route, request, walk))
    width = request.gpus
    if request.step_gpus is not None:
        width = enough + (walk.gpus - enough) // request.step_gpus * request.step_gpus
    lines = _narrowed(walk.lines, width)
    require(sum(line.gpus for line in lines) == width, "a plan grants exactly its width")
    return Plan(width, lines)


def _narrowed(lines: Iterable[Line], width: int) -> tuple[Line, ...]:
    """The plan of the same walk for a smaller request: its first `width` GPUs."""
    kept, left = [], width
    for line in lines:
        gpus = min(line.gpus, left)
        if gpus:
            kept.append(line._replace(gpus=gpus))
        left -= gpus
    return tuple(kept)


def _refusal(route: Route, request: Request, walk: Walk) -> Refusal:
    shortfall = request.enough_gpus - walk.gpus
    if not route.candidates:
        return Refusal(CoverRefusal.NO_ENVELOPE, shortfall, ())
    binding = [route.gates[gate].cap for gate in walk.binding]
    for code, concerns in RELAXATIONS:
        if not any(concerns(cap) for cap in binding):
            continue  # none of them stood in the way, so the walk would be the same
        rooms = [request.gpus if concerns(gate.cap) else gate.gpus for gate in route.gates]
        if take(route, rooms, request.enough_gpus).gpus == request.enough_gpus:
            return Refusal(code, shortfall, tuple(cap for cap in binding if concerns(cap)))
    return Refusal(CoverRefusal.CONCURRENCY_CAP_EXCEEDED, shortfall, tuple(binding))
