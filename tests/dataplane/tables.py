"""Groups and tables that the suite uses again and again."""

from fairlead.ports.dataplane import Admission, Mode, RouteGroup
from tests.dataplane.worlds import World

IDS = ("b1", "b2", "b3", "b4")
CLOSED = Admission(Mode.HARD, 0.0, 0.0)


def only(id: str) -> dict[str, int]:
    return {each: 256 if each == id else 0 for each in IDS}


def opened(world: World, name: str = "web", ids: tuple[str, ...] = IDS) -> RouteGroup:
    """A group, configured alone."""
    group = world.group(name, ids)
    world.plane.configure([group])
    return group
