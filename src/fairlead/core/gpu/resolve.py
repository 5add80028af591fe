"""Resolve: somebody has to give way. Who, is decided by rules as far as rules go, then by lot.

    for each tier (unfunded, nominated, funded), until the deficit is met:
        spares in scope                  DropSpare
        steps of malleable runs          Shrink
        whole gangs, drawn by lot        RandomPreempt
    then give back the structural cuts that turned out to be unnecessary

Nothing is cut when everything together would not be enough. `forecast` says before there is a seed
who will shrink and who is at risk: the tiers that are used up wholly, and so every structural cut,
do not depend on chance.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from fairlead.core.gpu.conflict import Conflict, out_of_scope
from fairlead.core.gpu.cutting import Cutting
from fairlead.core.gpu.resolution import CutTier, Forecast, Resolution, RiskRound, Round
from fairlead.core.gpu.standing import Standing
from fairlead.core.invariant import require
from fairlead.core.lottery import SEED_BYTES, Draw, Odds, OwnerWeighting, Pot, first_odds
from fairlead.core.reasons import CutKind, Exclusion


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
    for tier in CutTier:
        if cutting.met:
            break
        runs = _cut_by_rule(cutting, tier)
        if runs:
            rounds.append(
                _play(cutting, tier, runs, seed=seed, index=index, weighting=owner_weighting)
            )
            index += len(rounds[-1].draws)
    cutting.give_back()
    return Resolution(
        deficit_gpus=conflict.deficit_gpus,
        freed_gpus=cutting.freed_gpus,
        actions=cutting.actions(),
        withdrawn=cutting.actions(withdrawn=True),
        rounds=tuple(rounds),
    )


def _cut_by_rule(cutting: Cutting, tier: CutTier) -> dict[str, Standing]:
    """The structural cuts of a tier; returns the tokens if there has to be a lottery."""
    cutting.drop_spares(tier)
    cutting.shrink(tier)
    return {} if cutting.met else cutting.tokens(tier)


def _play(
    cutting: Cutting,
    tier: CutTier,
    runs: dict[str, Standing],
    *,
    seed: bytes,
    index: int,
    weighting: OwnerWeighting,
) -> Round:
    """Draw gangs until the deficit is met or nobody of the tier is left."""
    tokens = _by_owner(runs)
    pot = Pot(tokens, weighting)
    draws: list[Draw] = []
    while pot and not cutting.met:
        draw = pot.draw(seed, index + len(draws))
        cutting.preempt(runs[draw.token], draw.index)
        draws.append(draw)
    return Round(tier, tokens, tuple(draws))


def _by_owner(runs: dict[str, Standing]) -> dict[str, tuple[str, ...]]:
    tokens: dict[str, list[str]] = {}
    for name, standing in runs.items():
        tokens.setdefault(standing.run.owner, []).append(name)
    return {owner: tuple(names) for owner, names in sorted(tokens.items())}


def forecast(
    conflict: Conflict, *, owner_weighting: OwnerWeighting = OwnerWeighting.OWNERS
) -> Forecast:
    """Who would be cut without chance, and who is at risk with which odds."""
    cutting = Cutting(conflict)
    if cutting.shortfall_gpus:
        return Forecast(conflict.deficit_gpus, shortfall_gpus=cutting.shortfall_gpus)
    risks: list[RiskRound] = []
    for tier in CutTier:
        if cutting.met:
            break
        runs = _cut_by_rule(cutting, tier)
        if runs:
            risks.append(_risk(cutting, tier, runs, owner_weighting))
            if not risks[-1].all_lost:
                break
            for standing in runs.values():
                cutting.preempt(standing, None)
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
    cutting: Cutting, tier: CutTier, runs: dict[str, Standing], weighting: OwnerWeighting
) -> RiskRound:
    missing = cutting.deficit_gpus - cutting.freed_gpus
    return RiskRound(
        tier=tier,
        odds=first_odds(_by_owner(runs), weighting),
        missing_gpus=missing,
        all_lost=sum(standing.open_gpus for standing in runs.values()) <= missing,
    )


@dataclass(frozen=True, slots=True)
class Notice:
    """What a commitment announces: who may be preempted, who may not and why, the first odds."""

    candidates: tuple[str, ...]
    exclusions: tuple[tuple[str, Exclusion], ...]
    odds: tuple[Odds, ...]

    def document(self) -> dict[str, object]:
        """As it is kept under its digest; odds as 1 in so many."""
        return {
            "candidates": list(self.candidates),
            "exclusions": [
                {"lease": lease, "reason": reason.value} for lease, reason in self.exclusions
            ],
            "tokens": [
                {"one_in": odds.chance.denominator, "owner": odds.owner, "token": odds.token}
                for odds in self.odds
            ],
        }


def notice_of(
    conflict: Conflict,
    left_out: Iterable[tuple[str, Exclusion]] = (),
    *,
    owner_weighting: OwnerWeighting = OwnerWeighting.OWNERS,
) -> Notice:
    """The notice of a conflict. `left_out`: leases in scope that are not in the conflict."""
    candidates: list[str] = []
    excluded = list(left_out)
    for lease in conflict.leases:
        reason = out_of_scope(conflict.scope, lease)
        if reason is None:
            candidates.append(lease.id)
        else:
            excluded.append((lease.id, reason))
    odds = forecast(conflict, owner_weighting=owner_weighting).first_odds
    return Notice(
        candidates=tuple(sorted(candidates)),
        exclusions=tuple(sorted(excluded)),
        odds=tuple(sorted(odds, key=lambda odds: odds.token)),
    )
