"""Installing, taking over, changing and removing: nothing is lost, nothing is left."""

import ctypes
from importlib import import_module
from pathlib import Path

import pytest

from fairlead.core.traffic.state import AdmissionMode
from fairlead.dataplane.ebpf import EbpfDataplane, uninstall
from fairlead.dataplane.ebpf.installation import AGENT, HOOKS, MAPS
from fairlead.dataplane.ebpf.kernel import BpfMap, facts, pinned
from fairlead.ports.dataplane import SCHEMA_VERSION
from fairlead.ports.faults import PermanentFault
from tests.dataplane.ebpf.places import Place, Talker, group, grow_old, limited, own_cgroup
from tests.dataplane.tables import table

pytestmark = pytest.mark.component("ebpf")
VIP = "127.99.0.1"
building = import_module("fairlead.dataplane.ebpf.toolchain")  # the package shows the function


def names(folder: Path) -> set[str]:
    return {each.name for each in folder.iterdir()}


def test_the_sources_compile_without_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(building, "_OPTIONS", (*building._OPTIONS, "-Werror"))
    assert building.build(tmp_path / "x.o").stat().st_size > 10_000
    assert names(tmp_path) == {"x.o"}


def test_the_verifier_takes_every_program(place: Place, plane: EbpfDataplane) -> None:
    """All hooks are loaded, attached to the cgroup, and pinned with every map."""
    expected = {f"map_{name}" for name in MAPS} | {f"prog_{name}" for name in (*HOOKS, AGENT)}
    assert names(place.pins / "live") == expected | {f"link_{name}" for name in HOOKS}
    assert names(place.pins) == {"live"}
    attached = set()
    for name in HOOKS:
        told = facts(pinned(place.pins / "live" / f"link_{name}"))
        attached.add(told["attach_type"])
        assert int(told["cgroup_id"]) == place.cgroup.stat().st_ino
    assert len(attached) == len(HOOKS)


def test_remove_leaves_nothing(place: Place, client: Talker) -> None:
    """No pin, no folder, no hook: at once, not some time later."""
    plane = place.plane()
    plane.configure([group("web", VIP, 80, {"b0": place.ports[0]})])
    assert client.do("tcp", host=VIP, port=80) == ["0"]
    plane.remove()
    assert not place.pins.exists()
    assert client.do("tcp", host=VIP, port=80) == ["ECONNREFUSED"]  # nobody listens there
    with pytest.raises(PermanentFault, match="is closed"):
        plane.read()


def test_a_plane_can_be_removed_without_being_opened(place: Place, client: Talker) -> None:
    plane = place.plane()
    plane.configure([group("web", VIP, 80, {"b0": place.ports[0]})])
    with pytest.raises(PermanentFault, match="another agent has this dataplane open"):
        uninstall(place.pins)
    plane.detach()
    uninstall(place.pins)
    assert not place.pins.exists()
    uninstall(place.pins)


def test_only_one_agent_at_a_time(place: Place, plane: EbpfDataplane) -> None:
    with pytest.raises(PermanentFault, match="another agent has this dataplane open"):
        place.plane()
    plane.read()


def test_detach_changes_nothing(place: Place, client: Talker) -> None:
    plane = place.plane()
    plane.configure([group("web", VIP, 80, {"b0": place.ports[0], "b1": place.ports[1]})])
    plane.apply(table("web", 9, {"b0": 3, "b1": 1}), decision=1)
    plane.detach()
    assert client.do("tcp", host=VIP, port=80, count=8).count("0") == 6


def test_taking_over_finds_what_was_there(place: Place, client: Talker) -> None:
    """Tables, epochs, counters and buckets; the door stays as it was when the backends change."""
    to = {"b0": place.ports[0], "b1": place.ports[1]}
    first = place.plane()
    first.configure([group("web", VIP, 80, to), group("old", VIP, 81, to)])
    first.apply(table("web", 9, {"b0": 3, "b1": 1}, limited(AdmissionMode.SOFT, 0, 30)), decision=1)
    client.do("tcp", host=VIP, port=80, count=8)
    before = first.read()
    first.detach()

    second = place.plane()
    assert second.read() == before
    second.configure([group("web", VIP, 80, {"b0": place.ports[0], "b2": place.ports[2]})])
    assert client.do("tcp", host=VIP, port=81) == ["ECONNREFUSED"]
    assert client.do("tcp", host=VIP, port=80, count=30) == ["0"] * 22 + ["EAGAIN"] * 8
    seen = second.read()
    assert seen.keys() == {"web"}
    assert (seen["web"].epoch, seen["web"].mode, seen["web"].admitted) == (
        9,
        AdmissionMode.SOFT,
        30,
    )
    assert seen["web"].backends.keys() == {"b0", "b2"}
    assert seen["web"].backends["b0"].admitted == 28
    second.detach()


