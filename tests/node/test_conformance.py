"""One suite for all that can be sensed and limited: real cgroups, recorded trees, the sim."""

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest

from fairlead.core.cpu import NodeSnapshot, PodSighting, allocate
from fairlead.node.cgroups import CONTAINERS_MAX
from fairlead.node.kernel_files import Quota
from fairlead.node.limits import CgroupActuator
from fairlead.node.sensor import CgroupSensor
from fairlead.ports.cpu import CpuActuator, CpuSensor, Gone
from fairlead.schema.border import check_shape
from fairlead.schema.node import PodRule
from fairlead.schema.scenario import SimPodDocument
from fairlead.sim.agent import Faults, SimPorts
from fairlead.sim.clock import Entropy, VirtualClock
from fairlead.sim.node import SimNode, SimPod
from fairlead.sim.record import RunRecord
from tests.node.cgroup_worlds import PlainTree, RealTree, real_tree

pytestmark = pytest.mark.component("cgroups")


class World(Protocol):
    """A place where pods come and go, with a sensor and an actuator."""

    def create(self, path: str) -> None: ...

    def remove(self, path: str) -> None: ...

    def sensor(self) -> CpuSensor: ...

    def actuator(self) -> CpuActuator: ...


class Cgroups:
    """Cgroups, real or recorded."""

    def __init__(self, tree: PlainTree | RealTree) -> None:
        self.tree, self.create, self.remove = tree, tree.create, tree.remove

    def sensor(self, rules: tuple[PodRule, ...] = ()) -> CgroupSensor:
        return CgroupSensor(self.tree.files(), "*", rules)

    def actuator(self) -> CgroupActuator:
        return CgroupActuator(self.tree.files())


class Simulated:
    """The virtual node, nothing going wrong."""

    def __init__(self) -> None:
        self.node, entropy = SimNode(2000), Entropy(1)
        self.entropy = entropy
        record = RunRecord()
        self.around = SimPorts(self.node, VirtualClock(), Faults([], entropy), record)
        # An actuator writes nothing that was not decided and recorded.
        empty = NodeSnapshot(2000, 0, ())
        record.decision(0, empty, allocate(empty), {}, same=True)

    def create(self, path: str) -> None:
        want = [{"kind": "constant", "millicores": 100}]
        spec = {"name": path, "request_millicores": 0, "want": want}
        self.node.pods[path] = SimPod.arriving(check_shape(spec, SimPodDocument), self.entropy)

    def remove(self, path: str) -> None:
        del self.node.pods[path]

    def sensor(self) -> SimPorts:
        return self.around

    def actuator(self) -> SimPorts:
        return self.around


@pytest.fixture(params=["real", "v1-tree", "v2-tree"])
def cgroups(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cgroups]:
    if request.param == "real":
        with real_tree() as tree:
            yield Cgroups(tree)
    else:
        yield Cgroups(PlainTree(1 if request.param == "v1-tree" else 2, tmp_path / "root"))


