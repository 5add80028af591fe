"""Whether a history of concurrent operations has an order in which each is one step.

A history is linearizable if every operation can be given one moment between its call and its answer
so that the answers are those of a machine that takes one operation at a time (Herlihy and Wing,
1990). The search is Wing and Gong's with Lowe's memory of what was tried (2017). An operation that
was never answered may have happened at any time after its call, or not at all.
"""

import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

State = Hashable
Step = Callable[[Any, "Operation"], State]


class Impossible(Exception):
    """The operation cannot have this answer in this state."""


class Operation(NamedTuple):
    """What was asked and answered; `end` is infinite where no answer came."""

    begin: float
    end: float
    action: str
    argument: Any = None
    answer: Any = None

    @property
    def answered(self) -> bool:
        return self.end != math.inf


def linearizable(history: Sequence[Operation], step: Step, start: State) -> bool:
    """Whether such an order exists, for the machine that `step` describes."""
    operations = sorted(history, key=lambda each: each.begin)
    needed = sum(1 << i for i, each in enumerate(operations) if each.answered)
    seen: set[tuple[int, State]] = set()
    paths: list[tuple[int, State]] = [(0, start)]
    while paths:
        done, state = paths.pop()
        if done & needed == needed:
            return True
        if (done, state) in seen:
            continue
        seen.add((done, state))
        # The last one pushed is tried first: those with an answer, the earliest of them.
        for i in sorted(_next(operations, done), key=lambda i: (operations[i].answered, -i)):
            try:
                paths.append((done | 1 << i, step(state, operations[i])))
            except Impossible:
                continue
    return False


def _next(operations: Sequence[Operation], done: int) -> list[int]:
    """What may come next: whatever began before the first answer that is still to be explained."""
    rest = [i for i in range(len(operations)) if not done >> i & 1]
    first = min(operations[i].end for i in rest)
    return [i for i in rest if operations[i].begin <= first]