def test_another_schema_is_told_and_touched_by_remove_only(place: Place) -> None:
    plane = place.plane()
    plane.configure([group("web", VIP, 80, {"b0": place.ports[0]})])
    plane.detach()
    schema = BpfMap("schema", pinned(place.pins / "live/map_schema"), ctypes.c_uint32)
    schema[0] = ctypes.c_uint32(SCHEMA_VERSION + 1)
    newer = place.plane()
    assert newer.schema_version() == SCHEMA_VERSION + 1
    for call in (newer.read, newer.heartbeat, lambda: newer.configure([])):
        with pytest.raises(PermanentFault, match=f"its schema version is not {SCHEMA_VERSION}"):
            call()
    newer.remove()
    assert not place.pins.exists()


def test_maps_of_another_size_are_not_taken(place: Place, plane: EbpfDataplane) -> None:
    """The kernel's sizes are compared with ours, whatever the version says."""
    with pytest.raises(PermanentFault, match=r"map groups: keys and values of \(4, 168\) bytes"):
        BpfMap("groups", pinned(place.pins / "live/map_groups"), ctypes.c_uint64)


def test_a_half_made_installation_is_made_anew(place: Place, client: Talker) -> None:
    """A crash while installing leaves `new`, which the next agent replaces."""
    place.plane().detach()
    (place.pins / "live").rename(place.pins / "new")
    plane = place.plane()
    assert names(place.pins) == {"live"}
    plane.configure([group("web", VIP, 80, {"b0": place.ports[0]})])
    assert client.do("tcp", host=VIP, port=80) == ["0"]
    plane.detach()


def test_a_cgroup_that_was_made_again_is_attached_again(place: Place) -> None:
    """Its tables are still there; only the links were dead."""
    with own_cgroup() as cgroup:
        plane = EbpfDataplane(cgroup, place.pins)
        plane.configure([group("web", VIP, 80, {"b0": place.ports[0]})])
        plane.apply(table("web", 5, {"b0": 1}), decision=1)
        plane.detach()
    plane = place.plane()
    assert plane.read()["web"].epoch == 5
    client = place.client()
    assert client.do("tcp", host=VIP, port=80) == ["0"]
    client.kill()
    plane.detach()


def test_a_bad_object_leaves_nothing(place: Place, tmp_path: Path) -> None:
    rubbish = tmp_path / "rubbish.o"
    rubbish.write_bytes(b"\x7fELF no more than that")
    with pytest.raises(PermanentFault, match=r"rubbish\.o"):
        place.plane(program=rubbish)
    assert not place.pins.exists()


def test_backends_come_and_go(place: Place, plane: EbpfDataplane, client: Talker) -> None:
    """Who stays keeps its place and counters, who leaves gets nothing from that instant on, a
    newcomer waits for its table, and an address that changed is another place."""
    ports = place.ports
    plane.configure([group("web", VIP, 80, {"b0": ports[0], "b1": ports[1]})])
    plane.apply(table("web", 1, {"b0": 2, "b1": 2}), decision=1)
    client.do("tcp", host=VIP, port=80, count=8)
    plane.configure([group("web", VIP, 80, {"b1": ports[1], "b2": ports[2]})])
    assert set(client.do("tcp", host=VIP, port=80, count=8)) == {"1"}
    seen = plane.read()["web"]
    assert (seen.epoch, seen.admitted) == (1, 16)
    assert {id: each.admitted for id, each in seen.backends.items()} == {"b1": 12, "b2": 0}
    plane.configure([group("web", VIP, 80, {"b1": ports[3], "b2": ports[2]})])
    assert set(client.do("tcp", host=VIP, port=80, count=4)) == {"3"}
    assert plane.read()["web"].backends["b1"].admitted == 4
    plane.apply(table("web", 2, {"b1": 0, "b2": 1}), decision=1)
    assert set(client.do("tcp", host=VIP, port=80, count=4)) == {"2"}
    plane.configure([group("web", VIP, 80, {"b4": ports[4]})])  # everybody with slots is gone
    assert set(client.do("tcp", host=VIP, port=80, count=4)) == {"4"}


