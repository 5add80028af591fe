"""Groups and tables that the suite uses again and again."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from fairlead.core.traffic.limits import plan_limits
from fairlead.core.traffic.model import Admission
from fairlead.core.traffic.retries import RetryLimit
from fairlead.core.traffic.state import AdmissionMode
from fairlead.ports.dataplane import RouteGroup, Table

if TYPE_CHECKING:
    from tests.dataplane.worlds import World

IDS = ("b1", "b2", "b3", "b4")
NORMAL = Admission()
CLOSED = Admission(AdmissionMode.HARD, 0.0, 0.0)


def table(
    group: str,
    epoch: int,
    slots: Mapping[str, int],
    admission: Admission = NORMAL,
    inside_max: int | None = None,
    *,
    stored: tuple[float, float] | None = None,
    open: Mapping[str, int | None] | None = None,
    inside: Mapping[str, tuple[int, ...]] | None = None,
    retries: RetryLimit | None = None,
) -> Table:
    """A table as the engine makes it; `stored` is the budget that `hard` relaxes to."""
    kept = None if stored is None else Admission(AdmissionMode.SOFT, *stored)
    limits = plan_limits(
        slots,
        admission,
        stored=kept,
        inside_max=inside_max,
        open=open,
        inside=inside,
        retries=retries,
    )
    return Table(group, epoch, slots, limits)


def only(id: str) -> dict[str, int]:
    return {each: 256 if each == id else 0 for each in IDS}


def opened(world: "World", name: str = "web", ids: tuple[str, ...] = IDS) -> RouteGroup:
    """A group, configured alone."""
    group = world.group(name, ids)
    world.plane.configure([group])
    return group
