"""The two implementations of `traffic.tick` that the contract tests are run against."""

import pytest

from tests.core.traffic.play import PLAYERS, Decide


@pytest.fixture(params=sorted(PLAYERS))
def decide(request: pytest.FixtureRequest) -> Decide:
    """The core, then the oracle."""
    return PLAYERS[request.param]
