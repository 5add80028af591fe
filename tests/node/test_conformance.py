"""One suite for all that can be sensed and limited: real cgroups, recorded trees, the sim."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead.node.actuator import CgroupActuator
from fairlead.node.sensor import CgroupSensor, PodRule
from fairlead.ports.cpu import Gone, Sighting
from tests.node.cgroup_worlds import PlainTree, RealTree, real_tree

World = PlainTree | RealTree


@pytest.fixture(params=["real", "v1-tree", "v2-tree"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    if request.param == "real":
        with real_tree() as tree:
            yield tree
    else:
        yield PlainTree(1 if request.param == "v1-tree" else 2, tmp_path / "root")


pytestmark = pytest.mark.component("cgroups")


def sight(world: World, pattern: str = "*", rules: tuple[PodRule, ...] = ()) -> dict[str, Sighting]:
    sensor = CgroupSensor(world.files(), pattern, rules)
    try:
        return {sighting.uid: sighting for sighting in sensor.sample(1_000_000)}
    finally:
        sensor.close()


def test_pods_are_seen_with_their_own_limits(world: World) -> None:
    """Unlimited is None, never 0; counters are there from the first look."""
    world.create("a")
    world.create("b")
    CgroupActuator(world.files()).write("b", "", 250)
    seen = sight(world)
    assert list(seen) == ["a", "b"]
    assert (seen["a"].limit_millicores, seen["b"].limit_millicores) == (None, 250)
    assert all(container.counters for s in seen.values() for container in s.containers)


@pytest.mark.parametrize("millicores", [1, 5, 9, 10, 11, 99, 333, 1000, 1900])
def test_a_written_limit_is_in_force_to_the_millicore(world: World, millicores: int) -> None:
    """Below 10m the period grows, since the kernel takes no quota under 1 ms."""
    world.create("a")
    actuator = CgroupActuator(world.files())
    assert actuator.write("a", "", millicores) == millicores
    assert sight(world)["a"].limit_millicores == millicores
    assert actuator.write("a", "", millicores) == millicores  # idempotent
    assert actuator.write("a", "", 500) == 500


def test_child_cgroups_are_containers(world: World) -> None:
    """A pod without children is its own container; with children they are limited one by one."""
    world.create("pod/app")
    world.create("pod/sidecar")
    world.create("plain")
    actuator = CgroupActuator(world.files())
    actuator.write("pod", "app", 300)
    seen = sight(world)
    assert [c.name for c in seen["pod"].containers] == ["app", "sidecar"]
    assert [c.limit_millicores for c in seen["pod"].containers] == [300, None]
    assert seen["pod"].limit_millicores is None
    actuator.write("pod", "sidecar", 100)
    assert sight(world)["pod"].limit_millicores == 400
    assert [c.name for c in seen["plain"].containers] == [""]


def test_pods_come_and_go_between_samples(world: World) -> None:
    """The sensor keeps up with what is there, and a reborn pod has another identity."""
    world.create("a")
    sensor = CgroupSensor(world.files(), "*")
    first = sensor.sample(0)[0]
    world.remove("a")
    assert sensor.sample(1) == []
    world.create("spacer")
    world.create("a")
    again = {sighting.uid: sighting for sighting in sensor.sample(2)}
    assert set(again) == {"a", "spacer"}
    if isinstance(world, RealTree):  # plain file systems reuse inode numbers
        assert again["a"].identity != first.identity
    sensor.close()


def test_a_limit_of_a_vanished_pod_is_gone(world: World) -> None:
    """Writing to it says so."""
    world.create("a")
    world.remove("a")
    with pytest.raises(Gone):
        CgroupActuator(world.files()).write("a", "", 100)


def test_rules_say_what_cgroups_cannot(world: World) -> None:
    """Request, priority and opt-out by glob; the first match counts."""
    for path in ("web-1", "web-2", "db"):
        world.create(path)
    rules = (
        PodRule("web-2", opted_out=True),
        PodRule("web-*", request_millicores=200, priority=1000),
    )
    seen = sight(world, rules=rules)
    assert (seen["web-1"].request_millicores, seen["web-1"].priority) == (200, 1000)
    assert seen["web-2"].opted_out
    assert (seen["db"].request_millicores, seen["db"].opted_out) == (0, False)
