"""What servers have counted, asked of HAProxy only where a decision needs it.

HAProxy writes a line of ninety columns for every server of every copy of every group: 1 750 of them
for 50 groups of ten backends, in every tick, most of it for servers in which nothing happened. A
group has one frontend, whose line counts all of its requests. Where it is the same as before, and
nothing was inside, so are the lines of backends and servers. Where requests came and went well, a
group that rests needs no more than their number.
"""

from collections.abc import Callable, Collection, Mapping, Sequence

from fairlead.core.traffic.counters import HELD_MIN
from fairlead.dataplane import proxy
from fairlead.dataplane.haproxy.runtime import SHOW_BACKENDS, SHOW_SERVERS, Row, parse_counters

_PARTS = (*proxy.COPIES, *proxy.REFUSED_STATUS)
_GROUPS_MAX, _APART_MAX = 10, 100
"""Beyond so many groups, or backends, one answer with all is shorter: each has a line of names."""
_NEWS = ("req_tot", *(f"hrsp_{kind}xx" for kind in "12345"))
"""Of a frontend: what no request leaves as it was. Connections that rest come and go."""
Rows = dict[str, list[Row]]
"""Lines of servers, and of backends without any, by group."""


class StatReader:
    """Keeps the lines of servers; `begin` forgets those of a worker that has gone."""

    def __init__(self, ask_all: Callable[[Sequence[str]], Sequence[str]]) -> None:
        self._ask_all = ask_all
        self.begin()

    def begin(self) -> None:
        self._rows: dict[str, dict[str, list[Row]]] = {}  # by group and backend
        self._still: dict[str, dict[str, int]] = {}
        """What a backend had counted when its lines were read, if nothing was inside."""
        self._fronts: dict[str, dict[str, int]] = {}
        """What each group's frontend had counted when the lines of its servers were read."""
        self._now: dict[str, dict[str, int]] = {}
        """And at the last look."""

    def read(self, frontends: Sequence[Row], calm: Collection[str]) -> tuple[Rows, dict[str, int]]:
        """All lines of the groups in which something happened, given the lines of all frontends; of
        those in `calm`, which rest and of which no request is known to have failed, as far as one
        backend may hold many. Of the others how many requests came since their lines were read.
        """
        self._now = {name: counters for name, _, counters in frontends}
        close, more = [], {}
        for group in sorted(self._now.keys() | self._fronts.keys()):
            line, was = self._now.get(group), self._fronts.get(group)
            if line is None or was is None:
                close.append(group)
            elif any(line[name] != was[name] for name in _NEWS) or not self._rests(group):
                since, inside = line["req_tot"] - was["req_tot"], max(line["scur"], was["scur"])
                if group in calm and since >= 0 and inside < HELD_MIN:
                    more[group] = since
                else:
                    close.append(group)
        return self.closely(close), more

    def _rests(self, group: str) -> bool:
        """Whether nothing was inside when its lines were read."""
        return all(place in self._still for place in self._rows.get(group, ()))

    def closely(self, groups: Collection[str]) -> Rows:
        """All lines of these groups, as their frontends were at the last look or later."""
        backends = [row for row in self._backends(groups) if _group(row[0]) in groups]
        moved = [row for row in backends if self._still.get(row[0]) != row[2]]
        servers = self._servers([row for row in moved if row[0].rpartition("_")[2] in proxy.COPIES])
        self._forget(groups, {place for place, _, _ in backends})
        for row in moved:
            place, _, counters = row
            lines = servers.get(place, [row])
            self._rows.setdefault(_group(place), {})[place] = lines
            self._still[place] = counters
            if any(line["scur"] or line["qcur"] for _, _, line in (row, *lines)):
                del self._still[place]
        for group in groups:
            if group in self._now:
                self._fronts[group] = self._now[group]
        kept: Mapping[str, Mapping[str, list[Row]]] = self._rows
        return {g: [row for rows in kept.get(g, {}).values() for row in rows] for g in groups}

    def _backends(self, groups: Collection[str]) -> list[Row]:
        if len(groups) > _GROUPS_MAX:
            commands = [SHOW_BACKENDS]
        else:
            commands = [f"show stat {group}_{part} 2 -1" for group in groups for part in _PARTS]
        answers = self._ask_all(commands) if commands else ()
        return [row for answer in answers for row in parse_counters(answer)]

    def _forget(self, groups: Collection[str], known: Collection[str]) -> None:
        """Backends that count from nothing again: another worker serves."""
        for group in groups:
            for place in self._rows.get(group, {}).keys() - known:
                self._still.pop(place, None)
                del self._rows[group][place]
            if group not in self._now:
                self._fronts.pop(group, None)

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


def _group(place: str) -> str:
    return place.rpartition("_")[0]
