"""HAProxy is asked for the lines of servers only where a decision needs them."""

from collections.abc import Sequence

import pytest

from fairlead.core.traffic.sighting import GroupSeen
from fairlead.dataplane import proxy
from fairlead.dataplane.haproxy.counters import StatReader
from fairlead.dataplane.haproxy.runtime import (
    SHOW_BACKENDS,
    SHOW_COUNTERS,
    SHOW_FRONTENDS,
    SHOW_SERVERS,
    Row,
    add,
    ask,
    ask_all,
    parse_counters,
)
from fairlead.ports.dataplane import Glancing
from tests.dataplane.proxy_worlds import HaproxyWorld
from tests.dataplane.tables import opened

COLUMNS = (
    *("pxname", "svname", "qcur", "scur", "stot", "econ", "eresp", "wretr", "wredis", "iid"),
    *("req_tot", *(f"hrsp_{kind}xx" for kind in "12345")),
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

    def frontends(self) -> list[Row]:
        """A group's sums; every request of a frontend went to one of its servers."""
        groups: dict[str, dict[str, int]] = {}
        for place in self.servers:
            sums = groups.setdefault(place.rpartition("_")[0], dict.fromkeys(COLUMNS[2:], 0))
            for name, count in self._sums(place).items():
                sums["req_tot" if name == "stot" else name] += count
        lines = [
            self._line(group, "FRONTEND", {**sums, "stot": sums["req_tot"]})
            for group, sums in groups.items()
        ]
        return parse_counters("\n".join([self._names(), *lines]))

    def read(self, reader: StatReader, calm: Sequence[str] = ()) -> tuple[dict[str, int], set[str]]:
        """By group: what was counted, or came since then; and which groups were read whole."""
        rows, more = reader.read(self.frontends(), calm)
        return totals(rows) | more, {*rows}

    def __call__(self, commands: Sequence[str]) -> list[str]:
        self.asked += commands
        return [self._answer(command) for command in commands]

    @property
    def servers_asked(self) -> list[str]:
        return [command for command in self.asked if command.endswith("4 -1")]

    def _answer(self, command: str) -> str:
        _, _, wanted, kind, _ = command.split()
        lines = []
        for place, servers in self.servers.items():
            if wanted not in ("-1", place, str(self.numbers[place])):
                continue
            if kind == "2":
                lines.append(self._line(place, "BACKEND", self._sums(place)))
            else:
                lines += [self._line(place, name, counts) for name, counts in servers.items()]
        return "\n".join([self._names(), *lines])

    def _sums(self, place: str) -> dict[str, int]:
        rows = self.servers[place].values()
        return {name: sum(row.get(name, 0) for row in rows) for name in COLUMNS[2:]}

    def _names(self) -> str:
        return "# " + ",".join(COLUMNS) + ","

    def _line(self, place: str, server: str, counters: dict[str, int]) -> str:
        values = {**counters, "iid": self.numbers.get(place, 0)}
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
    assert stat.read(reader) == ({"web": 4, "api": 5}, {"web", "api"})
    assert sorted(stat.servers_asked) == ["show stat 100 4 -1", "show stat 102 4 -1"]
    stat.asked.clear()
    assert stat.read(reader) == ({}, set())
    assert stat.asked == []
    stat.put("web_b", "b1", stot=2, hrsp_2xx=2)
    assert stat.read(reader) == ({"web": 6}, {"web"}), "with the lines that were kept"
    assert stat.servers_asked == ["show stat 101 4 -1"]


def test_while_something_is_inside_servers_are_asked_for() -> None:
    """The sums may stay the same while requests move from one server to another."""
    stat = FakeStat()
    stat.put("web_a", "b1", stot=3, scur=1)
    stat.put("web_a", "b2", stot=3)
    reader = StatReader(stat)
    stat.read(reader)
    stat.put("web_a", "b1", stot=3)
    stat.put("web_a", "b2", stot=3, scur=1)
    (rows,) = reader.read(stat.frontends(), ())[0].values()
    assert {server: row["scur"] for _, server, row in rows} == {"b1": 0, "b2": 1}
    assert len(stat.servers_asked) == 2


def test_a_calm_group_is_counted_by_its_frontend() -> None:
    """It rests, no request failed, and one backend cannot hold many: their number is enough."""
    stat = FakeStat()
    stat.put("web_a", "b1", stot=3, hrsp_2xx=2, scur=1)
    reader = StatReader(stat)
    stat.read(reader)
    stat.asked.clear()
    stat.put("web_a", "b1", stot=8, hrsp_2xx=5, scur=3)
    assert stat.read(reader, ["web"]) == ({"web": 5}, set())
    assert stat.asked == []
    assert totals(reader.closely(["web"])) == {"web": 8}
    stat.put("web_a", "b1", stot=9, hrsp_2xx=9)
    assert stat.read(reader, ["web"]) == ({"web": 1}, set()), "since the lines were read"


@pytest.mark.parametrize("before", [True, False])
def test_a_group_in_which_one_backend_may_hold_many_is_read_whole(before: bool) -> None:
    """How long requests stay in a backend is judged from four on."""
    stat = FakeStat()
    stat.put("web_a", "b1", stot=9, scur=4 if before else 3)
    reader = StatReader(stat)
    stat.read(reader)
    stat.put("web_a", "b1", stot=10, scur=3 if before else 4)
    assert stat.read(reader, ["web"]) == ({"web": 10}, {"web"})


@pytest.mark.parametrize("inside", [0, 1])
def test_a_worker_that_counts_from_nothing_is_noticed(inside: int) -> None:
    """A backend without a request has no line; what was kept of it is of another worker."""
    stat = FakeStat()
    stat.put("web_a", "b1", stot=3, scur=inside)
    stat.put("web_soft", "none", stot=2)
    reader = StatReader(stat)
    stat.read(reader)
    stat.put("web_a", "b1")
    assert stat.read(reader, ["web"]) == ({"web": 0}, {"web"})
    stat.put("web_soft", "none")
    assert stat.read(reader, ["web"]) == ({"web": 0}, {"web"}), "its frontend has no line either"


def test_many_backends_are_asked_for_at_once() -> None:
    """Each answer begins with a line of names."""
    stat = FakeStat()
    for number in range(101):
        stat.put(f"g{number}_a", "b1", stot=number + 1)
    found, _ = stat.read(StatReader(stat))
    assert stat.asked == [SHOW_BACKENDS, SHOW_SERVERS]
    assert sum(found.values()) == sum(range(102))


@pytest.mark.component("haproxy")
def test_a_real_haproxy_shows_the_same_in_parts() -> None:
    """The lines of a group's servers, by the names and numbers of its backends."""
    world = HaproxyWorld()
    try:
        group = opened(world)
        world.send(group, 20)
        path = world.folder / "haproxy.sock"
        frontends, stat = (
            parse_counters(answer) for answer in ask_all(path, [SHOW_FRONTENDS, SHOW_COUNTERS])
        )
        whole = [row for row in stat if row[0].startswith("web_") and row[1] != "BACKEND"]
        rows, _ = StatReader(lambda commands: ask_all(path, commands)).read(frontends, ())
        assert sorted(rows["web"], key=str) == sorted(whole, key=str)
    finally:
        world.close()


@pytest.mark.component("haproxy")
def test_a_glance_at_a_real_haproxy() -> None:
    """A group that rests is counted whole; its backends are as at the last look, until the agent
    looks closer, or a request fails."""
    world = HaproxyWorld()
    try:
        group = opened(world)
        plane = world.plane
        assert isinstance(plane, Glancing)

        def sums(seen: GroupSeen) -> tuple[int, int]:
            return seen.admitted, sum(backend.admitted or 0 for backend in seen.backends.values())

        def done(count: int) -> bool:
            rows = parse_counters(ask(world.folder / "haproxy.sock", SHOW_FRONTENDS))
            return [(row["hrsp_2xx"], row["scur"]) for _, _, row in rows] == [(count, 0)]

        world.send(group, 20)
        world.until(lambda: done(20), "all are answered")
        plane.glance([])
        world.send(group, 5)
        world.until(lambda: done(25), "all are answered")
        assert sums(plane.glance(["web"])["web"]) == (25, 20)
        assert sums(plane.glance(["web"])["web"]) == (25, 20), "nor are they counted twice"
        assert sums(plane.look_closer(["web"])["web"]) == (25, 25)
        assert plane.look_closer([]) == {}
        assert sums(plane.glance(["web"])["web"]) == (25, 25)
        assert plane.look_closer(["web"]) == {}, "it was read whole already"
        assert sums(plane.read()["web"]) == (25, 25)
    finally:
        world.close()
