"""A world for each test, and a PostgreSQL server for the tests of replicas."""

from collections.abc import Iterator

import pytest

from fairlead.ledger import entries
from tests.engine.gpu.worlds import START, World
from tests.ledger.postgres_server import server


@pytest.fixture
def world() -> World:
    """Empty, on fakes."""
    return World()


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The address of a running PostgreSQL."""
    with server() as address:
        yield address


@pytest.fixture(scope="module", autouse=True)
def _ledgers_begin_when_the_worlds_do() -> Iterator[None]:
    """A ledger whose first entry is of today would be ahead of the clock of every world."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(entries, "now_ms", lambda: START)
        yield
