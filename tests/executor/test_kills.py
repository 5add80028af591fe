"""A sample of the kills that `make soak` does in full."""

from pathlib import Path

import pytest

from fairlead.executor.confine import KINDS, Kind
from tests.executor.conftest import CONFINEMENTS
from tests.executor.kills import run_kills


@pytest.mark.parametrize("kind", CONFINEMENTS)
def test_kill_9_loses_no_run_and_starts_none_twice(kind: Kind, shared: Path) -> None:
    """Control planes and shims die at random moments; every job has one exit and one beginning."""
    counted = run_kills(5, seed=KINDS.index(kind), folder=shared, kind=kind)
    assert counted["jobs"] == 15
