import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead.kube.kinds import crds
from tests.kube.world import World


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    lab = Path(os.environ["KUBE_LAB"])
    made = World(lab / "bin/kubectl", lab / "kubeconfig", tmp_path)
    made.apply(*crds())
    made.clean()
    yield made
    made.clean()
