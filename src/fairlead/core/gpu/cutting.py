"""The cuts of one resolve, in order of application, and how many GPUs they free.

A cut is the unit that is made and given back whole: one spare, one step of a run, or one drawn
gang. `resolve` and `forecast` play the same cuts; only the first has a seed for the draws.
"""

from collections.abc import Set
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace

from fairlead.core.gpu.conflict import Conflict, ConflictLease
from fairlead.core.gpu.resolution import Action, CutTier
from fairlead.core.gpu.standing import Ladder, Standing, in_order, survey
from fairlead.core.invariant import require
from fairlead.core.reasons import CutKind


@dataclass(slots=True)
class Cut:
    """One spare, one step or one gang; `gpus` are those in scope."""

    standing: Standing
    kind: CutKind
    gpus: int
    leases: list[ConflictLease]
    draw: int | None = None
    withdrawn: bool = False

    def actions(self, outside: Set[str]) -> list[Action]:
        """Its leases, in order; `outside` are those out of scope."""
        run, kind, tier, draw = self.standing.run.id, self.kind, self.standing.tier, self.draw
        return [
            Action(lease.id, run, kind, lease.gpus, lease.id not in outside, tier, draw)
            for lease in self.leases
        ]


class Cutting:
    """The state of a resolve."""

    def __init__(self, conflict: Conflict) -> None:
        self.deficit_gpus = conflict.deficit_gpus
        self.freed_gpus = 0
        self._cuts: list[Cut] = []
        self._gone: set[str] = set()
        self._outside: set[str] = set()
        self._tiers: dict[CutTier, list[Standing]] = {tier: [] for tier in CutTier}
        standings = survey(conflict)
        for standing in standings:
            self._tiers[standing.tier].append(standing)
            self._outside.update([lease.id for lease in standing.outside])
        self.shortfall_gpus = max(
            0, self.deficit_gpus - sum(standing.open_gpus for standing in standings)
        )
        """What is missing even when everything is cut."""

    @property
    def met(self) -> bool:
        """Whether enough is freed."""
        return self.freed_gpus >= self.deficit_gpus

    def drop_spares(self, tier: CutTier) -> None:
        """Spares in scope one by one: by run id, highest group first, lease id."""
        for standing in self._tiers[tier]:
            for spare in in_order(standing.spares):
                if self.met:
                    return
                self._cut(Cut(standing, CutKind.DROP_SPARE, spare.gpus, [spare]))

    def shrink(self, tier: CutTier) -> None:
        """Malleable runs step by step, always the one that is most above its minimum."""
        queue = []
        for standing in self._tiers[tier] if not self.met else ():
            steps = standing.run.malleable
            if steps is not None:
                ladder = Ladder(steps, standing.active, standing.outside)
                queue.append((-ladder.surplus_gpus, standing.run.id, standing, ladder))
        heapify(queue)
        while queue and not self.met:
            _, name, standing, ladder = queue[0]
            step = ladder.step()
            if step is None:
                heappop(queue)
                continue
            self._cut(Cut(standing, CutKind.SHRINK, *step))
            heapreplace(queue, (-ladder.surplus_gpus, name, standing, ladder))

    def tokens(self, tier: CutTier) -> dict[str, Standing]:
        """The runs of a tier that still hold something in scope, by id."""
        return {each.run.id: each for each in self._tiers[tier] if each.open_gpus}

    def preempt(self, standing: Standing, draw: int | None) -> None:
        """A gang goes whole, in scope or not."""
        standing.drawn = True
        kind = CutKind.RANDOM_PREEMPT
        self._cut(Cut(standing, kind, standing.open_gpus, standing.rest(self._gone), draw))

    def _cut(self, cut: Cut) -> None:
        self._gone.update([lease.id for lease in cut.leases])
        cut.standing.open_gpus -= cut.gpus
        self.freed_gpus += cut.gpus
        self._cuts.append(cut)

    def give_back(self) -> None:
        """Withdraw structural cuts that are no longer needed, the last one first.

        What a drawn run lost before stays lost. A step comes back only after every later step of
        its run, so that no hole is left among its groups; a spare only to a group that is there.
        """
        holding: set[str] = set()  # runs with a step that stays: earlier ones stay too
        without: set[tuple[str, int]] = set()  # groups that stay cut
        for cut in reversed(self._cuts):
            run = cut.standing.run.id
            if cut.standing.drawn:
                continue
            spare = cut.kind is CutKind.DROP_SPARE
            stays = (run, cut.leases[0].group) in without if spare else run in holding
            if not stays and self.freed_gpus - cut.gpus >= self.deficit_gpus:
                cut.withdrawn = True
                self.freed_gpus -= cut.gpus
            elif not spare:
                holding.add(run)
                without.update((run, lease.group) for lease in cut.leases)
        require(self.met, "what is given back was not needed")

    def actions(self, *, withdrawn: bool = False) -> tuple[Action, ...]:
        """What stays cut, or what was given back, in order of application."""
        found: list[Action] = []
        for cut in self._cuts:
            if cut.withdrawn is withdrawn:
                found += cut.actions(self._outside)
        return tuple(found)
