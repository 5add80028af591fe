"""Runs during a resolve: what each holds in scope and out of it, and what is left of that.

Mutable, and private to one call of `resolve` or `forecast`. Each lease is looked at once, so that a
cut costs what it cuts and not a walk over what is left.
"""

from collections.abc import Iterable, Sequence
from itertools import chain

from fairlead.core.gpu.conflict import (
    Conflict,
    ConflictLease,
    ConflictRun,
    Malleable,
    Role,
    candidacy,
)
from fairlead.core.gpu.resolution import CutTier


def in_order(leases: Iterable[ConflictLease]) -> list[ConflictLease]:
    """The order inside a step or a draw: highest group first, then by lease id."""
    return sorted(leases, key=lambda lease: (-lease.group, lease.id))


class Standing:
    """One run with candidates."""

    __slots__ = ("active", "drawn", "open_gpus", "outside", "run", "spares", "unfunded")

    def __init__(self, run: ConflictRun) -> None:
        self.run = run
        self.active: list[ConflictLease] = []
        self.spares: list[ConflictLease] = []
        self.outside: Sequence[ConflictLease] = ()
        """What it holds out of scope; the other two are in scope."""
        self.open_gpus = 0
        """GPUs in scope that are not cut."""
        self.unfunded = self.drawn = False

    @property
    def tier(self) -> CutTier:
        """Fixed from the input, for the whole run."""
        return CutTier.of(unfunded=self.unfunded, nominated=self.run.nominated)

    def rest(self, gone: set[str]) -> list[ConflictLease]:
        """What it holds besides the leases that are gone, in scope or not."""
        held = chain(self.active, self.spares, self.outside)
        return in_order([lease for lease in held if lease.id not in gone])


class Ladder:
    """The groups that a malleable run can give up: highest number on top, taken from there.

    A group is on the ladder when it has active leases and all of them are in scope. The spares in
    scope are gone before anybody shrinks; those out of scope go with their group.
    """

    __slots__ = ("_groups", "_reserve", "_rungs", "_step_gpus", "surplus_gpus")

    def __init__(
        self, steps: Malleable, active: Sequence[ConflictLease], outside: Sequence[ConflictLease]
    ) -> None:
        width = 0
        groups: dict[int, list[ConflictLease]] = {}
        for lease in active:
            width += lease.gpus
            groups.setdefault(lease.group, []).append(lease)
        self._reserve: dict[int, list[ConflictLease]] = {}
        for lease in outside:
            if lease.role is Role.ACTIVE:
                width += lease.gpus
                groups.pop(lease.group, None)
            else:
                self._reserve.setdefault(lease.group, []).append(lease)
        self.surplus_gpus = width - steps.min_gpus
        self._step_gpus = steps.step_gpus
        self._groups = groups
        self._rungs = sorted(groups)

    def step(self) -> tuple[int, list[ConflictLease]] | None:
        """Take the next step off: GPUs in scope and leases; None when there is no such step.

        The fewest groups from the top whose GPUs are a multiple of the step; none is skipped. What
        fails once fails for ever, because only the run's own steps change its ladder.
        """
        gpus = 0
        for depth, group in enumerate(reversed(self._rungs), start=1):
            gpus += sum([lease.gpus for lease in self._groups[group]])
            if gpus > self.surplus_gpus:
                return None
            if gpus % self._step_gpus == 0:
                return gpus, self._take(depth, gpus)
        return None

    def _take(self, depth: int, gpus: int) -> list[ConflictLease]:
        taken: list[ConflictLease] = []
        for group in self._rungs[-depth:]:
            taken += self._groups[group]
            taken += self._reserve.get(group, ())
        del self._rungs[-depth:]
        self.surplus_gpus -= gpus
        return in_order(taken)


def survey(conflict: Conflict) -> list[Standing]:
    """Every run that has a candidate, by id."""
    is_candidate = candidacy(conflict.scope)
    runs = {run.id: run for run in conflict.runs}
    standings: dict[str, Standing] = {}
    outside: dict[str, list[ConflictLease]] = {}
    for lease in conflict.leases:
        if not is_candidate(lease):
            outside.setdefault(lease.run, []).append(lease)
            continue
        standing = standings.get(lease.run)
        if standing is None:
            standing = standings[lease.run] = Standing(runs[lease.run])
        (standing.active if lease.role is Role.ACTIVE else standing.spares).append(lease)
        standing.open_gpus += lease.gpus
        if not lease.funded:
            standing.unfunded = True
    for name, standing in standings.items():
        standing.outside = outside.get(name, ())
    return [standings[name] for name in sorted(standings)]
