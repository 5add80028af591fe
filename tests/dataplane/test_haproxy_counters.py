"""HAProxy is asked for the lines of servers only where something has happened."""

from collections.abc import Sequence

import pytest

from fairlead.dataplane import proxy
from fairlead.dataplane.haproxy.counters import StatReader
from fairlead.dataplane.haproxy.runtime import (
    SHOW_COUNTERS,
    SHOW_SERVERS,
    Row,
    add,
    ask_all,
    parse_counters,
)
from tests.dataplane.proxy_worlds import HaproxyWorld
from tests.dataplane.tables import opened

COLUMNS = (
    *("pxname", "svname", "qcur", "scur", "stot", "econ", "eresp", "wretr", "wredis", "iid"),
    *(f"hrsp_{kind}xx" for kind in "12345"),
)


class FakeStat:
    """Servers of backends; each answers by the lines that `show stat` would have."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}
        self.servers: dict[str, dict[str, dict[str, int]]] = {}
        self.asked: list[str] = []

    def put(self, place: str, server: str, **counters: int) -> None:
        self.numbers.setdefault(place, 100 + len(self.numbers))
        self.servers.setdefault(place, {})[server] = counters

    def backends(self) -> list[Row]:
        lines = []
        for place, servers in self.servers.items():
            rows = servers.values()
            sums = {name: sum(row.get(name, 0) for row in rows) for name in COLUMNS[2:]}
            lines.append(self._line(place, "BACKEND", sums))
        return parse_counters("\n".join([self._names(), *lines]))

    def __call__(self, commands: Sequence[str]) -> list[str]:
        self.asked += commands
        return [self._answer(command) for command in commands]

    def _answer(self, command: str) -> str:
        wanted = int(command.split()[2])
        lines = [
            self._line(place, server, counters)
            for place, servers in self.servers.items()
            if wanted in (-1, self.numbers[place])
            for server, counters in servers.items()
        ]
        return "\n".join([self._names(), *lines])

    def _names(self) -> str:
        return "# " + ",".join(COLUMNS) + ","

    def _line(self, place: str, server: str, counters: dict[str, int]) -> str:
        values = {**counters, "iid": self.numbers[place]}
        return ",".join([place, server, *(str(values.get(name, 0)) for name in COLUMNS[2:])]) + ","


def totals(rows: dict[str, list[Row]]) -> dict[str, int]:
    lines = [row for group in rows.values() for row in group]
    counted = add({group: proxy.GroupCount() for group in rows}, lines)
    return {group: count.admitted for group, count in counted.items()}


def test_servers_in_which_nothing_happens_are_not_asked_for() -> None:
    """A copy that counted nothing never is; one that did, once."""
    stat = FakeStat()
    stat.put("web_a", "b1", stot=3, hrsp_2xx=3)
    stat.put("web_a", "b2", stot=1, hrsp_2xx=1)
    stat.put("web_b", "b1")
    stat.put("api_a", "b1", stot=5, hrsp_2xx=5)
    reader = StatReader(stat)
    assert totals(reader.read(stat.backends())) == {"web": 4, "api": 5}
    assert sorted(stat.asked) == ["show stat 100 4 -1", "show stat 102 4 -1"]
    stat.asked.clear()
    assert reader.read(stat.backends()) == {}
    stat.put("web_b", "b1", stot=2, hrsp_2xx=2)
    assert totals(reader.read(stat.backends())) == {"web": 6}, "with the lines that were kept"
    assert stat.asked == ["show stat 101 4 -1"]


def test_while_something_is_inside_servers_are_asked_for() -> None:
    """The sums may stay the same while requests move from one server to another."""
    stat = FakeStat()
    stat.put("web_a", "b1", stot=3, scur=1)
    stat.put("web_a", "b2", stot=3)
    reader = StatReader(stat)
    reader.read(stat.backends())
    stat.put("web_a", "b1", stot=3)
    stat.put("web_a", "b2", stot=3, scur=1)
    (rows,) = reader.read(stat.backends()).values()
    assert {server: row["scur"] for _, server, row in rows} == {"b1": 0, "b2": 1}
    assert len(stat.asked) == 2


@pytest.mark.parametrize("inside", [0, 1])
def test_a_worker_that_counts_from_nothing_is_noticed(inside: int) -> None:
    """A backend without a request has no line; what was kept of it is of another worker."""
    stat = FakeStat()
    stat.put("web_a", "b1", stot=3, scur=inside)
    stat.put("web_soft", "none", stot=2)
    reader = StatReader(stat)
    reader.read(stat.backends())
    stat.put("web_a", "b1")
    assert totals(reader.read(stat.backends())) == {"web": 0}
    reader.begin()
    assert [server for _, server, _ in reader.read(stat.backends())["web"]] == ["BACKEND"]


def test_many_backends_are_asked_for_at_once() -> None:
    """Each answer begins with a line of names."""
    stat = FakeStat()
    for number in range(101):
        stat.put(f"g{number}_a", "b1", stot=number + 1)
    found = totals(StatReader(stat).read(stat.backends()))
    assert stat.asked == [SHOW_SERVERS]
    assert sum(found.values()) == sum(range(102))


@pytest.mark.component("haproxy")
def test_a_real_haproxy_shows_the_same_in_parts() -> None:
    """The lines of a backend's servers, by its number."""
    world = HaproxyWorld()
    try:
        group = opened(world)
        world.send(group, 20)
        path = world.folder / "haproxy.sock"
        (stat,) = ask_all(path, [SHOW_COUNTERS])
        whole = [row for row in parse_counters(stat) if row[0].startswith("web_")]
        backends = [row for row in whole if row[1] == "BACKEND"]
        rows = StatReader(lambda commands: ask_all(path, commands)).read(backends)["web"]
        assert sorted(rows, key=str) == [
            row for row in sorted(whole, key=str) if row[1] != "BACKEND"
        ]
    finally:
        world.close()