@pytest.fixture(params=["real", "v1-tree", "v2-tree", "simulated"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    if request.param == "simulated":
        yield Simulated()
    elif request.param == "real":
        with real_tree() as tree:
            yield Cgroups(tree)
    else:
        yield Cgroups(PlainTree(1 if request.param == "v1-tree" else 2, tmp_path / "root"))


def sight(sensor: CpuSensor) -> dict[str, PodSighting]:
    return {sighting.uid: sighting for sighting in sensor.sample(1_000_000)}


def test_pods_are_seen_with_their_own_limits(world: World) -> None:
    """Unlimited is None, never 0; counters are there from the first look."""
    world.create("a")
    world.create("b")
    world.actuator().write(1, "b", "", 250)
    seen = sight(world.sensor())
    assert list(seen) == ["a", "b"]
    assert (seen["a"].limit_millicores, seen["b"].limit_millicores) == (None, 250)
    assert all(container.counters for s in seen.values() for container in s.containers)


@pytest.mark.parametrize("millicores", [1, 5, 9, 10, 11, 99, 333, 1000, 1900])
def test_a_written_limit_is_in_force_to_the_millicore(world: World, millicores: int) -> None:
    """Below 10m the period grows, since the kernel takes no quota under 1 ms."""
    world.create("a")
    actuator = world.actuator()
    assert actuator.write(1, "a", "", millicores) == millicores
    assert sight(world.sensor())["a"].limit_millicores == millicores
    assert actuator.write(1, "a", "", millicores) == millicores  # idempotent
    assert actuator.write(1, "a", "", 500) == 500


def test_pods_come_and_go_between_samples(world: World) -> None:
    """The sensor keeps up with what is there."""
    world.create("a")
    sensor = world.sensor()
    assert list(sight(sensor)) == ["a"]
    world.remove("a")
    assert sight(sensor) == {}
    world.create("spacer")
    world.create("a")
    assert set(sight(sensor)) == {"a", "spacer"}


def test_a_limit_of_a_vanished_pod_is_gone(world: World) -> None:
    """Writing to it says so."""
    world.create("a")
    world.remove("a")
    with pytest.raises(Gone):
        world.actuator().write(1, "a", "", 100)


def test_a_reborn_pod_has_another_identity() -> None:
    """The old one's ceiling must not be taken for the new one's."""
    with real_tree() as tree:
        tree.create("a")
        sensor = Cgroups(tree).sensor()
        first = sight(sensor)["a"]
        tree.remove("a")
        tree.create("a")
        assert sight(sensor)["a"].identity != first.identity
        sensor.close()


@pytest.mark.parametrize("burst", [True, False])
def test_a_burst_is_what_was_saved_and_never_above_the_quota(cgroups: Cgroups, burst: bool) -> None:
    """Up and down again: the kernel would refuse a quota below the burst in force."""
    cgroups.create("a")
    files = cgroups.tree.files()
    actuator = CgroupActuator(files, burst=burst)
    for millicores in (400, 900, 100, 5, 250):
        assert actuator.write(1, "a", "", millicores) == millicores
        quota = files.quota("a")
        assert quota is not None
        assert quota.burst_us == (quota.quota_us if burst else 0)


def test_putting_back_restores_the_burst_too(cgroups: Cgroups) -> None:
    """Quota, period and burst as they were found."""
    cgroups.create("a")
    files = cgroups.tree.files()
    own = Quota(40_000, 50_000, 10_000)
    files.set_quota("a", own)
    actuator = CgroupActuator(files)
    actuator.write(1, "a", "", 300)
    files.set_quota("a", own)
    assert files.quota("a") == own
    unlimited = Quota(None, 100_000, 0)
    files.set_quota("a", unlimited)
    assert files.quota("a") == unlimited


def test_child_cgroups_are_containers(cgroups: Cgroups) -> None:
    """A pod without children is its own container; with children they are limited one by one."""
    cgroups.create("pod/app")
    cgroups.create("pod/sidecar")
    cgroups.create("plain")
    actuator = cgroups.actuator()
    actuator.write(1, "pod", "app", 300)
    seen = sight(cgroups.sensor())
    assert [c.name for c in seen["pod"].containers] == ["app", "sidecar"]
    assert [c.limit_millicores for c in seen["pod"].containers] == [300, None]
    assert seen["pod"].limit_millicores is None
    actuator.write(1, "pod", "sidecar", 100)
    assert sight(cgroups.sensor())["pod"].limit_millicores == 400
    assert [c.name for c in seen["plain"].containers] == [""]


def test_a_pod_with_too_many_cgroups_is_limited_as_a_whole(cgroups: Cgroups) -> None:
    """A container that may make cgroups below its own made 600, and the agent had no descriptor
    left for any other pod's limit."""
    cgroups.create("many")
    for number in range(CONTAINERS_MAX + 1):
        cgroups.create(f"many/c{number}")
        if number < CONTAINERS_MAX:
            cgroups.create(f"enough/c{number}")
    sensor = cgroups.sensor()
    seen = sight(sensor)
    assert [c.name for c in seen["many"].containers] == [""]
    assert len(seen["enough"].containers) == CONTAINERS_MAX
    cgroups.actuator().write(1, "many", "", 300)
    seen = sight(sensor)
    assert [c.limit_millicores for c in seen["many"].containers] == [300]
    sensor.close()


def test_a_pod_that_cannot_be_opened_yet_has_no_known_limit(tmp_path: Path) -> None:
    """Its cgroup is made in one hierarchy after the other. It was seen without containers, and so
    with a limit of zero, which became its own: it ran on a thousandth of a core for good."""
    tree = PlainTree(1, tmp_path)
    tree.create("new")
    (tmp_path / "new" / "cpuacct.usage").unlink()
    sensor = CgroupSensor(tree.files(), "*")
    (container,) = sight(sensor)["new"].containers
    assert container.is_unread
    (tmp_path / "new" / "cpuacct.usage").write_text("1000\n")
    (container,) = sight(sensor)["new"].containers
    assert (container.limit_millicores, container.is_unread) == (None, False)
    sensor.close()


def test_rules_say_what_cgroups_cannot(cgroups: Cgroups) -> None:
    """Request, priority and opt-out by glob; the first match counts."""
    for path in ("web-1", "web-2", "db"):
        cgroups.create(path)
    rules = (
        PodRule("web-2", opted_out=True),
        PodRule("web-*", request_millicores=200, priority=1000),
    )
    seen = sight(cgroups.sensor(rules))
    assert (seen["web-1"].request_millicores, seen["web-1"].priority) == (200, 1000)
    assert seen["web-2"].opted_out
    assert (seen["db"].request_millicores, seen["db"].opted_out) == (0, False)
