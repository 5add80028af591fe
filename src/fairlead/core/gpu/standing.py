"""Runs during a resolve: what each holds in scope and out of it, and what is left of that.

Mutable, and private to one call of `resolve` or `forecast`. Everything is indexed once, so that a
cut costs what it cuts and not a walk over what is left.
"""

from collections.abc import Iterable, Sequence

from fairlead.core.gpu.conflict import Conflict, ConflictLease, ConflictRun, Role, candidacy
from fairlead.core.gpu.resolution import CutTier

Held = tuple[ConflictLease, bool]
"""A lease, and whether it is in scope."""


def in_order(held: Iterable[Held]) -> list[Held]:
    """The order inside a step or a draw: highest group first, then by lease id."""
    return sorted(held, key=lambda each: (-each[0].group, each[0].id))


class Standing:
    """One run with candidates."""

    __slots__ = ("drawn", "gone", "inside", "open_gpus", "outside", "run", "tier")

    def __init__(
        self, run: ConflictRun, inside: list[ConflictLease], outside: list[ConflictLease]
    ) -> None:
        self.run, self.inside, self.outside = run, inside, outside
        self.open_gpus = sum(lease.gpus for lease in inside)
        """GPUs in scope that are not cut."""
        self.gone: set[str] = set()
        self.drawn = False
        if not all(lease.funded for lease in inside):
            self.tier = CutTier.UNFUNDED
        else:
            self.tier = CutTier.NOMINATED if run.nominated else CutTier.FUNDED

    def spares(self) -> list[ConflictLease]:
        """The spares in scope, highest group first."""
        spares = [lease for lease in self.inside if lease.role is Role.SPARE]
        return sorted(spares, key=lambda lease: (-lease.group, lease.id))

    def rest(self) -> list[Held]:
        """What it still holds, in scope or not."""
        held = [(lease, True) for lease in self.inside if lease.id not in self.gone]
        held += [(lease, False) for lease in self.outside if lease.id not in self.gone]
        return in_order(held)


class Ladder:
    """The groups that a malleable run can give up: highest number on top, taken from there.

    A group is on the ladder when it has active leases and all of them are in scope. The spares in
    scope are gone before anybody shrinks; those out of scope go with their group.
    """

    __slots__ = ("_leases", "_rungs", "_step_gpus", "surplus_gpus")

    def __init__(
        self, *, min_gpus: int, step_gpus: int, inside: Sequence[ConflictLease],
        outside: Sequence[ConflictLease],
    ) -> None:  # fmt: skip
        stuck = {lease.group for lease in outside if lease.role is Role.ACTIVE}
        width = 0
        sums: dict[int, int] = {}
        self._leases: dict[int, list[Held]] = {}
        for lease in inside:
            if lease.role is Role.ACTIVE:
                width += lease.gpus
                if lease.group not in stuck:
                    sums[lease.group] = sums.get(lease.group, 0) + lease.gpus
                    self._leases.setdefault(lease.group, []).append((lease, True))
        for lease in outside:
            if lease.role is Role.ACTIVE:
                width += lease.gpus
            elif lease.group in sums:
                self._leases[lease.group].append((lease, False))
        self.surplus_gpus = width - min_gpus
        self._step_gpus = step_gpus
        self._rungs = sorted(sums.items())

    def step(self) -> tuple[int, list[Held]] | None:
        """Take the next step off: GPUs in scope and leases; None when there is no such step.

        The fewest groups from the top whose GPUs are a multiple of the step; none is skipped. What
        fails once fails for ever, because only the run's own steps change its ladder.
        """
        gpus = 0
        for depth, (_, size) in enumerate(reversed(self._rungs), start=1):
            gpus += size
            if gpus > self.surplus_gpus:
                return None
            if gpus % self._step_gpus == 0:
                return gpus, self._take(depth, gpus)
        return None

    def _take(self, depth: int, gpus: int) -> list[Held]:
        taken = self._rungs[-depth:]
        del self._rungs[-depth:]
        self.surplus_gpus -= gpus
        return in_order(held for group, _ in taken for held in self._leases[group])


def survey(conflict: Conflict) -> list[Standing]:
    """Every run that has a candidate, by id."""
    is_candidate = candidacy(conflict.scope)
    inside: dict[str, list[ConflictLease]] = {}
    outside: dict[str, list[ConflictLease]] = {}
    for lease in conflict.leases:
        side = inside if is_candidate(lease) else outside
        side.setdefault(lease.run, []).append(lease)
    return [
        Standing(run, inside[run.id], outside.get(run.id, []))
        for run in sorted(conflict.runs, key=lambda run: run.id)
        if run.id in inside
    ]
