"""Quotas of an owner: open runs, and bytes of manifests."""

import pytest

from fairlead.core.gpu import QuotaPolicy, QuotaRequest, check_quota

POLICY = QuotaPolicy(max_open_runs=3, max_manifest_bytes=100)


def asked(runs: int, size: int, *, grows: bool = True, is_new: bool = True) -> QuotaRequest:
    return QuotaRequest("a", runs, size, grows, is_new, POLICY)


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (asked(3, 100), "Allowed"),
        (asked(4, 100), "OpenRunsQuota"),
        (asked(3, 101), "ManifestBytesQuota"),
        (asked(4, 101), "OpenRunsQuota"),
        (asked(9, 100, is_new=False), "Allowed"),
        (asked(9, 999, is_new=False, grows=False), "Allowed"),
        (asked(1, 999, is_new=False), "ManifestBytesQuota"),
    ],
)
def test_the_rule_that_is_broken(request_: QuotaRequest, reason: str) -> None:
    """At the limit is within it; what is there already stays, and may get smaller."""
    assert check_quota(request_).value == reason
