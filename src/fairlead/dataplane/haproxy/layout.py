"""How a table is laid out in HAProxy: the map a worker begins with, and the commands of a flip."""

from collections.abc import Mapping

from fairlead.dataplane.haproxy import config, words
from fairlead.dataplane.names import tame
from fairlead.dataplane.tables import Current


def first(tables: Mapping[str, Current], born_ms: int) -> str:
    """The map of words that a worker begins with."""
    lines = [f"{config.BORN} {born_ms}\n"]
    for name, each in sorted(tables.items()):
        word = words.write(each.epoch, words.SIDES[0], each.slots, each.admission)
        lines.append(f"{tame(name)} {word}\n")
    return "".join(lines)


def commands(name: str, side: str, slots: Mapping[str, int]) -> list[str]:
    """The commands that put a table on a side, and its survivors on the hashed one."""
    commands = []
    for where, weights in (
        (side, config.weights(slots)),
        (words.HASHED, config.hashed_weights(slots)),
    ):
        for id, weight in sorted(weights.items()):
            server = f"{name}_{where}/{tame(id)}"
            commands.append(f"set server {server} weight {weight}")
            if weight:
                commands.append(f"set server {server} state ready")
    return commands
