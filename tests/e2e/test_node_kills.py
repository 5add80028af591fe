"""Killing the agent at any instant leaves valid limits that fit the capacity."""

from pathlib import Path

import pytest

from tests.e2e.kills import run_kills

pytestmark = pytest.mark.component("cgroups")


def test_kill_9_at_random_moments(tmp_path: Path) -> None:
    """10 kills; `make soak` does 1 000."""
    counted = run_kills(10, seed=4, folder=tmp_path)
    assert counted["samples"] > 80
