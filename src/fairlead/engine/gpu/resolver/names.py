"""The pseudonyms of one outcome, and the chains that outcomes stand in.

Documents of an outcome say pseudonyms only; what they decide is carried out on clear names. Both
ways follow from the owners' secrets, so nothing has to be kept to go on after a restart.
"""

from collections.abc import Iterable

from fairlead.core.gpu import Budget, Scope, ScopeCap
from fairlead.core.lottery.pseudonym import chain_id, chain_salt, outcome_key, pseudonym
from fairlead.engine.gpu.projection import Projection
from fairlead.engine.gpu.state import LeaseFact
from fairlead.ports.chance import Chance
from fairlead.schema.specs import NodeSpec

PLACES = ("region", "cluster", "domain")


class Names:
    """Clear names to pseudonyms of outcome k of a chain; remembered, because leases are many."""

    def __init__(self, projection: Projection, chance: Chance, chain: str, k: int) -> None:
        self._projection, self._chance = projection, chance
        self._chain, self._k = chain, k
        self._keys: dict[str, bytes] = {}
        self._payers: dict[tuple[str, str], tuple[str, str]] = {}
        self.runs: dict[str, str] = {}
        """Pseudonyms of runs that were asked for, and whose they are."""
        self.leases: dict[str, str] = {}
        self.clear: dict[str, dict[str, list[list[str]]]] = {}
        """Every name that was asked for: by owner and kind, the parts it is made of."""

    def owner(self, owner: str) -> str:
        """An owner's."""
        return pseudonym(self._key(owner), "owner", (owner,))

    def run(self, owner: str, run: str) -> str:
        """A run's."""
        hidden = self._hide(owner, "run", run)
        self.runs[hidden] = run
        return hidden

    def lease(self, lease: LeaseFact) -> str:
        """A lease's; it is its run's owner's."""
        hidden = self._hide(lease.owner, "lease", lease.id)
        self.leases[hidden] = lease.id
        return hidden

    def payer(self, budget: str, envelope: str) -> tuple[str, str]:
        """A budget's and its envelope's."""
        known = self._payers.get((budget, envelope))
        if known is None:
            owner = self._projection.budgets[budget].owner
            known = (
                self._hide(owner, "budget", budget),
                self._hide(owner, "envelope", budget, envelope),
            )
            self._payers[budget, envelope] = known
        return known

    def scope(self, scope: Scope) -> Scope:
        """A scope with its cap hidden; flavor and location stay clear."""
        cap = scope.cap
        if cap is None:
            return scope
        owner = self._projection.budgets[cap.budget].owner
        envelopes = tuple(sorted(self.payer(cap.budget, each)[1] for each in cap.envelopes))
        hidden = self._hide(owner, "cap", cap.budget, cap.name)
        budget = pseudonym(self._key(owner), "budget", (cap.budget,))
        return Scope(scope.flavor, scope.location, ScopeCap(budget, hidden, envelopes))

    def known_owners(self) -> list[str]:
        """Every owner that something was asked about."""
        return list(self._keys)

    def _hide(self, owner: str, kind: str, *parts: str) -> str:
        key = self._key(owner)
        self.clear.setdefault(owner, {}).setdefault(kind, []).append(list(parts))
        return pseudonym(key, kind, parts)

    def _key(self, owner: str) -> bytes:
        known = self._keys.get(owner)
        if known is None:
            secret = self._chance.owner_secret(owner)
            known = self._keys[owner] = outcome_key(secret, self._chain, self._k)
        return known


def chain_of(chance: Chance, scope: Scope, cap_owner: str | None) -> str:
    """The chain that a scope's outcomes stand in; its owner's secret hides a cap's name in it."""
    salt = b"" if cap_owner is None else chain_salt(chance.owner_secret(cap_owner))
    return chain_id(clear_scope(scope), salt)


def clear_scope(scope: Scope) -> dict[str, object]:
    """The document that a chain is named after."""
    document = scope.document()
    if scope.cap is not None:
        document["cap"] = {
            "budget": scope.cap.budget,
            "name": scope.cap.name,
            "envelopes": sorted(scope.cap.envelopes),
        }
    return document


def scopes_of_node(spec: NodeSpec) -> Iterable[Scope]:
    """The scopes that a node can be in conflict in: everywhere, its region, cluster and domain."""
    location: dict[str, str] = {}
    yield Scope(spec.flavor, {})
    for key in PLACES:
        if key in spec.location:
            location = {**location, key: spec.location[key]}
            yield Scope(spec.flavor, location)


def scopes_of_budget(budget: Budget) -> Iterable[Scope]:
    """The scopes of its caps: each aggregate cap, and each envelope as a cap of its own."""
    for cap in budget.aggregate_caps:
        members = tuple(sorted(cap.envelopes))
        yield Scope(cap.flavor, {}, ScopeCap(budget.name, cap.name, members))
    for envelope in budget.envelopes:
        yield Scope(envelope.flavor, {}, ScopeCap(budget.name, envelope.name, (envelope.name,)))
