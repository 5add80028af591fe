"""A route through envelopes and caps, and the greedy walk along it: what cover is decided on.

These are tuples with names, not dataclasses: a refused request makes three hundred of them, and a
frozen dataclass takes four times as long to make (measured: half of such a decision's time).
"""

from collections.abc import Sequence
from typing import NamedTuple

from fairlead.core.gpu.family import Tier
from fairlead.core.gpu.model import Budget, Envelope


class Binding(NamedTuple):
    """A cap that limited the walk. Hour caps are in GPU-milliseconds; `used` is before the plan."""

    kind: str
    budget: str | None
    name: str
    limit: int | None
    used: int
    hours: bool = False


class Gate(NamedTuple):
    """A cap and the GPUs it lets through before any line of the plan has passed."""

    cap: Binding
    gpus: int


class Candidate(NamedTuple):
    """An envelope that could pay, its place in the cover order, and the gates before it."""

    tier: Tier
    budget: Budget
    envelope: Envelope
    gates: tuple[int, ...]
    """Indexes into the route's gates."""


class Route(NamedTuple):
    """Candidates in cover order, and every gate on the way to them once."""

    candidates: tuple[Candidate, ...]
    gates: tuple[Gate, ...]


class Line(NamedTuple):
    """One envelope's part of a plan."""

    budget: str
    envelope: str
    owner: str
    gpus: int
    tier: Tier

    @property
    def borrowed(self) -> bool:
        """Whether it is a loan from a sponsor."""
        return self.tier.borrows


class Walk:
    """A greedy walk: what was granted, and the gates that let nothing more through, in order."""

    __slots__ = ("binding", "gpus", "left", "lines", "wanted")

    def __init__(self, wanted: int, rooms: Sequence[int] = ()) -> None:
        self.wanted, self.left = wanted, list(rooms)
        self.lines: list[Line] = []
        self.binding: dict[int, None] = {}
        self.gpus = 0

    def visit(self, candidate: Candidate) -> None:
        """Take from an envelope what all its gates let through."""
        left, gates = self.left, candidate.gates
        gpus = self.wanted - self.gpus
        for gate in gates:
            if left[gate] < gpus:  # noqa: PLR1730 - `min` takes three times as long
                gpus = left[gate]
        for gate in gates:
            rest = left[gate] = left[gate] - gpus
            if not rest:
                self.binding[gate] = None
        if gpus:
            budget, envelope = candidate.budget, candidate.envelope
            line = Line(budget.name, envelope.name, budget.owner, gpus, candidate.tier)
            self.lines.append(line)
            self.gpus += gpus


def take(route: Route, rooms: Sequence[int], wanted: int) -> Walk:
    """Walk the candidates until all that is wanted is granted; a room per gate."""
    walk = Walk(wanted, rooms)
    for candidate in route.candidates:
        if walk.gpus == wanted:
            break
        walk.visit(candidate)
    return walk
