"""A world for each test, and a PostgreSQL server for the tests of replicas."""

from collections.abc import Iterator

import pytest

from tests.engine.gpu.worlds import World
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
