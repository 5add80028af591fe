"""How a table is laid out in HAProxy: the map a worker begins with, and the commands of a flip."""

from collections.abc import Mapping

from fairlead.dataplane.haproxy import config, stats, words
from fairlead.dataplane.names import tame
from fairlead.dataplane.tables import Current, held_max


def first(tables: Mapping[str, Current], born_ms: int) -> str:
    """The map of words that a worker begins with."""
    lines = [f"{config.BORN} {born_ms}\n"]
    for name, each in sorted(tables.items()):
        lines.append(f"{tame(name)} {words.write(words.SIDES[0], each)}\n")
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


def room(table: Current, held: stats.Held, name: str, inside: int) -> dict[str, int]:
    """How much each server of either side may hold, as `backend/server`; 0: any number.

    A backend has a server on each side: what is still in the one leaves less for the other. The
    agent looks five times a second, and more can come at once than was inside at the last look: so
    half more than that, and at least three quarters of what may be inside, is reckoned with. Who is
    the only one is never full.
    """
    most, total = table.inside_max, sum(table.slots.values())
    found = {}
    for side in words.SIDES:
        other = held.get(f"{name}_{words.SIDES[side == words.SIDES[0]]}", {})
        for id, slots in sorted(table.slots.items()):
            server, limit = tame(id), 0
            if most is not None and 0 < slots < total:
                expected = (3 * min(most, max(inside, most // 2)) + 1) // 2
                limit = max(1, held_max(slots, total, expected) - other.get(server, 0))
            found[f"{name}_{side}/{server}"] = limit
    return found
