"""Shares: a lottery in which every GPU of a tier is as likely to be lost as the next.

An owner's expected loss is then its share of the GPUs, however it divides them among runs: neither
splitting nor merging runs moves a loss to other owners. Whole runs are lost all the same, so the
seed selects among heaps of runs. Each run is in one heap and the heaps are equally likely, which
makes every run as likely as the next, whatever its size.

    needed    runs without which all others would not be enough are lost by any rule
    lost      heaps of the others, each of which is enough: one is drawn, and lost
    spared    where there are no two of those: heaps that can each be spared; one is drawn and
              stays, all others are lost
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

_Parts = tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Heaps:
    """How the runs of a tier are divided, before one heap is selected."""

    needed: tuple[str, ...]
    heaps: tuple[tuple[str, ...], ...]
    spares: bool
    """Whether the heap that is drawn stays, and the others are lost."""

    @property
    def chance(self) -> Fraction:
        """Of each run that is not needed to be lost; without heaps they all stay."""
        if not self.heaps:
            return Fraction(0)
        one = Fraction(1, len(self.heaps))
        return 1 - one if self.spares else one

    def lost(self, drawn: int) -> tuple[str, ...]:
        """Every run that is lost where this heap is drawn, in order."""
        gone = [
            run
            for place, heap in enumerate(self.heaps)
            for run in heap
            if (place == drawn) is not self.spares
        ]
        return tuple(sorted([*self.needed, *gone]))


def heaps_of(sizes: Mapping[str, int], missing: int) -> Heaps:
    """The heaps for so many missing GPUs, which are no more than there are."""
    spare = sum(sizes.values()) - missing
    order = sorted(sizes, key=lambda run: (-sizes[run], run))
    needed = tuple(sorted(run for run in order if sizes[run] > spare))
    order = order[len(needed) :]
    missing -= sum(sizes[run] for run in needed)
    if missing <= 0:
        return Heaps(needed, (), spares=False)
    enough = _covering(order, sizes, missing)
    if len(enough) > 1:
        return Heaps(needed, enough, spares=False)
    return Heaps(needed, _packed(order, sizes, spare), spares=True)


def _covering(order: Sequence[str], sizes: Mapping[str, int], missing: int) -> _Parts:
    """Heaps of at least so much each: begun with the largest run left, filled with the smallest.

    What is left over is added to the last heap.
    """
    left, rest = deque(order), sum(sizes[run] for run in order)
    heaps: list[tuple[str, ...]] = []
    while rest >= missing:
        heap = [left.popleft()]
        size = sizes[heap[0]]
        while size < missing:
            heap.append(left.pop())
            size += sizes[heap[-1]]
        heaps.append(tuple(heap))
        rest -= size
    return (*heaps[:-1], (*heaps[-1], *left))


def _packed(order: Sequence[str], sizes: Mapping[str, int], most: int) -> _Parts:
    """Heaps of at most so much each: a run, the largest first, joins the last one if it may."""
    heaps: list[list[str]] = []
    size = most
    for run in order:
        if size + sizes[run] > most:
            heaps.append([])
            size = 0
        heaps[-1].append(run)
        size += sizes[run]
    return tuple(tuple(heap) for heap in heaps)
