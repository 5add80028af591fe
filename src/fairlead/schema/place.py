"""Border types of `gpu.place`: nodes and a gang in, devices out."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from fairlead.core import gpu
from fairlead.core.units import OutOfRange, repeats
from fairlead.schema.derive import Style

STYLE = Style(strict=False, required={gpu.Node: {"location", "free"}})


@dataclass(frozen=True, slots=True)
class PlaceInput:
    """Input of `gpu.place`."""

    nodes: tuple[gpu.Node, ...]
    gang: gpu.Gang

    def faults(self) -> Iterator[OutOfRange]:
        """Nodes that come twice."""
        yield from repeats("nodes", "name", [node.name for node in self.nodes])


PlaceDocument = STYLE.document(PlaceInput, "PlaceDocument")


class PlacedGroupDocument(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """One group's devices as `node#ordinal`."""

    group: int
    active: list[str]
    spares: list[str]


class PlaceResult(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Output of `gpu.place`: all groups, or none and the shortfall."""

    placed: bool
    groups: list[PlacedGroupDocument]
    shortfall_gpus: int


def decide_place(document: Any) -> dict[str, Any]:
    """The whole contract: documents in, result document out."""
    given = STYLE.to_core(PlaceInput, document)
    return from_placement(gpu.place(given.nodes, given.gang))


def from_placement(placement: gpu.Placement) -> dict[str, Any]:
    """The result document of a placement."""
    groups = [
        PlacedGroupDocument(
            group.group,
            [slot_text(slot) for slot in group.active],
            [slot_text(slot) for slot in group.spares],
        )
        for group in placement.groups
    ]
    result = PlaceResult(placement.placed, groups, placement.shortfall_gpus)
    return dict(msgspec.to_builtins(result))


def no_room(missing_gpus: int, gpus: int) -> str:
    """What finds no place, of how much; spares included."""
    if missing_gpus == gpus:
        return f"there are no free devices for its {gpus} GPUs together"
    return f"there are no free devices for the groups that hold {missing_gpus} of its {gpus} GPUs"


def slot_text(slot: tuple[str, int]) -> str:
    """`node#ordinal`."""
    return f"{slot[0]}#{slot[1]}"
