"""Resolve: which leases end when GPUs are missing: by rules as far as they go, then a lottery.

    for each tier (unfunded, nominated, funded), until the deficit is met:
        spares in scope                  DropSpare
        steps of malleable runs          Shrink
        whole gangs, selected at random  RandomPreempt
    then withdraw the structural cuts that turned out to be unnecessary

Nothing is cut when everything together would not be enough. `forecast` says before there is a seed
which runs will shrink and which are at risk: the tiers that are used up wholly, and so every
structural cut, do not depend on the seed.

`Holder`, `Ladder` and `Cutting` are the mutable state of one call. Each lease is looked at once, so
that a cut costs what it cuts and not a walk over what is left.
"""

from collections.abc import Iterator, Sequence, Set
from fractions import Fraction
from heapq import heapify, heappop, heappush
from operator import attrgetter

from fairlead.core.gpu.conflict import (
    Action,
    Conflict,
    ConflictLease,
    ConflictRun,
    CutTier,
    Forecast,
    Malleable,
    Resolution,
    RiskRound,
    Role,
    Round,
)
from fairlead.core.gpu.scope import ScopeTest
from fairlead.core.invariant import require
from fairlead.core.lottery import (
    SEED_BYTES,
    Draw,
    Heaps,
    Odds,
    OwnerWeighting,
    Pot,
    Stage,
    first_odds,
    heaps_of,
    uniform_below,
)
from fairlead.core.reasons import CutKind


def in_order(leases: list[ConflictLease]) -> list[ConflictLease]:
    """The order inside a step or a draw: highest group first, then by lease id."""
    if len(leases) < 2:
        return leases
    if len({lease.group for lease in leases}) < len(leases):
        leases = sorted(leases, key=attrgetter("id"))
    return sorted(leases, key=attrgetter("group"), reverse=True)


class Holder:
    """One run with candidates."""

    __slots__ = (
        "active",
        "drawn",
        "given_up",
        "open_gpus",
        "outside",
        "run",
        "spares",
        "tier",
        "unfunded",
    )

    def __init__(self, run: ConflictRun) -> None:
        self.run = run
        self.active: list[ConflictLease] = []
        self.spares: list[ConflictLease] = []
        self.outside: Sequence[ConflictLease] = ()
        """What it holds out of scope; the other two are in scope."""
        self.given_up: list[ConflictLease] | None = None
        """What a malleable run lost by its own steps."""
        self.open_gpus = 0
        """GPUs in scope that are not cut."""
        self.unfunded = self.drawn = False
        self.tier = CutTier.FUNDED
        """Fixed from the input, for the whole run."""

    def rest(self) -> list[ConflictLease]:
        """What it holds when its tier is drawn, in scope or not. The spares in scope are gone."""
        held = self.active
        if self.outside:
            held = held + list(self.outside)
        if self.given_up:
            gone = {lease.id for lease in self.given_up}
            held = [lease for lease in held if lease.id not in gone]
        return in_order(held)


class Ladder:
    """The groups that a malleable run can give up: highest number on top, taken from there.

    A group is on the ladder when it has active leases and all of them are in scope. The spares in
    scope are gone before a run shrinks; those out of scope go with their group.
    """

    __slots__ = ("_held", "_step_gpus", "_taken", "given_up", "holder", "surplus_gpus")

    def __init__(self, holder: Holder, steps: Malleable) -> None:
        held, width = holder.active, 0
        for lease in held:
            width += lease.gpus
        if holder.outside:
            groups = {lease.group for lease in held}
            for lease in holder.outside:
                if lease.role is Role.ACTIVE:
                    width += lease.gpus
                    groups.discard(lease.group)
            held = held + [lease for lease in holder.outside if lease.role is not Role.ACTIVE]
            held = [lease for lease in held if lease.group in groups]
        self.holder = holder
        self.given_up: list[ConflictLease] = []
        holder.given_up = self.given_up
        self.surplus_gpus = width - steps.min_gpus
        self._step_gpus = steps.step_gpus
        self._held = in_order(held)
        """Of the groups on the ladder, from the top."""
        self._taken = 0
        """How many of these are gone."""

    def step(self) -> tuple[int, list[ConflictLease]] | None:
        """Take the next step off: GPUs in scope and leases; None when there is no such step.

        The fewest groups from the top whose GPUs are a multiple of the step; none is skipped. What
        fails once fails for ever, because only the run's own steps change its ladder.
        """
        gpus, held, first = 0, self._held, self._taken
        for place in range(first, len(held)):
            lease = held[place]
            if lease.role is Role.ACTIVE:  # spares out of scope go with their group
                gpus += lease.gpus
            if place + 1 < len(held) and held[place + 1].group == lease.group:
                continue
            if gpus > self.surplus_gpus:
                return None
            if gpus % self._step_gpus == 0:
                self._taken = place + 1
                self.surplus_gpus -= gpus
                return gpus, held[first : place + 1]
        return None


