"""One real cluster for the tests that ask for it, with simulated nodes."""

import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead.host import files
from fairlead.kube.dev.assets import Programs, find
from fairlead.kube.dev.cluster import Cluster
from fairlead.kube.dev.components import ClusterOptions
from fairlead.kube.dev.pins import AssetSet
from fairlead.kube.kinds import crds
from tests.kube import charts
from tests.kube.small import Small
from tests.kube.world import World

NODES, GPUS = 4, 8


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that need the programs are skipped by name where they are not built."""
    for item in items:
        if "programs" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.component("kube"))


@pytest.fixture(scope="session")
def programs() -> Programs:
    """Those that are built."""
    found = find(frozenset())
    assert found is not None
    return found


@pytest.fixture(scope="package")
def cluster(programs: Programs, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Four nodes of eight GPUs, shared by these tests: make your objects in `namespace`."""
    directory = tmp_path_factory.mktemp("kube") / "cluster"
    with Cluster(programs, directory, ClusterOptions(nodes=NODES, gpus=GPUS)) as started:
        yield started


@pytest.fixture
def namespace(cluster: Cluster) -> Iterator[str]:
    """A namespace of this test alone."""
    name = f"test-{uuid.uuid4().hex[:8]}"
    cluster.kubectl("create", "namespace", name)
    yield name
    cluster.kubectl("delete", "namespace", name, "--wait=false")


@pytest.fixture(scope="package")
def kinds(cluster: Cluster) -> None:
    """Fairlead's kinds in the cluster."""
    cluster.apply(crds())
    cluster.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=30s")


@pytest.fixture
def world(cluster: Cluster, kinds: None, tmp_path: Path) -> Iterator[World]:
    """The cluster with Fairlead's kinds, and nothing of another test."""
    made = World(cluster, tmp_path)
    made.clean()
    yield made
    made.clean()


@pytest.fixture(scope="session")
def node_programs() -> Programs:
    """With those of a real node."""
    found = find(frozenset({AssetSet.NODE}))
    assert found is not None
    return found


@pytest.fixture(scope="module")
def only_real_node() -> Iterator[None]:
    """There is one real node per machine: test processes take turns."""
    with files.holding(Path(tempfile.gettempdir()) / "fairlead-tests-real-node.lock"):
        yield


@pytest.fixture(scope="package")
def deployed(
    programs: Programs, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[charts.Deployed]:
    """A cluster for the chart; shared by these tests."""
    yield from charts.start(programs, tmp_path_factory.mktemp("deployed"))


@pytest.fixture
def small() -> Iterator[Small]:
    """The controller's parts without a server."""
    made = Small()
    yield made
    made.client.close()
