"""This machine as nodes: names, flavors, and what CUDA calls each slot."""

import os

import pytest

from fairlead.executor.devices import (
    Device,
    Discovery,
    flavor_of,
    host_name,
    machine_nodes,
    visible,
)
from fairlead.schema.objects import read_manifest


def found(*products: str) -> Discovery:
    return Discovery(
        "nvml", tuple(Device(i, f"GPU-{i}", name, 1) for i, name in enumerate(products))
    )


@pytest.mark.parametrize(
    ("product", "flavor"),
    [
        ("NVIDIA H200", "H200"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("Tesla V100-SXM2-16GB", "V100"),
        ("Tesla T4", "T4"),
        ("NVIDIA GeForce RTX 4090", "RTX-4090"),
        ("NVIDIA RTX A6000", "RTX-A6000"),
        ("NVIDIA", "GPU"),
        ("", "GPU"),
        ("-", "GPU"),
    ],
)
def test_the_flavor_of_a_product(product: str, flavor: str) -> None:
    """What people call it, without brand, memory and socket."""
    assert flavor_of(product) == flavor


def test_equal_devices_make_one_node_of_the_machines_name() -> None:
    """Slots count as CUDA's ordinals do, and are called by UUID."""
    both = found("NVIDIA H200", "NVIDIA H200")
    (node,) = machine_nodes(both, "box")
    assert (node.name, node.flavor, len(node.devices)) == ("box", "H200", 2)
    assert visible(both, "box") == {"box#0": "GPU-0", "box#1": "GPU-1"}


def test_devices_of_several_flavors_make_a_node_each() -> None:
    """A node has one flavor; its slots are its own, whatever the devices' ordinals."""
    mixed = found("NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB")
    nodes = machine_nodes(mixed, "box")
    assert [(node.name, node.flavor, len(node.devices)) for node in nodes] == [
        ("box-a100", "A100", 2),
        ("box-h100", "H100", 1),
    ]
    slots = visible(mixed, "box")
    assert (slots["box-a100#1"], slots["box-h100#0"]) == ("GPU-2", "GPU-1")
    assert "box#2" not in slots, "each device once"


def test_no_devices_and_virtual_ones_make_no_node() -> None:
    """Virtual devices are what an operator declares."""
    assert machine_nodes(found(), "box") == []
    virtual = Discovery("virtual", (Device(0, "VIRTUAL-0", "virtual", 0, virtual=True),))
    assert machine_nodes(virtual, "box") == []
    assert visible(virtual, "box") == {"box#0": "0"}


@pytest.mark.parametrize("name", ["Box_7.Lab", "...", "x" * 80, "-a-", "é"])
def test_any_machine_has_a_name_that_a_node_can_have(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lower case, 63 characters at most."""
    monkeypatch.setattr(os, "uname", type("Names", (), {"nodename": name}))
    for node in (host_name(), machine_nodes(found("A_!", "B"), host_name())[0].name):
        read_manifest(
            {
                "apiVersion": "fairlead.dev/v1alpha1",
                "kind": "Node",
                "metadata": {"name": node},
                "spec": {"flavor": "A", "devices": 1},
            }
        )
