"""This machine as nodes of the control plane: a name, a flavor, and what CUDA calls each device.

Devices of one flavor make one node under the machine's name. Where there are several flavors each
makes a node of its own, `box-h100` and `box-a100`, because a node has one flavor.
"""

import os
import re
from dataclasses import dataclass

from fairlead.executor.devices import Device, Discovery

NAME_MAX = 63
# Product names begin with whose and which line it is; the flavor is what comes after that.
_BRANDS = frozenset({"NVIDIA", "Tesla", "GeForce", "Quadro"})
_SERIES = frozenset({"RTX", "GTX", "TITAN"})


@dataclass(frozen=True, slots=True)
class MachineNode:
    """Devices that are leased as `name#0`, `name#1` and so on, in this order."""

    name: str
    flavor: str
    devices: tuple[Device, ...]


def host_name() -> str:
    """This machine's name as a node can have it."""
    return _node_name(os.uname().nodename) or "localhost"


def flavor_of(product: str) -> str:
    """`NVIDIA A100-SXM4-80GB` is an A100, `NVIDIA GeForce RTX 4090` an RTX-4090."""
    words = [word.split("-")[0] for word in product.split() if word not in _BRANDS]
    if len(words) > 1 and words[0] in _SERIES:
        return f"{words[0]}-{words[1]}"
    return words[0] if words and words[0] else "GPU"


def machine_nodes(found: Discovery, host: str) -> list[MachineNode]:
    """The nodes that the real devices of this machine make, by name."""
    flavors: dict[str, list[Device]] = {}
    for device in found.devices if found.source == "nvml" else ():
        flavors.setdefault(flavor_of(device.name), []).append(device)
    if len(flavors) == 1:
        ((flavor, devices),) = flavors.items()
        return [MachineNode(host, flavor, tuple(devices))]
    return [
        MachineNode(_node_name(f"{host[:40]}-{flavor}"), flavor, tuple(devices))
        for flavor, devices in sorted(flavors.items())
    ]


def visible(found: Discovery, host: str) -> dict[str, str]:
    """What CUDA calls each slot of this machine, whoever declared its nodes."""
    slots = found.visible(host)
    for node in machine_nodes(found, host):
        slots |= {f"{node.name}#{i}": device.visible for i, device in enumerate(node.devices)}
    return slots


def _node_name(text: str) -> str:
    plain = re.sub(r"[^a-z0-9.-]", "-", text.lower())
    return plain.strip(".-")[:NAME_MAX].rstrip(".-")
