"""A PostgreSQL server for the tests of replicas."""

from collections.abc import Iterator

import pytest

from tests.ledger.postgres_server import server


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The address of a running PostgreSQL."""
    with server() as address:
        yield address
