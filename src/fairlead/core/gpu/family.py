"""Who is whose family: from the `parents` of budgets to the order in which a request is covered.

    own        the request's owner
    sibling    shares a parent
    parent     is named as a parent
    cousin     child of a parent's sibling
    sponsor    none of these, listed by the run itself

An owner counts in the first of these that reaches it. Grandparents, uncles and own children are not
reachable. An owner that only others name as a parent makes siblings, but has no siblings of its own
and so makes no cousins.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import NamedTuple

from fairlead.core.gpu.model import Budget


class Tier(StrEnum):
    """Steps of the cover order, best first."""

    OWN = "own"
    SIBLING = "sibling"
    PARENT = "parent"
    OWN_ELSEWHERE = "own-elsewhere"
    SIBLING_ELSEWHERE = "sibling-elsewhere"
    PARENT_ELSEWHERE = "parent-elsewhere"
    COUSIN = "cousin"
    COUSIN_ELSEWHERE = "cousin-elsewhere"
    SPONSOR = "sponsor"
    SPONSOR_ELSEWHERE = "sponsor-elsewhere"

    @property
    def borrows(self) -> bool:
        return self in (Tier.SPONSOR, Tier.SPONSOR_ELSEWHERE)


class Kin(NamedTuple):
    """How an owner is related to a request's owner: its tier in location and elsewhere, each with
    its place in the cover order (looked up once: hashing an enum costs more than a tuple)."""

    here: Tier
    here_order: int
    elsewhere: Tier
    elsewhere_order: int


_ORDER = list(Tier)
OWN, SIBLING, PARENT, COUSIN, SPONSOR = (
    Kin(here, _ORDER.index(here), away, _ORDER.index(away))
    for here in (Tier.OWN, Tier.SIBLING, Tier.PARENT, Tier.COUSIN, Tier.SPONSOR)
    for away in [Tier(f"{here}-elsewhere")]
)


class Families:
    """The owner graph, indexed once for many requests."""

    def __init__(self, budgets: Iterable[Budget]) -> None:
        parents: dict[str, set[str]] = {}
        children: dict[str, set[str]] = {}
        for budget in budgets:
            parents.setdefault(budget.owner, set()).update(budget.parents)
        for owner, named in parents.items():
            for parent in named:
                children.setdefault(parent, set()).add(owner)
        self._parents, self._children = parents, children
        self._kin: dict[str, dict[str, Kin]] = {}
        """Of owners that were asked about: thousands of runs wait, of a few owners."""

    def kin(self, owner: str, sponsors: Iterable[str] = ()) -> Mapping[str, Kin]:
        """Every owner that could cover a request of `owner`, each in the first tier it is in."""
        related = self._kin.get(owner)
        if related is None:
            related = self._kin[owner] = self._related(owner)
        return {**dict.fromkeys(sponsors, SPONSOR), **related} if sponsors else related

    def _related(self, owner: str) -> dict[str, Kin]:
        parents = self._parents.get(owner, set())
        siblings = self._children_of(parents)
        uncles = self.parents_generation(owner)
        related: dict[str, Kin] = {owner: OWN}
        for kin, owners in (
            (SIBLING, siblings),
            (PARENT, parents),
            (COUSIN, self._children_of(uncles - parents - {owner})),
        ):
            for other in owners:
                related.setdefault(other, kin)
        return related

    def parents_generation(self, owner: str) -> set[str]:
        """The parents' siblings and those parents among them: who makes cousins."""
        return self._children_of(
            grand
            for parent in self._parents.get(owner, set())
            for grand in self._parents.get(parent, set())
        )

    def _children_of(self, owners: Iterable[str]) -> set[str]:
        return {child for owner in owners for child in self._children.get(owner, ())}


def cycle_in(budgets: Iterable[Budget]) -> list[str] | None:
    """Owners that are their own ancestors, in order; None when `parents` is acyclic."""
    parents: dict[str, set[str]] = {}
    for budget in budgets:
        parents.setdefault(budget.owner, set()).update(budget.parents)
    settled: set[str] = set()
    for start in sorted(parents):
        path: list[str] = []
        on_path: set[str] = set()
        stack = [iter([start])]
        while stack:
            owner = next(stack[-1], None)
            if owner is None:
                stack.pop()
                if path:
                    on_path.discard(path[-1])
                    settled.add(path.pop())
            elif owner in on_path:
                return [*path[path.index(owner) :], owner]
            elif owner not in settled:
                path.append(owner)
                on_path.add(owner)
                stack.append(iter(sorted(parents.get(owner, ()))))
    return None
