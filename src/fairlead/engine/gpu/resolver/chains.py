"""Secrets and entropy fixed by their hashes, long before they matter.

    owner.pseudonym      the secret of an owner's pseudonyms, before the owner's first run
    gpu.resolve.scope    the entropy of a scope's first outcome, before there is a conflict in it

The outcomes of one scope form a chain: each reveals its entropy and fixes that of the next.
"""

from collections.abc import Iterable

from fairlead.core.gpu import Scope, caps_of
from fairlead.core.gpu.place import DOMAIN_KEYS
from fairlead.core.lottery import Pseudonyms, entropy_hash
from fairlead.core.lottery.pseudonym import chain_id, chain_salt, secret_commitment
from fairlead.engine.gpu.committer import Committer
from fairlead.engine.gpu.entries import ChainOpened, NewEntry, OwnerPseudonym
from fairlead.engine.gpu.projection import Projection
from fairlead.engine.gpu.values import Refused
from fairlead.ports.entropy import EntropySource
from fairlead.schema.objects import BudgetSpec, NodeSpec, RunSpec, Spec, to_budget

ANOTHER_MASTER = "the master secret is not the one that this ledger's entropy was fixed with"
Scopes = Iterable[tuple[Scope, str | None]]
"""Scopes, each with the owner of its cap."""


class SecretHashes:
    """Publishes the hashes of secrets; without a master secret there are none."""

    def __init__(self, committer: Committer, chance: EntropySource | None) -> None:
        self._committer, self._chance = committer, chance
        self._projection = committer.projection
        self._done = chance is None

    def of(self, specs: Iterable[tuple[str, Spec]]) -> list[NewEntry]:
        """Of the owners and scopes of objects, by name: in the batch of new ones, before them."""
        owners: set[str] = set()
        scopes: list[tuple[Scope, str | None]] = []
        for name, spec in specs:
            if isinstance(spec, BudgetSpec | RunSpec):
                owners.add(spec.owner)
            if isinstance(spec, BudgetSpec):
                scopes += [(cap.scope, spec.owner) for cap in caps_of(to_budget(name, spec))]
            elif isinstance(spec, NodeSpec):
                scopes += _of_node(spec)
        return self._entries(owners, scopes)

    def catch_up(self) -> None:
        """Once after a start: objects that were applied without a master secret."""
        if not self._done:
            kinds, find = ("Node", "Budget", "Run"), self._projection.of_kind
            self._committer.commit(
                lambda: self.of((item.name, item.spec) for kind in kinds for item in find(kind))
            )
            self._done = True

    def open_chain(self, scope: Scope) -> str:
        """The chain of a scope; where it is new, its entropy is fixed now, durably."""
        owner = cap_owner(self._projection, scope)
        self._committer.commit(lambda: self._entries((), [(scope, owner)]))
        return chain_of(needed(self._chance), scope, owner)

    def _entries(self, owners: Iterable[str], scopes: Scopes) -> list[NewEntry]:
        chance, known = self._chance, self._projection.resolver
        if chance is None:
            return []
        now_ms, made = self._committer.now(), []
        for owner in sorted(set(owners) - known.owners.keys()):
            body = OwnerPseudonym(secret_commitment(chance.owner_secret(owner)), owner)
            made.append(NewEntry(body, now_ms, plan_id=f"owner.{owner}", effect="pseudonym"))
        chains = set(known.chains)
        for scope, owner_of_cap in scopes:
            chain = chain_of(chance, scope, owner_of_cap)
            if chain in chains:
                continue
            chains.add(chain)
            opened = ChainOpened(
                capped=scope.cap is not None,
                chain=chain,
                flavor=scope.flavor,
                location=dict(scope.location),
                next_commitment=entropy_hash(chance.entropy(chain, 0)),
            )
            plan_id = f"resolve.{chain[:16]}"
            made.append(NewEntry(opened, now_ms, plan_id=plan_id, effect="scope"))
        return made


def needed(chance: EntropySource | None) -> EntropySource:
    """The secrets of the lottery; raises `Refused` without them."""
    if chance is None:
        raise Refused("NoChance", "this control plane has no master secret for the lottery")
    return chance


def is_the_ledgers(projection: Projection, chance: EntropySource) -> bool:
    """Whether this is the master secret that the first chain was fixed with."""
    first = next(iter(projection.resolver.chains.values()), None)
    return first is None or entropy_hash(chance.entropy(first.chain, first.k)) == first.commitment


def pseudonyms(projection: Projection, chance: EntropySource, chain: str, k: int) -> Pseudonyms:
    return Pseudonyms(
        chain, k, chance.owner_secret, lambda budget: projection.budgets[budget].owner
    )


def chain_of(chance: EntropySource, scope: Scope, owner: str | None) -> str:
    """The chain of a scope's outcomes; the secret of a cap's owner hides the cap's name in it."""
    salt = b"" if owner is None else chain_salt(chance.owner_secret(owner))
    document = scope.document()
    if scope.cap is not None:
        document["cap"] = {
            "budget": scope.cap.budget,
            "name": scope.cap.name,
            "envelopes": sorted(scope.cap.envelopes),
        }
    return chain_id(document, salt)


def cap_owner(projection: Projection, scope: Scope) -> str | None:
    return None if scope.cap is None else projection.budgets[scope.cap.budget].owner


def _of_node(spec: NodeSpec) -> Scopes:
    """The scopes that a node can be in conflict in: everywhere, its region, cluster and domain."""
    location: dict[str, str] = {}
    yield Scope(spec.flavor, {}), None
    for key in DOMAIN_KEYS:
        if key in spec.location:
            location = {**location, key: spec.location[key]}
            yield Scope(spec.flavor, location), None
