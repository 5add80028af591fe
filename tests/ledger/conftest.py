"""Ledgers for the tests: a server that all of them share, a place for each of them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ledger.postgres_server import server
from tests.ledger.worlds import MemoryWorld, PostgresWorld, SqliteWorld, World


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The address of a running PostgreSQL."""
    with server() as address:
        yield address


ADAPTERS = ["memory", "sqlite", pytest.param("postgres", marks=pytest.mark.component("postgres"))]


@pytest.fixture(params=ADAPTERS)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    """A place for a ledger, of each kind in turn."""
    if request.param == "memory":
        return MemoryWorld()
    if request.param == "sqlite":
        return SqliteWorld(tmp_path)
    return PostgresWorld(request.getfixturevalue("postgres"), tmp_path)


@pytest.fixture
def postgres_world(postgres: str, tmp_path: Path) -> PostgresWorld:
    """A schema of its own in the server that all tests share."""
    return PostgresWorld(postgres, tmp_path)
