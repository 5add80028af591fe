"""How long a run keeps its devices is not its tenant's alone to say."""

import pytest

from fairlead.core.gpu import GracePolicy


@pytest.mark.parametrize(
    ("asked_ms", "given_ms", "cut"),
    [(None, 30, False), (0, 0, False), (600, 600, False), (601, 600, True)],
)
def test_more_than_the_operator_allows_is_cut(
    asked_ms: int | None, given_ms: int, *, cut: bool
) -> None:
    policy = GracePolicy(default_ms=30, most_ms=600)
    assert policy.of(asked_ms) == given_ms
    assert policy.cuts(asked_ms) is cut
