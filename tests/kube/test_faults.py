"""A sample of the random schedules of faults; `make soak` plays 200."""

from collections.abc import Iterator

import pytest

from fairlead.kube.dev.assets import Programs
from tests.kube.schedules import Arena, arena

pytestmark = pytest.mark.component("postgres")
SEEDS = range(3)


@pytest.fixture(scope="module")
def stage(programs: Programs, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arena]:
    folder = tmp_path_factory.mktemp("faults")
    with arena(programs, folder, folder / "reports") as started:
        yield started


@pytest.mark.parametrize("seed", SEEDS)
def test_faults_change_nothing_in_the_end(stage: Arena, seed: int) -> None:
    """Runs of every fate end as they would have; no device is leased or used twice."""
    played = stage.play(seed)
    assert played.events > 0
