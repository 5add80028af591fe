"""Quotas of an owner: what one tenant may make the control plane keep and look at.

Every run that has not ended is looked at in each turn, and every manifest is kept until it is
deleted. Neither costs its owner anything, so the operator bounds both. A budget bounds devices; it
does not bound runs that wait.
"""

from dataclasses import dataclass

from fairlead.core.reasons import QuotaReason
from fairlead.core.units import Count, Name


@dataclass(frozen=True, slots=True)
class QuotaPolicy:
    """The operator's settings, for each owner."""

    max_open_runs: Count = 1_000
    """Runs that wait or run."""
    max_manifest_bytes: Count = 64 * 2**20
    """Manifests of runs, also of those that have ended, until they are deleted."""


@dataclass(frozen=True, slots=True)
class QuotaRequest:
    """All that decides whether a run may be submitted, or changed."""

    owner: Name
    open_runs: Count
    """Of the owner, with this one."""
    manifest_bytes: Count
    """Of the owner, with this one as it is to be."""
    grows: bool
    """Whether this one adds bytes to what is kept: what gets smaller is never refused."""
    is_new: bool
    policy: QuotaPolicy


def check_quota(asked: QuotaRequest) -> QuotaReason:
    if asked.is_new and asked.open_runs > asked.policy.max_open_runs:
        return QuotaReason.OPEN_RUNS
    if asked.grows and asked.manifest_bytes > asked.policy.max_manifest_bytes:
        return QuotaReason.MANIFEST_BYTES
    return QuotaReason.ALLOWED
