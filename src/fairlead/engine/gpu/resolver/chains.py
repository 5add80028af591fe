"""Secrets and entropy fixed by their hashes, long before they matter.

    owner.pseudonym      the secret of an owner's pseudonyms, before the owner's first run
    gpu.resolve.scope    the entropy of a flavor's first outcome, before a run has a lease of it

The outcomes of a flavor form one chain, whatever place or cap is short: who names another place
does not get another seed. Each draw reveals its entropy and fixes that of the next.
"""

from collections.abc import Iterable

from fairlead.core.lottery import Pseudonyms, entropy_hash
from fairlead.core.lottery.pseudonym import chain_id, secret_commitment
from fairlead.engine.gpu.committer import Committer
from fairlead.engine.gpu.entries import ChainOpened, NewEntry, OwnerPseudonym
from fairlead.engine.gpu.projection import Projection
from fairlead.engine.gpu.values import Refused
from fairlead.ports.entropy import EntropySource
from fairlead.schema.objects import BudgetSpec, NodeSpec, RunSpec, Spec

ANOTHER_MASTER = "the master secret is not the one that this ledger's entropy was fixed with"


class SecretHashes:
    """Publishes the hashes of secrets; without a master secret there are none."""

    def __init__(self, committer: Committer, chance: EntropySource | None) -> None:
        self._committer, self._chance = committer, chance
        self._projection = committer.projection
        self._done = chance is None

    def of(self, specs: Iterable[Spec]) -> list[NewEntry]:
        """Of the owners and flavors of objects: in the batch of new ones, before them."""
        owners: set[str] = set()
        flavors: set[str] = set()
        for spec in specs:
            if isinstance(spec, BudgetSpec | RunSpec):
                owners.add(spec.owner)
            elif isinstance(spec, NodeSpec):
                flavors.add(spec.flavor)
        return self._entries(owners, flavors)

    def catch_up(self) -> None:
        """Once after a start: objects that were applied without a master secret."""
        if not self._done:
            kinds, find = ("Node", "Budget", "Run"), self._projection.of_kind
            self._committer.commit(
                lambda: self.of(item.spec for kind in kinds for item in find(kind))
            )
            self._done = True

    def open_chain(self, flavor: str) -> str:
        """The chain of a flavor; where it is new, its entropy is fixed now, durably."""
        self._committer.commit(lambda: self._entries((), [flavor]))
        return chain_id(flavor)

    def _entries(self, owners: Iterable[str], flavors: Iterable[str]) -> list[NewEntry]:
        chance, known = self._chance, self._projection.resolver
        if chance is None:
            return []
        now_ms, made = self._committer.now(), []
        for owner in sorted(set(owners) - known.owners.keys()):
            body = OwnerPseudonym(secret_commitment(chance.owner_secret(owner)), owner)
            made.append(NewEntry(body, now_ms, plan_id=f"owner.{owner}", effect="pseudonym"))
        for flavor in sorted(flavors):
            chain = chain_id(flavor)
            if chain not in known.chains:
                promised = entropy_hash(chance.entropy(chain, 0))
                opened = ChainOpened(
                    capped=False, chain=chain, flavor=flavor, location={}, next_commitment=promised
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
    if first is None:
        return True
    return entropy_hash(chance.entropy(first.chain, first.turn)) == first.commitment


def pseudonyms(projection: Projection, chance: EntropySource, chain: str, turn: int) -> Pseudonyms:
    return Pseudonyms(
        chain, turn, chance.owner_secret, lambda budget: projection.budgets[budget].owner
    )
