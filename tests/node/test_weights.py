"""Guarantees as weights, and how long threads waited: on trees of both versions, and real ones."""

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from fairlead.core.cpu import Actuation, ContainerSighting, PodSighting
from fairlead.node.cgroups import open_files
from fairlead.node.kernel_files import WEIGHTS
from fairlead.node.limits import CgroupActuator, Guarantees, Originals
from fairlead.node.sensor import CgroupSensor
from fairlead.node.state import StateDirectory
from fairlead.node.waits import TASKS_MAX, WaitMeter
from fairlead.ports.cpu import Gone
from tests.node.cgroup_worlds import PlainTree, real_tree

PRESSURE = "some avg10=0.00 avg60=0.00 avg300=0.00 total={}\n"


@pytest.mark.parametrize("version", [1, 2])
def test_a_core_is_worth_the_kernels_default_weight(version: int) -> None:
    """So a guarantee means the same beside cgroups whose weight was never set."""
    weights, default = WEIGHTS[version], {1: 1024, 2: 100}[version]
    assert weights.weight(1000) == default
    assert weights.millicores(default) == 1000
    assert weights.weight(0) == weights.least
    assert weights.weight(10**9) == weights.most
    assert weights.read(b"%d\n" % default) == default
    for rubbish in (b"", b"0\n", b"1024", b"-1\n", b"max\n", b"999999999\n"):
        assert weights.read(rubbish) is None


def test_v1_gives_every_guarantee_back_to_the_millicore() -> None:
    for millicores in range(2, 5000):
        assert WEIGHTS[1].millicores(WEIGHTS[1].weight(millicores)) == millicores


class Governed:
    """A tree with pods, a sensor and an actuator of guarantees."""

    def __init__(self, version: int, folder: Path) -> None:
        self.tree = PlainTree(version, folder / "root")
        self.files = open_files(version, self.tree.root, self.tree.root, with_weights=True)
        self.name, self.tasks = {1: ("cpu.shares", "tasks"), 2: ("cpu.weight", "cgroup.threads")}[
            version
        ]
        self.directory = StateDirectory(folder / "state")
        self.directory.create()
        self.originals = Originals(self.directory, Actuation.BOTH)
        self.guarantees = Guarantees(self.files, CgroupActuator(self.files), self.originals)
        self.sensor = CgroupSensor(self.files, "*")
        self.sensor.guarantee = self.guarantees.millicores
        self.sensor.first = lambda pods: self.originals.freeze(pods, self.files)

    def create(self, path: str, weight: int) -> None:
        self.tree.create(path)
        (self.tree.root / path / self.name).write_text(f"{weight}\n")
        (self.tree.root / path / self.tasks).write_text("")

    def weight(self, path: str) -> int:
        return int((self.tree.root / path / self.name).read_text())


@pytest.fixture(params=[1, 2])
def governed(request: pytest.FixtureRequest, tmp_path: Path) -> Governed:
    return Governed(request.param, tmp_path)


def test_the_weight_of_a_pod_is_the_sum_of_its_containers(governed: Governed) -> None:
    """Weights count among siblings only: the pod's is what other pods see. All are restored."""
    governed.create("pod", 50)
    for name in ("app", "log"):
        governed.create(f"pod/{name}", 70)
    (seen,) = governed.sensor.sample(0)
    assert [container.guarantee_millicores for container in seen.containers] == [
        governed.files.weights.millicores(70)
    ] * 2
    assert governed.guarantees.write(1, "pod", "app", 500) == 500
    assert governed.guarantees.write(1, "pod", "log", 10) == 10
    parts = [governed.weight(f"pod/{name}") for name in ("app", "log")]
    assert governed.weight("pod") == sum(parts)
    restored, failed = Originals(governed.directory).restore(governed.files)
    assert sorted(restored) == ["pod", "pod/app", "pod/log"]
    assert not failed
    assert [governed.weight(path) for path in ("pod", "pod/app", "pod/log")] == [50, 70, 70]


def test_a_guarantee_between_two_weights_reads_as_it_was_asked_for(governed: Governed) -> None:
    """v2 knows steps of 10m; read as another guarantee it would be written again and again."""
    governed.create("pod", 100)
    governed.sensor.sample(0)
    governed.guarantees.write(1, "pod", "", 157)
    (seen,) = governed.sensor.sample(1000)
    assert seen.containers[0].guarantee_millicores == 157
    (governed.tree.root / "pod" / governed.name).write_text("77\n")
    (seen,) = governed.sensor.sample(2000)
    assert seen.containers[0].guarantee_millicores == governed.files.weights.millicores(77)


def test_a_weight_that_cannot_be_read_is_a_missing_reading(governed: Governed) -> None:
    governed.create("pod", 100)
    (governed.tree.root / "pod" / governed.name).write_text("rubbish\n")
    (seen,) = governed.sensor.sample(0)
    assert seen.containers == (ContainerSighting("", None, None, None),)
    assert len(governed.originals) == 0, "nothing was found that could be restored"