def test_backends_change_even_in_fallback(
    place: Place, plane: EbpfDataplane, client: Talker
) -> None:
    """A new agent that finds an old heartbeat must be able to take a dead backend out."""
    plane.configure([group("web", VIP, 80, {"b0": place.ports[0], "b1": place.ports[1]})])
    grow_old(plane, 60)
    plane.configure([group("web", VIP, 80, {"b1": place.ports[1]})])
    grow_old(plane, 60)
    assert set(client.do("tcp", host=VIP, port=80, count=8)) == {"1"}


def test_a_group_may_move(place: Place, plane: EbpfDataplane, client: Talker) -> None:
    """Another address under the same name: the table and the counters stay."""
    to = {"b0": place.ports[0], "b1": place.ports[1]}
    plane.configure([group("web", VIP, 80, to)])
    plane.apply(table("web", 4, {"b0": 1, "b1": 0}), decision=1)
    client.do("tcp", host=VIP, port=80, count=3)
    plane.configure([group("web", "127.99.0.7", 8080, to)])
    assert client.do("tcp", host=VIP, port=80) == ["ECONNREFUSED"]
    assert client.do("tcp", host="127.99.0.7", port=8080, count=2) == ["0", "0"]
    assert (plane.read()["web"].epoch, plane.read()["web"].admitted) == (4, 5)


def test_a_place_is_clean_for_the_next_one(
    place: Place, plane: EbpfDataplane, client: Talker
) -> None:
    """Index, counters, bucket and table of a group that left are nobody's heirloom."""
    plane.configure([group("a", VIP, 80, {"b0": place.ports[0]})])
    plane.apply(table("a", 7, {"b0": 1}, limited(AdmissionMode.HARD, 0, 1)), decision=1)
    client.do("tcp", host=VIP, port=80, count=3)
    plane.configure([])
    assert plane.read() == {}
    plane.configure([group("b", VIP, 80, {"b1": place.ports[1]})])
    seen = plane.read()["b"]
    assert (seen.epoch, seen.mode, seen.admitted, seen.refused_hard) == (
        0,
        AdmissionMode.NORMAL,
        0,
        0,
    )
    assert client.do("tcp", host=VIP, port=80, count=5) == ["1"] * 5
    plane.apply(table("b", 1, {"b1": 1}, limited(AdmissionMode.SOFT, 0, 4)), decision=1)
    assert client.do("tcp", host=VIP, port=80, count=5) == ["1"] * 4 + ["EAGAIN"]


def test_what_does_not_fit_is_refused_before_anything_changes(place: Place, client: Talker) -> None:
    plane = place.plane(capacity={"groups": 2, "backends": 3, "replies": 16})
    to = {"b0": place.ports[0], "b1": place.ports[1]}
    plane.configure([group("a", VIP, 80, to)])
    with pytest.raises(PermanentFault, match=r"groups: 3 places are needed, .* with 2"):
        plane.configure([group(name, VIP, 80 + at, {}) for at, name in enumerate("abc")])
    with pytest.raises(PermanentFault, match=r"backends: 4 places are needed, .* with 3"):
        plane.configure([group("a", VIP, 80, to), group("b", VIP, 81, to)])
    new = {"b2": place.ports[2], "b3": place.ports[3]}
    with pytest.raises(PermanentFault, match="backends: 4 places"):  # two join before two leave
        plane.configure([group("a", VIP, 80, new)])
    assert set(client.do("tcp", host=VIP, port=80, count=4)) == {"0", "1"}
    assert plane.read().keys() == {"a"}
    plane.configure([group("b", VIP, 80, new)])  # another group: all of a's places are free first
    assert set(client.do("tcp", host=VIP, port=80, count=4)) == {"2", "3"}
    plane.detach()


def test_an_agent_killed_while_it_changed_backends_leaves_no_stray_places(
    place: Place, client: Talker
) -> None:
    """As if it had died between placing a newcomer and the flip, and between a flip and the
    clearing: the next agent frees what nothing leads to."""
    plane = place.plane()
    plane.configure([group("web", VIP, 80, {"b0": place.ports[0]})])
    maps, registry = plane._open()
    index = registry.placed["web"].index
    entry = maps.backends[registry.placed["web"].at["b0"]]
    for at, owner, name in ((50, index + 1, b"b0"), (51, 200, b"b9")):
        stray = type(entry).from_buffer_copy(entry)
        stray.group, stray.name = owner, name
        maps.backends[at] = stray
    plane.detach()
    after = place.plane()
    assert after.read()["web"].backends.keys() == {"b0"}
    maps, _ = after._open()
    assert [maps.backends[at].group for at in (50, 51)] == [0, 0]
    assert client.do("tcp", host=VIP, port=80) == ["0"]
    after.detach()
