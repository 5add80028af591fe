"""Whether an owner may have one more run: `core.gpu.check_quota`, on what is known.

A refusal names the rule, its value and what would do. It is not recorded: a tenant could fill the
ledger with what it is refused. What is allowed stands there as the run itself.
"""

from collections.abc import Iterable

import msgspec

from fairlead.core.gpu import QuotaPolicy, QuotaRequest, check_quota
from fairlead.core.reasons import QuotaReason
from fairlead.engine.gpu.projection import Projection
from fairlead.engine.gpu.state import Stored, manifest_bytes
from fairlead.engine.gpu.values import Author, Refused
from fairlead.schema.objects import BudgetManifest, Manifest, RunManifest, spec_document

SEVERAL_OWNERS = (
    "a control plane that is not root runs every command as its own user, who can read its keys: "
    "start `fairlead up` as root for several owners, or with --trusting where they trust each other"
)


class OwnerQuotas:
    """The operator's quotas for the runs of one batch. None: there are none."""

    def __init__(self, projection: Projection, policy: QuotaPolicy | None) -> None:
        self._projection, self._policy = projection, policy
        self._open: dict[str, int] = {}
        self._bytes: dict[str, int] = {}

    def check(self, manifest: RunManifest, before: Stored | None, author: Author) -> None:
        """Raises `Refused`. Admins are exempt: the quotas are theirs."""
        policy, owner = self._policy, manifest.spec.owner
        if policy is None or author.admin:
            return
        size = len(msgspec.json.encode(spec_document(manifest.spec)))
        size += len(msgspec.json.encode(manifest.metadata.labels))
        more = size - (0 if before is None else manifest_bytes(before))
        self._bytes[owner] = self._kept(owner) + more
        self._open[owner] = self._live(owner) + (before is None)
        asked = QuotaRequest(
            owner=owner,
            open_runs=self._open[owner],
            manifest_bytes=self._bytes[owner],
            grows=more > 0,
            is_new=before is None,
            policy=policy,
        )
        found = check_quota(asked)
        if found is not QuotaReason.ALLOWED:
            why = f"run {manifest.metadata.name!r}: {_sentence(asked, found)}"
            raise Refused(found.value, f"{why} (fairlead describe policy)")

    def _kept(self, owner: str) -> int:
        return self._bytes.get(owner, self._projection.manifest_bytes.get(owner, 0))

    def _live(self, owner: str) -> int:
        if owner not in self._open:
            runs = self._projection.live
            owners = (self._projection.run_spec(run).owner for run in runs)
            self._open[owner] = sum(name == owner for name in owners)
        return self._open[owner]


def refuse_second_owner(projection: Projection, manifests: Iterable[Manifest]) -> None:
    """Raises `Refused` where these manifests would make it more than one owner."""
    owners = owners_of(projection)
    for manifest in manifests:
        if isinstance(manifest, RunManifest | BudgetManifest):
            owners.add(manifest.spec.owner)
    if len(owners) > 1:
        raise Refused("SeveralOwners", f"{SEVERAL_OWNERS}: {', '.join(sorted(owners))}")


def owners_of(projection: Projection) -> set[str]:
    """Owners of budgets and of runs."""
    return {*projection.run_owners, *(budget.owner for budget in projection.budgets.values())}


def _sentence(asked: QuotaRequest, found: QuotaReason) -> str:
    policy = asked.policy
    if found is QuotaReason.OPEN_RUNS:
        would = f"with it owner {asked.owner!r} would have {asked.open_runs} open runs"
        return f"{would} of {policy.max_open_runs}: wait until some have ended, or cancel some"
    would = f"with it owner {asked.owner!r} would keep {asked.manifest_bytes} bytes of manifests"
    return f"{would} of {policy.max_manifest_bytes}: delete runs that have ended"
