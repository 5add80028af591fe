"""Claims: what an owner's waiting runs keep of its own envelopes from family and borrowers.

A guest may be before the owner's run in the queue. Admitted first on the owner's envelope it would
be recalled in the next turn, and the owner would wait for its minimum runtime. So runs of the owner
that could start now, which its own envelopes alone pay for, claim their part of these: for requests
of other owners it counts as used.

    claimants   in the order of the queue, alike ones as one row; one that is not covered beside
                those before it claims nothing
"""

from collections import ChainMap
from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass
from typing import Annotated

from fairlead.core.gpu.cover import Book, cover
from fairlead.core.gpu.model import Request
from fairlead.core.gpu.usage import Key, Usage
from fairlead.core.units import Name, Range

RUNS_MAX = 10_000
"""Runs of one row, each of which is covered on its own."""


@dataclass(frozen=True, slots=True)
class Claimant:
    """Waiting runs that ask for the same and fit on devices that are free; `run`: the first."""

    run: Name
    request: Request
    runs: Annotated[int, Range(1, RUNS_MAX)] = 1


def claimed(book: Book, claimants: Iterable[Claimant], now_ms: int) -> Book:
    """The same budgets for a request of another owner than these runs have."""
    by_owner: dict[str, list[Claimant]] = {}
    for claimant in claimants:
        by_owner.setdefault(claimant.request.owner, []).append(claimant)
    made = copy(book)
    made.claims = {
        key: usage
        for owner, mine in sorted(by_owner.items())
        for key, usage in _claims(Book(book.by_owner.get(owner, ()), book.usage), mine, now_ms)
    }
    return made


def _claims(own: Book, claimants: Iterable[Claimant], now_ms: int) -> Iterable[tuple[Key, Usage]]:
    """`own`: the budgets of their owner, and no others."""
    used: dict[Key, Usage] = {}
    found: dict[Key, Usage] = {}
    own.usage = ChainMap(used, own.usage)  # type: ignore[arg-type]  # read only
    for claimant in claimants:
        request = claimant.request
        for _ in range(claimant.runs):
            plan = cover(own, request, now_ms)
            if not plan.funded:
                break
            for line in plan.lines:
                key = (line.budget, line.envelope)
                part = Usage(line.gpus, 0, line.gpus * (request.duration_ms or 0))
                used[key] = own.used(*key).with_more(part)
                found[key] = found.get(key, Usage()).with_more(part)
    return found.items()
