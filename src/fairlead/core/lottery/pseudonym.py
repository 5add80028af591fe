"""Names that hide their owners and cannot be chosen: what the documents of an outcome say instead.

An export goes to anyone who asks, so no name of another tenant may be in it; and it must still hash
to what is in the log, so the names are replaced before the decision, not after. If the operator
could choose how, that would be a second lottery: so each owner has one secret for good, whose
hash is in the log before the owner's first run is. docs/reference/outcome-export.md has the form.
"""

from collections.abc import Callable, Sequence
from hashlib import sha256
from hmac import digest as hmac

from fairlead.core.invariant import require
from fairlead.core.lottery.seed import lp

SECRET_BYTES = 32
PREFIXES = {
    "owner": "o-",
    "run": "r-",
    "lease": "l-",
    "budget": "b-",
    "envelope": "e-",
    "cap": "c-",
}


_KINDS = {kind: lp(kind.encode()) for kind in PREFIXES}


def secret_commitment(secret: bytes) -> str:
    """What is published of an owner's secret; hex."""
    require(len(secret) == SECRET_BYTES, "an owner's secret has 32 bytes")
    return sha256(lp(b"fairlead/owner/v1") + lp(secret)).hexdigest()


def outcome_key(secret: bytes, chain: str, k: int) -> bytes:
    """An owner's key for the names of turn k of a sequence: in every turn they are others."""
    parts = (b"fairlead/pseudonym/v1", bytes.fromhex(chain), k.to_bytes(8, "big"))
    return hmac(secret, b"".join(map(lp, parts)), "sha256")


def pseudonym(key: bytes, kind: str, parts: Sequence[str]) -> str:
    message = b"".join([_KINDS[kind], *[lp(part.encode()) for part in parts]])
    return PREFIXES[kind] + hmac(key, message, "sha256").hex()[:32]


def chain_id(flavor: str) -> str:
    """The name of a flavor's sequence of outcomes: one, whatever place or cap is short of it."""
    return sha256(lp(b"fairlead/chain/v2") + lp(flavor.encode())).hexdigest()


Clear = dict[str, dict[str, list[list[str]]]]
"""Names in clear: by owner and kind, the parts that each is made of."""


class Pseudonyms:
    """Clear names to pseudonyms of turn k of a chain; remembered, because leases are many.

    Both ways follow from the owners' secrets, so nothing has to be kept to go on after a restart.
    """

    def __init__(
        self,
        chain: str,
        k: int,
        secret_of: Callable[[str], bytes],
        owner_of_budget: Callable[[str], str],
    ) -> None:
        self._chain, self._k = chain, k
        self._secret_of, self._owner_of_budget = secret_of, owner_of_budget
        self._keys: dict[str, bytes] = {}
        self._owners: dict[str, str] = {}
        self._payers: dict[tuple[str, str], tuple[str, str]] = {}
        self.runs: dict[str, str] = {}
        """Clear names of runs, by pseudonym; of those that were asked for."""
        self.leases: dict[str, str] = {}
        """The same of leases."""
        self.clear: Clear = {}
        """Every name that was asked for."""

    @property
    def owners(self) -> dict[str, str]:
        """Clear names of owners that something was asked about, by pseudonym."""
        return {self.owner(owner): owner for owner in self._keys}

    def owner(self, owner: str) -> str:
        known = self._owners.get(owner)
        if known is None:
            known = self._owners[owner] = pseudonym(self._key(owner), "owner", (owner,))
        return known

    def run(self, owner: str, run: str) -> str:
        hidden = self._hide(owner, "run", run)
        self.runs[hidden] = run
        return hidden

    def lease(self, owner: str, lease: str) -> str:
        hidden = self._hide(owner, "lease", lease)
        self.leases[hidden] = lease
        return hidden

    def payer(self, budget: str, envelope: str) -> tuple[str, str]:
        known = self._payers.get((budget, envelope))
        if known is None:
            owner = self._owner_of_budget(budget)
            known = (
                self._hide(owner, "budget", budget),
                self._hide(owner, "envelope", budget, envelope),
            )
            self._payers[budget, envelope] = known
        return known

    def cap(self, budget: str, name: str) -> tuple[str, str]:
        owner = self._owner_of_budget(budget)
        return (
            pseudonym(self._key(owner), "budget", (budget,)),
            self._hide(owner, "cap", budget, name),
        )

    def _hide(self, owner: str, kind: str, *parts: str) -> str:
        key = self._key(owner)
        self.clear.setdefault(owner, {}).setdefault(kind, []).append(list(parts))
        return pseudonym(key, kind, parts)

    def _key(self, owner: str) -> bytes:
        known = self._keys.get(owner)
        if known is None:
            secret = self._secret_of(owner)
            known = self._keys[owner] = outcome_key(secret, self._chain, self._k)
        return known
