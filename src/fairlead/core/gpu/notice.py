"""The notice of a conflict: what a commitment announces before there is a seed."""

from collections.abc import Iterable
from dataclasses import dataclass

from fairlead.core.gpu.conflict import Conflict
from fairlead.core.gpu.resolve import forecast
from fairlead.core.gpu.scope import ScopeTest
from fairlead.core.lottery import Odds, OwnerWeighting
from fairlead.core.reasons import Exclusion


@dataclass(frozen=True, slots=True)
class Notice:
    """What a commitment announces: who may be preempted, who may not and why, the first odds."""

    candidates: tuple[str, ...]
    exclusions: tuple[tuple[str, Exclusion], ...]
    odds: tuple[Odds, ...]
    owner_weighting: OwnerWeighting = OwnerWeighting.OWNERS

    def document(self) -> dict[str, object]:
        """As it is kept under its digest; odds as 1 in so many, or as so many times that."""
        stake = self.owner_weighting is OwnerWeighting.STAKE
        return {
            "candidates": list(self.candidates),
            "exclusions": [
                {"lease": lease, "reason": reason.value} for lease, reason in self.exclusions
            ],
            "tokens": [
                {
                    "one_in": odds.chance.denominator,
                    "owner": odds.owner,
                    **({"times": odds.chance.numerator} if stake else {}),
                    "token": odds.token,
                }
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
    excluded, exclusion = list(left_out), ScopeTest(conflict.scope).exclusion
    for lease in conflict.leases:
        reason = exclusion(lease.flavor, lease.location, lease.budget, lease.envelope)
        if reason is None:
            candidates.append(lease.id)
        else:
            excluded.append((lease.id, reason))
    odds = forecast(conflict, owner_weighting=owner_weighting).first_odds
    return Notice(
        candidates=tuple(sorted(candidates)),
        exclusions=tuple(sorted(excluded)),
        odds=tuple(sorted(odds, key=lambda odds: odds.token)),
        owner_weighting=owner_weighting,
    )
