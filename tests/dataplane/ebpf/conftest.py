"""One place for all tests of a worker; a fresh plane for each test."""

from collections.abc import Iterator

import pytest

from fairlead.dataplane.ebpf import EbpfDataplane
from tests.dataplane.ebpf.places import Place, Talker, own_place


@pytest.fixture(scope="session")
def session_place() -> Iterator[Place]:
    with own_place() as place:
        yield place


@pytest.fixture
def place(session_place: Place) -> Iterator[Place]:
    """Nothing is pinned before or after."""
    yield session_place
    session_place.clear()


@pytest.fixture
def plane(place: Place) -> EbpfDataplane:
    return place.plane()


@pytest.fixture(scope="session")
def client(session_place: Place) -> Talker:
    """A process in the cgroup; it stays between tests and keeps nothing open."""
    return session_place.client()
