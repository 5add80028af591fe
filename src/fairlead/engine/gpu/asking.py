"""Which runs a turn of admission asks: all, or the next one of those that ask for the same.

`admission.py` decides about each, and appends what was decided up to a start.
"""

from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from heapq import heappop, heappush
from typing import Protocol


class Asking(Protocol):
    """Runs that are still to be asked. A batch that was not recorded is begun again."""

    @property
    def is_over(self) -> bool: ...

    def batch(self) -> Iterator[str]: ...

    def started(self) -> None:
        """The run that was asked last takes devices: the batch ends with it."""

    def settle(self) -> None:
        """What the batch asked was recorded."""


class EachRun:
    """All of them, or a part in each turn."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names, self._first, self._asked, self._last = names, 0, 0, len(names)
        self.is_stopped = False

    def next_part(self, most: int | None) -> None:
        """So many more are asked; None: all that are left."""
        left = len(self._names) - self._first
        self._last = self._first + (left if most is None else min(most, left))
        self.is_stopped = False

    def stop(self) -> None:
        """The run that was asked last is the last one before the next part."""
        self.is_stopped = True

    @property
    def is_over(self) -> bool:
        return self.is_stopped or self._first >= self._last

    def batch(self) -> Iterator[str]:
        self.is_stopped = False
        for place in range(self._first, self._last):
            self._asked = place
            yield self._names[place]
            if self.is_stopped:
                return

    def started(self) -> None:
        """The next one comes anyway."""

    def settle(self) -> None:
        self._first = self._asked + 1


class StandingOrder:
    """The runs of an order by what they ask for."""

    def __init__(self, names: Sequence[str], alike: Iterable[str]) -> None:
        """`alike`: of each run, the same for all that ask for the same."""
        self.names = names
        places: dict[str, list[int]] = defaultdict(list)
        for place, key in enumerate(alike):
            places[key].append(place)
        self._alike = [list(reversed(each)) for each in places.values()]
        """The first of each comes last: those that started are taken away."""

    def left(self, waits: Callable[[str], bool]) -> Iterator[list[int]]:
        """Of each the first that still waits and all that come after it, in reverse."""
        for places in self._alike:
            while places and not waits(self.names[places[-1]]):
                places.pop()
            if places:
                yield places.copy()


class NextOfEach:
    """By an order that stands: of runs that ask for the same the first, and the one after it where
    that one started. `held`: runs that wait for a reason of their own, and are passed over."""

    def __init__(
        self, order: StandingOrder, waits: Callable[[str], bool], held: Container[str]
    ) -> None:
        self._names, self._waits, self._held = order.names, waits, held
        self._batch: list[tuple[int, list[int]]] = []
        for places in order.left(waits):
            self._add_next(places)
        self._left = self._batch
        self._behind: list[int] = []
        self.starts = 0

    @property
    def is_over(self) -> bool:
        return not self._left

    def batch(self) -> Iterator[str]:
        self._batch = self._left.copy()
        while self._batch:
            place, self._behind = heappop(self._batch)
            yield self._names[place]

    def started(self) -> None:
        self.starts += 1
        self._add_next(self._behind.copy())

    def _add_next(self, places: list[int]) -> None:
        while places:
            place = places.pop()
            name = self._names[place]
            if name not in self._held and self._waits(name):
                heappush(self._batch, (place, places))
                return

    def settle(self) -> None:
        self._left = self._batch
