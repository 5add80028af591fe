"""A node is of this host or virtual: two over the same devices would lease each of them twice."""

import pytest

from fairlead.compose.up import retire_foreign
from fairlead.engine.gpu import Config, HostNodes
from fairlead.engine.gpu.values import Refused
from tests.engine.gpu.worlds import ADMIN, World, budget, node, run

HOST = Config(host=HostNodes({"box": 8}))


def test_a_node_is_this_host_or_virtual() -> None:
    """With as many devices as it has; whatever else is said of it is its operator's."""
    world = World(config=HOST)
    world.apply(node("box", 8, location={"rack": "1"}), node("toy", 99, virtual=True))
    assert world.status("Node", "toy")["virtual"]
    assert not world.status("Node", "box")["virtual"]
    for each in (node("other"), node("other", virtual=False), node("box", 9)):
        with pytest.raises(Refused, match="several GPU hosts: run Fairlead on Kubernetes") as no:
            world.apply(each)
        assert "docs/kubernetes.md" in no.value.message


def test_a_host_without_devices_says_why_it_has_none() -> None:
    world = World(config=Config(host=HostNodes({}, "nvidia-ml-py is not installed")))
    with pytest.raises(Refused, match="nvidia-ml-py is not installed"):
        world.apply(node("box"))


def test_a_batch_with_a_foreign_node_changes_nothing() -> None:
    world = World(config=HOST)
    with pytest.raises(Refused):
        world.plane.objects.apply_all([budget("a"), node("other")], author=ADMIN)
    assert world.plane.objects.list("Budget") == []


def test_nodes_of_an_earlier_version_keep_their_runs_and_get_no_more() -> None:
    """They are cordoned by an entry, the server says why, and an operator makes them virtual."""
    world = World()
    world.apply(node("box"), node("second"), budget("a"), run("r", gpus=8, location={}))
    world.turn()
    world.reconfigure(host=HostNodes({"box": 8}))
    retire_foreign(world.plane)
    assert world.plane.objects.get("Node", "second")["spec"]["cordoned"]
    assert not world.plane.objects.get("Node", "box")["spec"]["cordoned"]
    assert "several GPU hosts" in world.plane.faults["*node second"]
    world.turn()
    assert world.status("Run", "r")["phase"] == "Running"
    with pytest.raises(Refused, match="several GPU hosts"):
        world.plane.verbs.act("Node", "second", "uncordon", author=ADMIN)
    world.apply(node("second", virtual=True, cordoned=False))
    assert world.status("Node", "second")["free"] == 8
    world.plane.verbs.act("Node", "second", "cordon", author=ADMIN)
    world.plane.verbs.act("Node", "second", "uncordon", author=ADMIN)
