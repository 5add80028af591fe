"""Deaths: what was acknowledged stays, nothing is recorded twice, the tree verifies."""

from pathlib import Path

import pytest

from tests.ledger.kill import kill_writers
from tests.ledger.worlds import PostgresWorld


def test_no_acknowledged_entry_is_lost_when_writers_are_killed(tmp_path: Path) -> None:
    """SIGKILL at random moments; `make soak` does the same 500 times."""
    counted = kill_writers(str(tmp_path / "l.db"), tmp_path / "keys", "", count=8, seed=1)
    assert counted["entries"] > counted["acknowledged"] > 8


@pytest.mark.component("postgres")
def test_nor_when_two_replicas_are(postgres_world: PostgresWorld) -> None:
    """Two at once, both killed: what one left waiting is numbered by the next, whole, once."""
    keys = postgres_world.directory / "keys"
    counted = kill_writers(
        postgres_world.address, keys, postgres_world.schema, count=4, seed=2, at_once=2
    )
    assert counted["acknowledged"] > 8