def survey(conflict: Conflict) -> list[Holder]:
    test = ScopeTest(conflict.scope)
    runs = {run.id: run for run in conflict.runs}
    holders: dict[str, Holder] = {}
    outside: dict[str, list[ConflictLease]] = {}
    for lease in conflict.leases:
        excluded = test.elsewhere(lease.flavor, lease.location)
        if excluded is None and test.capped:
            excluded = test.unpaid(lease.budget, lease.envelope)
        if excluded is not None:
            outside.setdefault(lease.run, []).append(lease)
            continue
        holder = holders.get(lease.run)
        if holder is None:
            holder = holders[lease.run] = Holder(runs[lease.run])
        (holder.active if lease.role is Role.ACTIVE else holder.spares).append(lease)
        holder.open_gpus += lease.gpus
        if not lease.funded:
            holder.unfunded = True
    for name, holder in holders.items():
        holder.outside = outside.get(name, ())
        holder.tier = CutTier.of(unfunded=holder.unfunded, nominated=holder.run.nominated)
    return [holders[name] for name in sorted(holders)]


class Cut:
    """One spare, one step or one gang; `gpus` are those in scope."""

    __slots__ = ("draw", "gpus", "holder", "kind", "leases", "withdrawn")

    def __init__(
        self,
        holder: Holder,
        kind: CutKind,
        gpus: int,
        leases: list[ConflictLease],
        *,
        draw: int | None = None,
    ) -> None:
        self.holder = holder
        self.kind = kind
        self.gpus = gpus
        self.leases = leases
        self.draw = draw
        self.withdrawn = False

    def add_to(self, found: list[Action], outside: Set[str]) -> None:
        """What it ends, lease by lease."""
        run, kind, tier, draw = self.holder.run.id, self.kind, self.holder.tier, self.draw
        for lease in self.leases:
            # As `Action(...)` does, without a call of Python code for each lease.
            whole = (lease.id, run, kind, lease.gpus, lease.id not in outside, tier, draw)
            found.append(tuple.__new__(Action, whole))


