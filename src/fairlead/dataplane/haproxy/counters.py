"""What servers have counted, asked of HAProxy only where something has happened since then.

HAProxy writes a line of ninety columns for every server of every copy of every group: 1 750 of them
for 50 groups of ten backends, in every tick, most of it for servers in which nothing happened. The
line of a backend sums up its servers. Where it is the same as before, and nothing was inside, so
are theirs.
"""

from collections.abc import Callable, Sequence

from fairlead.dataplane import proxy
from fairlead.dataplane.haproxy.runtime import SHOW_SERVERS, Row, parse_counters

_APART_MAX = 100
"""Beyond so many backends one answer with all servers is shorter: each has a line of names."""


class StatReader:
    """Keeps the lines of servers; `begin` forgets those of a worker that has gone."""

    def __init__(self, ask_all: Callable[[Sequence[str]], Sequence[str]]) -> None:
        self._ask_all = ask_all
        self._rows: dict[str, dict[str, list[Row]]] = {}  # by group and backend
        self._still: dict[str, dict[str, int]] = {}
        """What a backend had counted when its lines were read, if nothing was inside."""

    def begin(self) -> None:
        self._rows, self._still = {}, {}

    def read(self, backends: Sequence[Row]) -> dict[str, list[Row]]:
        """All lines of the groups in which something happened, by group, given the lines of all
        backends."""
        moved = [row for row in backends if self._still.get(row[0]) != row[2]]
        servers = self._servers([row for row in moved if row[0].rpartition("_")[2] in proxy.COPIES])
        groups = {place.rpartition("_")[0] for place, _, _ in moved} | self._forget(backends)
        for row in moved:
            place, _, counters = row
            lines = servers.get(place, [row])
            self._rows.setdefault(place.rpartition("_")[0], {})[place] = lines
            self._still[place] = counters
            if any(line["scur"] or line["qcur"] for _, _, line in (row, *lines)):
                del self._still[place]
        rows = {group: self._rows.get(group, {}).values() for group in groups}
        return {group: [row for part in parts for row in part] for group, parts in rows.items()}

    def _forget(self, backends: Sequence[Row]) -> set[str]:
        """Backends that count from nothing again: another worker serves. Their groups."""
        known = {place for parts in self._rows.values() for place in parts}
        gone = known - {place for place, _, _ in backends}
        for place in gone:
            self._still.pop(place, None)
            del self._rows[place.rpartition("_")[0]][place]
        return {place.rpartition("_")[0] for place in gone}

    def _servers(self, backends: Sequence[Row]) -> dict[str, list[Row]]:
        """The lines of their servers, by backend."""
        commands = [f"show stat {row['iid']} 4 -1" for _, _, row in backends]
        if len(commands) > _APART_MAX:
            commands = [SHOW_SERVERS]
        servers: dict[str, list[Row]] = {place: [] for place, _, _ in backends}
        for answer in self._ask_all(commands) if commands else ():
            for row in parse_counters(answer):
                servers.setdefault(row[0], []).append(row)
        return servers
