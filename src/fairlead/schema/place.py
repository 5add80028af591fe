"""Border types of `gpu.place`: nodes and a gang in, devices out."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from fairlead.core.gpu.place import Gang, Node, Placement, place
from fairlead.schema.border import BadInput
from fairlead.schema.gpu import Gpus, Name

Ordinal = Annotated[int, Meta(ge=0, le=1023)]
GangGpus = Annotated[int, Meta(ge=1, le=100_000)]


class PlaceNodeDocument(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A machine; `free` are the ordinals of devices that nobody leases."""

    name: Name
    flavor: Name
    location: dict[str, str]
    free: list[Ordinal]
    cordoned: bool = False


class GangDocument(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """What is placed, whole or not at all; groups stay inside one domain."""

    flavor: Name
    gpus: GangGpus
    group_gpus: Gpus | None = None
    spares_per_group: Annotated[int, Meta(ge=0, le=100_000)] = 0
    location: dict[str, str] = {}
    elsewhere: bool = False


class PlaceDocument(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Input of `gpu.place`."""

    nodes: list[PlaceNodeDocument]
    gang: GangDocument


class GroupDocument(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """One group's devices as `node#ordinal`."""

    group: int
    active: list[str]
    spares: list[str]


class PlaceResult(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Output of `gpu.place`: all groups, or none and the shortfall."""

    placed: bool
    groups: list[GroupDocument]
    shortfall_gpus: int


def decide_place(document: PlaceDocument) -> dict[str, Any]:
    """The whole contract: documents in, result document out."""
    nodes, names = [], set()
    for i, node in enumerate(document.nodes):
        if node.name in names:
            raise BadInput(f"nodes[{i}].name", f"repeats another node's name, {node.name!r}")
        names.add(node.name)
        if len(set(node.free)) != len(node.free):
            raise BadInput(f"nodes[{i}].free", "names a device twice")
        nodes.append(Node(node.name, node.flavor, node.location, tuple(node.free), node.cordoned))
    gang = document.gang
    return from_placement(
        place(
            nodes,
            Gang(
                gang.flavor,
                gang.gpus,
                gang.group_gpus,
                gang.spares_per_group,
                gang.location,
                gang.elsewhere,
            ),
        )
    )


def from_placement(placement: Placement) -> dict[str, Any]:
    """The result document of a placement."""
    return {
        "placed": placement.placed,
        "groups": [
            {
                "group": group.group,
                "active": [slot_text(slot) for slot in group.active],
                "spares": [slot_text(slot) for slot in group.spares],
            }
            for group in placement.groups
        ],
        "shortfall_gpus": placement.shortfall_gpus,
    }


def no_room(missing_gpus: int, gpus: int) -> str:
    """What finds no place, of how much; spares included."""
    if missing_gpus == gpus:
        return f"there are no free devices for its {gpus} GPUs together"
    return f"there are no free devices for the groups that hold {missing_gpus} of its {gpus} GPUs"


def slot_text(slot: tuple[str, int]) -> str:
    """`node#ordinal`."""
    return f"{slot[0]}#{slot[1]}"