class Cutting:
    """The state of a resolve."""

    def __init__(self, conflict: Conflict) -> None:
        self.deficit_gpus = conflict.deficit_gpus
        self.freed_gpus = 0
        self._cuts: list[Cut] = []
        self._outside: set[str] = set()
        holders = survey(conflict)
        self._tiers = {tier: [each for each in holders if each.tier is tier] for tier in CutTier}
        for holder in holders:
            if holder.outside:
                self._outside.update([lease.id for lease in holder.outside])
        self.shortfall_gpus = max(
            0, self.deficit_gpus - sum(holder.open_gpus for holder in holders)
        )
        """What is missing even when every candidate ends."""

    @property
    def met(self) -> bool:
        return self.freed_gpus >= self.deficit_gpus

    def drop_spares(self, tier: CutTier) -> None:
        """Spares in scope one by one: by run id, highest group first, lease id."""
        kind = CutKind.DROP_SPARE
        for holder in self._tiers[tier]:
            for spare in in_order(holder.spares):
                if self.met:
                    return
                self._cut(Cut(holder, kind, spare.gpus, [spare]))

    def shrink(self, tier: CutTier) -> None:
        """Malleable runs step by step, always the one that is most above its minimum, ties by id.

        A step lowers the surplus of its run, so all runs of one surplus have their turn together.
        """
        if self.met:
            return
        ladders: list[Ladder] = []
        for holder in self._tiers[tier]:
            if holder.run.malleable is not None:
                ladders.append(Ladder(holder, holder.run.malleable))
        levels: dict[int, list[int]] = {}
        for place, ladder in enumerate(ladders):
            levels.setdefault(ladder.surplus_gpus, []).append(place)
        heap = [-surplus_gpus for surplus_gpus in levels]
        heapify(heap)
        while heap:
            for place in sorted(levels.pop(-heappop(heap))):
                ladder = ladders[place]
                step = ladder.step()
                if step is None:
                    continue
                gpus, leases = step
                ladder.given_up += leases
                self._cut(Cut(ladder.holder, CutKind.SHRINK, gpus, leases))
                if self.freed_gpus >= self.deficit_gpus:
                    return
                if ladder.surplus_gpus not in levels:
                    levels[ladder.surplus_gpus] = []
                    heappush(heap, -ladder.surplus_gpus)
                levels[ladder.surplus_gpus].append(place)

    def tokens(self, tier: CutTier) -> dict[str, Holder]:
        """The runs of a tier that still hold something in scope, by id."""
        return {holder.run.id: holder for holder in self._tiers[tier] if holder.open_gpus}

    def preempt(self, holder: Holder, draw: int | None) -> None:
        """A gang goes whole, in scope or not."""
        holder.drawn = True
        kind = CutKind.RANDOM_PREEMPT
        self._cut(Cut(holder, kind, holder.open_gpus, holder.rest(), draw=draw))

    def _cut(self, cut: Cut) -> None:
        cut.holder.open_gpus -= cut.gpus
        self.freed_gpus += cut.gpus
        self._cuts.append(cut)

    def give_back(self) -> None:
        """Withdraw structural cuts that are no longer needed, the last one first.

        What a drawn run lost before stays lost. A step comes back only after every later step of
        its run, so that no hole is left among its groups; a spare only to a group that is there.
        """
        without: dict[str, set[int]] = {}
        """The groups that stay cut, of runs with a step that stays: earlier ones stay too."""
        for cut in reversed(self._cuts):
            run = cut.holder.run.id
            if cut.holder.drawn:
                continue
            spare = cut.kind is CutKind.DROP_SPARE
            groups = without.get(run)
            stays = groups is not None and (not spare or cut.leases[0].group in groups)
            if not stays and self.freed_gpus - cut.gpus >= self.deficit_gpus:
                cut.withdrawn = True
                self.freed_gpus -= cut.gpus
            elif not spare:
                without.setdefault(run, set()).update([lease.group for lease in cut.leases])
        require(self.met, "what is given back was not needed")

    def actions(self, *, withdrawn: bool = False) -> tuple[Action, ...]:
        """What stays cut, or what was given back, in order of application."""
        found: list[Action] = []
        for cut in self._cuts:
            if cut.withdrawn is withdrawn:
                cut.add_to(found, self._outside)
        return tuple(found)


def resolve(
    conflict: Conflict, seed: bytes, *, owner_weighting: OwnerWeighting = OwnerWeighting.OWNERS
) -> Resolution:
    """Free the deficit, or say how much is missing. The same seed draws the same victims."""
    require(len(seed) == SEED_BYTES, "a seed has 32 bytes")
    cutting = Cutting(conflict)
    if cutting.shortfall_gpus:
        return Resolution(conflict.deficit_gpus, shortfall_gpus=cutting.shortfall_gpus)
    rounds: list[Round] = []
    index = 0  # runs on across tiers
    for tier, runs in lotteries(cutting):
        played = _play(cutting, tier, runs, seed=seed, index=index, weighting=owner_weighting)
        rounds.append(played)
        index += len(played.draws)
    cutting.give_back()
    return Resolution(
        deficit_gpus=conflict.deficit_gpus,
        freed_gpus=cutting.freed_gpus,
        actions=cutting.actions(),
        withdrawn=cutting.actions(withdrawn=True),
        rounds=tuple(rounds),
    )


def lotteries(cutting: Cutting) -> Iterator[tuple[CutTier, dict[str, Holder]]]:
    """Spares and steps, tier by tier; the runs of each tier where these do not meet it."""
    for tier in CutTier:
        cutting.drop_spares(tier)
        cutting.shrink(tier)
        runs = {} if cutting.met else cutting.tokens(tier)
        if runs:
            yield tier, runs


