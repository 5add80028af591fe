"""Machines to run commands on, and what of this machine the tests may be without."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead.executor.confine import find
from tests.conftest import COMPONENTS
from tests.executor.worlds import RealWorld, RemoteWorld, SimWorld, World, missing, open_folder

COMPONENTS["cgroup.kill"] = lambda: missing("cgroup2")
COMPONENTS["freezer"] = lambda: missing("freezer")

CONFINEMENTS = [
    pytest.param("cgroup2", marks=pytest.mark.component("cgroup.kill")),
    pytest.param("freezer", marks=pytest.mark.component("freezer")),
    pytest.param("tree"),
]


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that the commands' user can write to."""
    with open_folder() as folder:
        yield folder


@pytest.fixture(params=CONFINEMENTS)
def real(request: pytest.FixtureRequest, shared: Path) -> Iterator[RealWorld]:
    """This machine, with each confinement that it has."""
    world = RealWorld(shared, request.param)
    yield world
    world.close()


@pytest.fixture(params=[*CONFINEMENTS, pytest.param("launcher"), pytest.param("sim")])
def world(request: pytest.FixtureRequest, shared: Path) -> Iterator[World]:
    """This machine, with each confinement that it has and through a launcher, and the simulated
    one."""
    made: World
    if request.param == "sim":
        made = SimWorld(shared)
    elif request.param == "launcher":
        made = RemoteWorld(shared, find()[0])
    else:
        made = RealWorld(shared, request.param)
    yield made
    made.close()
