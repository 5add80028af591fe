"""Total odds: how likely each run at risk is to be preempted in an outcome, all draws together.

The odds of the first draw say little where several gangs have to go. A tier that is used up wholly
is certain. The first that is not is worked out exactly up to `EXACT_MAX` tokens; above that the
lottery is played with seeds that follow from the conflict, so that all see the same figures, and
the error is given: 19 of 20 such figures are nearer to the true one than that.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from hashlib import sha256
from math import sqrt

from fairlead.core.gpu.conflict import Conflict, CutTier, conflict_digest
from fairlead.core.gpu.resolve import Cutting, Holder, by_owner, heaps_in, lotteries
from fairlead.core.lottery import OwnerWeighting, Pot, Tokens

EXACT_MAX = 10
_DRAWS = 20_000
"""Of all games together, about: a preview is waited for."""
_GAMES = (50, 2_000)


@dataclass(frozen=True, slots=True)
class TotalOdds:
    """How likely a run is to be preempted, and how far the figure may be off."""

    run: str
    owner: str
    tier: CutTier
    chance: float
    error: float = 0.0
    """0: exact."""


def total_odds(
    conflict: Conflict, *, owner_weighting: OwnerWeighting = OwnerWeighting.OWNERS
) -> tuple[TotalOdds, ...]:
    """Every run at risk; none where nothing is drawn, or too little could be freed."""
    cutting, found = Cutting(conflict), list[TotalOdds]()
    if cutting.shortfall_gpus:
        return ()
    for tier, runs in lotteries(cutting):
        missing = cutting.deficit_gpus - cutting.freed_gpus
        if sum(holder.open_gpus for holder in runs.values()) > missing:
            if owner_weighting is OwnerWeighting.STAKE:
                found += _stake(cutting, tier, runs)
            else:
                found += _played(conflict, tier, runs, missing, owner_weighting)
            break
        for name, holder in runs.items():
            found.append(TotalOdds(name, holder.run.owner, tier, 1.0))
            cutting.preempt(holder, None)
    return tuple(found)


def _stake(cutting: Cutting, tier: CutTier, runs: dict[str, Holder]) -> list[TotalOdds]:
    """One draw decides the tier, so these are exact."""
    heaps = heaps_in(cutting, runs)
    chance = round(float(heaps.chance), 4)
    return [
        TotalOdds(name, holder.run.owner, tier, 1.0 if name in heaps.needed else chance)
        for name, holder in runs.items()
    ]


def _played(
    conflict: Conflict,
    tier: CutTier,
    runs: dict[str, Holder],
    missing: int,
    weighting: OwnerWeighting,
) -> list[TotalOdds]:
    tokens = by_owner(runs)
    sizes = {name: holder.open_gpus for name, holder in runs.items()}
    error = 0.0
    if len(sizes) <= EXACT_MAX:
        exact = _exact(tokens, sizes, missing, weighting)
        chances = {name: float(chance) for name, chance in exact.items()}
    else:
        games = _games(sizes, missing)
        seed = conflict_digest(conflict)
        chances = _simulated(tokens, sizes, missing, weighting, games=games, seed=seed)
        error = round(1 / sqrt(games), 4)
    return [
        TotalOdds(name, holder.run.owner, tier, round(chances[name], 4), error)
        for name, holder in runs.items()
    ]


def _exact(
    tokens: Tokens, sizes: Mapping[str, int], missing: int, weighting: OwnerWeighting
) -> dict[str, Fraction]:
    """Over all sets of drawn tokens, the smaller before the larger: a draw adds one token."""
    names = sorted(sizes)
    owner_of = {name: owner for owner, mine in tokens.items() for name in mine}
    reached = [Fraction(0)] * (1 << len(names))
    reached[0] = Fraction(1)
    chances = dict.fromkeys(names, Fraction(0))
    for drawn, chance in enumerate(reached):
        if not chance:
            continue
        gone = {name for i, name in enumerate(names) if drawn >> i & 1}
        if sum(sizes[name] for name in gone) >= missing:
            for name in gone:
                chances[name] += chance
            continue
        left = [name for name in names if name not in gone]
        owners: dict[str, int] = {}
        for name in left:
            owners[owner_of[name]] = owners.get(owner_of[name], 0) + 1
        equal = weighting is OwnerWeighting.OWNERS
        for name in left:
            ways = len(owners) * owners[owner_of[name]] if equal else len(left)
            reached[drawn | 1 << names.index(name)] += chance / ways
    return chances


def _games(sizes: Mapping[str, int], missing: int) -> int:
    draws = -(-missing * len(sizes) // sum(sizes.values()))
    least, most = _GAMES
    return max(least, min(most, _DRAWS // max(1, draws)))


def _simulated(
    tokens: Tokens,
    sizes: Mapping[str, int],
    missing: int,
    weighting: OwnerWeighting,
    *,
    games: int,
    seed: str,
) -> dict[str, float]:
    hits = dict.fromkeys(sizes, 0)
    for game in range(games):
        of_game = sha256(f"fairlead odds {seed} {game}".encode()).digest()
        pot, freed, index = Pot(tokens, weighting), 0, 0
        while freed < missing:
            token = pot.draw(of_game, index).token
            hits[token] += 1
            freed, index = freed + sizes[token], index + 1
    return {name: count / games for name, count in hits.items()}