def _play(
    cutting: Cutting,
    tier: CutTier,
    runs: dict[str, Holder],
    *,
    seed: bytes,
    index: int,
    weighting: OwnerWeighting,
) -> Round:
    """Draw gangs until the deficit is met or no run of the tier is left."""
    tokens = by_owner(runs)
    if weighting is OwnerWeighting.STAKE:
        return Round(tier, tokens, _play_stake(cutting, runs, seed=seed, index=index))
    pot = Pot(tokens, weighting)
    draws: list[Draw] = []
    while pot and not cutting.met:
        draw = pot.draw(seed, index + len(draws))
        cutting.preempt(runs[draw.token], draw.index)
        draws.append(draw)
    return Round(tier, tokens, tuple(draws))


def _play_stake(
    cutting: Cutting, runs: dict[str, Holder], *, seed: bytes, index: int
) -> tuple[Draw, ...]:
    """One number for the whole tier; every run that is lost by it is a draw of its own."""
    heaps, drawn = heaps_in(cutting, runs), 0
    if heaps.heaps:
        drawn = uniform_below(len(heaps.heaps), seed=seed, stage=Stage.HEAP, index=index)
    draws = []
    for place, name in enumerate(heaps.lost(drawn), index):
        cutting.preempt(runs[name], place)
        draws.append(Draw(place, runs[name].run.owner, name))
    return tuple(draws)


def heaps_in(cutting: Cutting, runs: dict[str, Holder]) -> Heaps:
    """How the runs of a tier are divided where every GPU is as likely as the next."""
    sizes = {name: holder.open_gpus for name, holder in runs.items()}
    missing = cutting.deficit_gpus - cutting.freed_gpus
    return heaps_of(sizes, min(missing, sum(sizes.values())))


def by_owner(runs: dict[str, Holder]) -> dict[str, tuple[str, ...]]:
    tokens: dict[str, list[str]] = {}
    for name, holder in runs.items():
        tokens.setdefault(holder.run.owner, []).append(name)
    return {owner: tuple(names) for owner, names in sorted(tokens.items())}


def forecast(
    conflict: Conflict, *, owner_weighting: OwnerWeighting = OwnerWeighting.OWNERS
) -> Forecast:
    """Which leases end by rule, and which runs are at risk with which odds."""
    cutting = Cutting(conflict)
    if cutting.shortfall_gpus:
        return Forecast(conflict.deficit_gpus, shortfall_gpus=cutting.shortfall_gpus)
    risks: list[RiskRound] = []
    for tier, runs in lotteries(cutting):
        risks.append(_risk(cutting, tier, runs, owner_weighting))
        if not risks[-1].all_lost:
            break
        for holder in runs.values():
            cutting.preempt(holder, None)
    if cutting.met:  # else a draw is open, and with it what comes back
        cutting.give_back()
    return Forecast(
        deficit_gpus=conflict.deficit_gpus,
        actions=tuple(
            action for action in cutting.actions() if action.kind is not CutKind.RANDOM_PREEMPT
        ),
        withdrawn=cutting.actions(withdrawn=True),
        risks=tuple(risks),
    )


def _risk(
    cutting: Cutting, tier: CutTier, runs: dict[str, Holder], weighting: OwnerWeighting
) -> RiskRound:
    missing = cutting.deficit_gpus - cutting.freed_gpus
    return RiskRound(
        tier=tier,
        odds=_odds(cutting, runs, weighting),
        missing_gpus=missing,
        all_lost=sum(holder.open_gpus for holder in runs.values()) <= missing,
    )


def _odds(cutting: Cutting, runs: dict[str, Holder], weighting: OwnerWeighting) -> tuple[Odds, ...]:
    if weighting is not OwnerWeighting.STAKE:
        return first_odds(by_owner(runs), weighting)
    heaps = heaps_in(cutting, runs)
    return tuple(
        Odds(runs[name].run.owner, name, Fraction(1) if name in heaps.needed else heaps.chance)
        for name in sorted(runs, key=lambda name: (runs[name].run.owner, name))
    )