def test_a_contained_pod_gets_its_users_limit_back(governed: Governed) -> None:
    governed.create("pod", 100)
    own = governed.files.quota("pod")
    assert own is not None
    governed.files.set_quota("pod", own._replace(quota_us=80_000))
    governed.sensor.sample(0)
    governed.guarantees.contain(1, "pod", "", 300)
    quota = governed.files.quota("pod")
    assert quota is not None
    assert (quota.millicores, quota.burst_us) == (300, 30_000)
    governed.guarantees.contain(1, "pod", "", None)
    assert governed.files.quota("pod") == own._replace(quota_us=80_000)


def test_a_pod_that_went_is_gone(governed: Governed) -> None:
    governed.create("pod", 100)
    governed.sensor.sample(0)
    governed.tree.remove("pod")
    with pytest.raises(Gone):
        governed.guarantees.write(1, "pod", "", 100)
    with pytest.raises(Gone):
        governed.guarantees.contain(1, "pod", "", None)


def test_originals_of_other_means_are_put_back_first(governed: Governed) -> None:
    """An agent that begins to govern by other means takes nothing of ours for the user's own."""
    governed.create("pod", 100)
    governed.sensor.sample(0)
    governed.guarantees.write(1, "pod", "", 800)
    governed.guarantees.contain(1, "pod", "", 300)
    same = Originals(governed.directory, Actuation.BOTH)
    same.begin(governed.files)
    assert governed.weight("pod") != 100
    Originals(governed.directory, Actuation.LIMITS).begin(governed.files)
    assert governed.weight("pod") == 100
    assert governed.files.quota("pod") is not None
    sighting = PodSighting("pod", 0, (ContainerSighting("", None, None),), identity="x")
    limits = Originals(governed.directory, Actuation.LIMITS)
    limits.freeze([sighting], governed.files)
    assert limits.quota("pod", "") == governed.files.quota("pod")
    assert limits.quota("pod", "other") is None


def opened(path: Path, text: str) -> int:
    path.write_text(text)
    return os.open(path, os.O_RDONLY)


def test_waits_come_from_pressure_where_threads_cannot_be_read(tmp_path: Path) -> None:
    """Too many threads, or processes of another namespace; a change of source is no difference."""
    pressure = tmp_path / "cpu.pressure"
    tasks = tmp_path / "tasks"
    meter = WaitMeter(opened(tasks, "0\n"), opened(pressure, PRESSURE.format(500)))
    assert meter.read().waited_us == 0
    pressure.write_text(PRESSURE.format(900))
    assert meter.read().waited_us == 400
    tasks.write_text("".join(f"{n}\n" for n in range(1, TASKS_MAX + 2)))
    pressure.write_text(PRESSURE.format(1000))
    assert meter.read().waited_us == 500
    pressure.write_text("rubbish\n")
    assert meter.read().waited_us is None
    pressure.write_text(PRESSURE.format(2000))
    assert meter.read().waited_us == 500, "counts again from here"
    tasks.write_text("")
    assert meter.read().waited_us is None, "another source"
    assert meter.read().waited_us == 500
    meter.close()


@pytest.mark.parametrize("text", ["0\n", "999999999\n"])
def test_without_a_source_waits_are_missing(tmp_path: Path, text: str) -> None:
    """Never zero: neither where processes are hidden nor where their delays cannot be read."""
    meter = WaitMeter(opened(tmp_path / "tasks", text))
    assert meter.read().waited_us is None
    meter.close()


@pytest.mark.component("cgroups")
def test_threads_that_wait_are_seen_on_the_kernels_own_files() -> None:
    """More busy threads than CPUs: they wait, and the waits grow; a container without threads
    waits for nothing."""
    with real_tree() as tree:
        tree.create("busy")
        tree.create("empty")
        files = open_files(tree.version, tree.root, tree.cpuacct, with_weights=True)
        busy, empty = files.container("busy"), files.container("empty")
        for _ in range(2 * (os.cpu_count() or 1) + 1):
            tree.run("busy")
        first = until(lambda: waited(busy) or 0)
        assert until(lambda: max(0, (waited(busy) or 0) - first)) > 0
        assert waited(empty) == 0
        assert busy.weight() == files.weight("busy")
        for container in (busy, empty):
            container.close()
        files.close()


def waited(container: object) -> int | None:
    counters = container.counters()  # type: ignore[attr-defined]
    assert counters is not None
    return counters.waited_us  # type: ignore[no-any-return]


def until(value: Callable[[], int]) -> int:
    """The first value above zero; looks again and again."""
    pause = threading.Event()
    for _ in range(3000):
        found = value()
        if found > 0:
            return found
        pause.wait(0.01)  # polling interval, not synchronisation
    raise AssertionError("never above zero")
