"""The traffic loop on the memory plane: see, decide, record, beat, apply, mark."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from fairlead.core.invariant import InvariantBroken
from fairlead.core.traffic import Config, Resource, StallTotals
from fairlead.core.traffic.limits import Concurrency
from fairlead.core.traffic.sighting import GroupSeen, Liveness, Look, NodeReading, Reading
from fairlead.dataplane.memory import MemoryDataplane
from fairlead.engine.traffic import (
    ANCHOR_EVERY_MS,
    KIND,
    Group,
    GroupGovernor,
    GroupRound,
    GroupRules,
    Ports,
    TrafficLoop,
)
from fairlead.ports.dataplane import Backend, Proto, RouteGroup, Table
from fairlead.ports.faults import Fault, PermanentFault, TemporaryFault
from fairlead.ports.recorder import RecordHead
from fairlead.recorder import FileRecorder, read, replay, verify
from fairlead.schema.replay import Replayer, Verdict
from tests.engine.traffic_worlds import Eyes, Machines, MemoryRecorder, TrafficWorld

HEALTHY = {"a": 128, "b": 128}


def slots(world: TrafficWorld) -> dict[str, int]:
    assert world.governor.state is not None
    return {memory.id: memory.slots for memory in world.governor.state.backends}


def test_a_slow_backend_loses_its_flow_and_the_record_replays(tmp_path: Path) -> None:
    """Two backends, one turns slow by 10: at most 5 % of the slots within 8 s, byte for byte."""
    with FileRecorder(tmp_path, sync_each=False) as recorder:
        world = TrafficWorld(recorder=recorder)
        world.ticks(2)
        assert slots(world) == HEALTHY
        world.backends["b"].latency_ms = 200
        rounds = world.ticks(8)
        assert rounds[-1].groups["web"].plan.slots["b"] <= 256 * 0.05
        assert recorder.unapplied() == []
    replayed = list(replay(read(tmp_path)))
    assert [each.kind for each in replayed] == ["traffic.configure"] + ["traffic.govern"] * 50
    assert {each.verdict for each in replayed} == {"same"}


def test_the_record_is_compressed(tmp_path: Path) -> None:
    """A steady tick, its mark included, takes less than half of its own documents."""
    with FileRecorder(tmp_path, segment_bytes=20_000, sync_each=False) as recorder:
        world = TrafficWorld(names=("a", "b", "c", "d"), recorder=recorder)
        world.ticks(10)
        entries = list(read(tmp_path))
        whole = sum(len(str(dict(entry.input))) + len(str(dict(entry.output))) for entry in entries)
        stored = sum(path.stat().st_size for path in tmp_path.glob("segment-*"))
    assert stored < whole / 2


def test_recorded_before_applied_and_beaten_between() -> None:
    """The plane hears of nothing that is not in the record."""
    diary: list[str] = []
    world = TrafficWorld(recorder=Diary(diary))
    assert diary == ["append", "mark applied"], "the slots that it begins with"
    diary.clear()
    plane = world.loop.plane
    for name in ("heartbeat", "apply"):
        watched(plane, name, diary)
    world.tick()
    assert diary == ["append", "heartbeat", "apply", "mark applied"]


def test_nothing_is_flipped_where_nothing_changed() -> None:
    """A steady group keeps its table; heartbeats go on."""
    world = TrafficWorld()
    rounds = world.ticks(2)
    assert [r.groups["web"].flipped for r in rounds] == [True] + [False] * 9
    assert world.plane.read()["web"].liveness == Liveness.NORMAL


def test_a_steady_group_is_not_flipped_for_what_is_learnt_of_it() -> None:
    """With its own budget and reference too: a handful of flips in a minute of the same load."""
    world = TrafficWorld()
    world.governor.rules = replace(world.governor.rules, own_budget=True, own_reference=True)
    rounds = world.ticks(60)
    assert sum(r.groups["web"].flipped for r in rounds) <= 5


def test_an_open_door_that_refuses_says_why() -> None:
    """As many are inside as may be: `full`, while it lasts, and never beside `steady`."""
    world = TrafficWorld()
    world.ticks(2)
    last = world.loop._tables["web"]
    limits = replace(last.limits, concurrency=Concurrency(1))
    world.plane.apply(replace(last, epoch=10**6, limits=limits), decision=None)
    kept = world.plane.route("web").backend
    assert kept is not None
    world.plane.route("web")
    assert world.tick().groups["web"].reasons == ("full",)
    world.plane.done("web", kept, latency_ms=1.0, ok=True)
    assert "full" not in world.tick().groups["web"].reasons


def test_without_a_record_no_flip_and_no_heartbeat() -> None:
    """A full disk stops the heartbeat: the plane falls back by itself, no door stays closed."""
    world = TrafficWorld(recorder=MemoryRecorder())
    world.recorder = Diary([], TemporaryFault("full", retry_after_ms=1))
    rounds = world.ticks(16)
    assert all("not recorded" in r.groups["web"].fault for r in rounds)
    assert not any(r.groups["web"].flipped for r in rounds)
    assert world.plane.read()["web"].liveness == Liveness.FALLBACK
    assert rounds[-1].groups["web"].reasons[0] == "failsafe"


def two_groups(
    record: Callable[[str], Any], eyes: Eyes, clock: list[int]
) -> tuple[MemoryDataplane, TrafficLoop]:
    """`api` and `web` on one plane, each with a recorder of its own."""
    plane = MemoryDataplane(lambda: clock[0])
    groups = [
        Group(
            RouteGroup(name, "127.0.0.1", port, Proto.TCP, (Backend("a", "127.0.0.1", port + 1),)),
            GroupGovernor(name, GroupRules()),
        )
        for name, port in (("api", 8000), ("web", 9000))
    ]
    loop = TrafficLoop(plane, groups, Ports(record, eyes, Machines(eyes), eyes))
    loop.start(clock[0])
    return plane, loop


def test_no_loop_without_a_recorder() -> None:
    """A plane is not touched by what is recorded nowhere."""
    with pytest.raises(InvariantBroken, match="comes with a recorder"):
        two_groups(lambda _: None, Eyes(), [1_000_000])


def test_one_group_without_a_record_stops_the_heartbeat_of_all() -> None:
    """Its admission must not stay as it is for good; the others get tables until the plane holds,
    and all are well again with the first tick that records every group."""
    clock, broken = [1_000_000], Diary([], TemporaryFault("full", retry_after_ms=1))
    recorders: dict[str, Any] = {"api": MemoryRecorder(), "web": MemoryRecorder()}
    plane, loop = two_groups(recorders.__getitem__, Eyes(), clock)
    recorders["api"] = broken
    plane.heartbeat()
    first = loop.tick(clock[0])
    assert first.groups["web"].flipped
    assert loop.beat_ms is None
    for _ in range(80):
        clock[0] += 200
        loop.tick(clock[0])
    assert plane.read()["api"].liveness is Liveness.FALLBACK
    recorders["api"] = MemoryRecorder()
    clock[0] += 200
    healed = loop.tick(clock[0])
    assert [group.fault for group in healed.groups.values()] == ["", ""]
    assert plane.read()["api"].liveness is Liveness.NORMAL


def test_a_decision_that_was_not_recorded_probes_no_backend() -> None:
    """A probe is an act too; it goes out with the first decision that is recorded."""
    world = TrafficWorld(answer_probes=False)
    world.ticks(1)
    world.backends["b"].reachable = False
    while not world.governor.isolated:
        world.tick()
    world.eyes.asked.clear()
    recorder, world.recorder = world.recorder, Diary([], TemporaryFault("full", retry_after_ms=1))
    world.ticks(2)
    assert world.eyes.asked == []
    world.recorder = recorder
    world.ticks(2)
    assert set(world.eyes.asked) == {("web", "b")}


def test_a_table_that_was_not_applied_leaves_the_slots_where_they_were() -> None:
    """Faults of the plane do not let the slots run away: the next step starts from what is."""
    world = TrafficWorld()
    world.ticks(2)
    world.backends["b"].latency_ms = 60
    world.ticks(2)
    before = slots(world)
    apply = world.plane.apply

    def refuse(table: Table, *, decision: int | None) -> None:
        raise TemporaryFault("busy", retry_after_ms=1)

    world.plane.apply = refuse  # type: ignore[method-assign]
    rounds = world.ticks(2)
    assert all("busy" in r.groups["web"].fault for r in rounds)
    assert slots(world) == before
    world.plane.apply = apply  # type: ignore[method-assign]
    step = world.tick().groups["web"].plan.slots
    assert max(abs(step[name] - before[name]) for name in step) <= 4


def test_a_plane_that_cannot_be_read_is_blindness_not_idleness() -> None:
    """Slots freeze, the door is careful, the reason says so; afterwards all is well again."""
    world = TrafficWorld(config=Config(t_recover_min_ms=1_000))
    world.ticks(2)
    read_plane = world.plane.read

    def broken() -> Any:
        raise TemporaryFault("gone", retry_after_ms=1)

    world.plane.read = broken  # type: ignore[method-assign]
    made = world.tick()
    assert made.groups["web"].reasons == ("signal_missing.queue", "signal_missing.both")
    assert made.groups["web"].plan.admission.mode == "soft"
    assert made.faults == ("plane: gone",)
    world.plane.read = read_plane  # type: ignore[method-assign]
    world.ticks(3)
    assert world.tick().groups["web"].plan.admission.mode == "normal"


def test_another_schema_version_is_refused_before_the_first_flip() -> None:
    """An agent never writes into maps that it does not know."""
    world = TrafficWorld()
    world.plane.schema_version = lambda: 7  # type: ignore[method-assign]
    with pytest.raises(PermanentFault, match=r"schema version 7.*remove the dataplane"):
        world.make_loop(GroupGovernor("web", GroupRules()))


def test_failsafe_is_told_when_the_heartbeat_was_stale() -> None:
    """An agent that slept for 20 s finds out, says so, and goes on."""
    world = TrafficWorld()
    world.ticks(1)
    made = world.tick(elapsed_ms=20_000)
    assert made.groups["web"].reasons[0] == "failsafe"
    assert [(t.what, t.before, t.after) for t in made.transitions] == [
        ("failsafe", "normal", "fallback")
    ]
    after = world.tick()
    assert "failsafe" not in after.groups["web"].reasons
    assert [(t.what, t.after) for t in after.transitions] == [("failsafe", "normal")]


def test_transitions_name_their_tick(tmp_path: Path) -> None:
    """Mode, isolation and return, each with reasons and the place in the record."""
    with FileRecorder(tmp_path, sync_each=False) as recorder:
        world = TrafficWorld(recorder=recorder)
        world.ticks(2)
        world.backends["b"].reachable = False
        world.ticks(2)
        world.backends["b"].reachable = True
        world.ticks(12)
    told = [(t.what, t.backend, t.before, t.after) for t in world.eyes.told]
    assert told == [
        ("isolation", "b", None, "connect-failures"),
        ("isolation", "b", "connect-failures", None),
    ]
    hashes = {entry.hash for entry in read(tmp_path)}
    assert all(t.record is not None and t.record.hash in hashes for t in world.eyes.told)
    assert all(t.reasons for t in world.eyes.told)


def test_anchors_come_at_least_every_10_s_and_fit_the_record(tmp_path: Path) -> None:
    """Every anchored head is in the chain."""
    with FileRecorder(tmp_path, sync_each=False) as recorder:
        world = TrafficWorld(recorder=recorder)
        world.ticks(31)
    times = [at for at, _ in world.eyes.anchors]
    assert len(times) >= 4
    assert max(b - a for a, b in pairwise(times)) <= ANCHOR_EVERY_MS
    heads = [heads["web"] for _, heads in world.eyes.anchors]
    assert verify(tmp_path, anchors=heads).anchors_met == len(heads)


def test_without_an_event_log_the_record_is_synced_all_the_same() -> None:
    """A power loss costs the ticks of 10 s at most, whether or not there is a ledger."""
    world, times = TrafficWorld(), list[int]()
    world.loop.ports = replace(world.loop.ports, events=None)
    world.recorder.sync = lambda: times.append(world.now_ms)
    world.ticks(31)
    assert len(times) >= 4
    assert max(b - a for a, b in pairwise(times)) <= ANCHOR_EVERY_MS


def test_what_was_recorded_and_never_applied_is_voided_at_the_start(tmp_path: Path) -> None:
    """A crash between record and apply leaves a mark, not a surprise."""
    with FileRecorder(tmp_path, sync_each=False) as recorder:
        world = TrafficWorld(recorder=recorder)
        world.tick()
        entry = next(iter(read(tmp_path)))
        recorder.append(
            "traffic.tick", version=1, time_ms=1, input=dict(entry.input), output=dict(entry.output)
        )
        world.make_loop(GroupGovernor("web", GroupRules()))
        assert recorder.unapplied() == []


def test_drain_waits_for_the_table_and_is_asked_once() -> None:
    """Kept connections are asked to end when nothing new can come, and not every tick."""
    world = TrafficWorld()
    drained: list[tuple[str, str]] = []
    world.plane.drain = lambda group, backend, *, decision: drained.append((group, backend))  # type: ignore[method-assign]
    world.ticks(1)
    world.orders["web"] = {"b": "drain"}
    made = world.tick()
    assert made.groups["web"].plan.slots == {"a": 256, "b": 0}
    world.ticks(2)
    assert drained == [("web", "b")]
    world.orders.clear()
    world.ticks(4)
    world.orders["web"] = {"b": "drain"}
    world.ticks(1)
    assert drained == [("web", "b")] * 2


def test_a_drain_is_in_the_decision_that_it_cites() -> None:
    """The record tells a drain from an isolation, in what was seen and in what was decided."""
    world = TrafficWorld()
    cited: list[int | None] = []
    world.plane.drain = lambda group, backend, *, decision: cited.append(decision)  # type: ignore[method-assign]
    world.ticks(1)
    world.orders["web"] = {"a": "isolate", "b": "drain"}
    world.tick()
    (decision,) = cited
    assert decision is not None
    entry = world.recorder.appended[decision - 1]
    assert entry["input"]["sighting"]["commands"] == {"a": "isolate", "b": "drain"}
    assert entry["output"]["drains"] == ["b"]


def test_the_operator_isolates_at_once_and_probes_bring_it_back() -> None:
    """Isolation bypasses the slew; the way back is probes, then warm-up."""
    world = TrafficWorld()
    world.ticks(1)
    world.orders["web"] = {"b": "isolate"}
    made = world.tick().groups["web"]
    assert made.plan.slots == {"a": 256, "b": 0}
    assert world.governor.isolated == {"b": "operator"}
    world.ticks(5)
    assert world.eyes.asked == []
    world.orders.clear()
    rounds = world.ticks(4)
    assert not world.governor.isolated
    assert rounds[-1].groups["web"].snapshot.backends[1].age_ms is not None


def test_a_node_that_stalls_shuts_the_door() -> None:
    """7 of 10 samples above the threshold; the counters are differenced, not averaged."""
    world = TrafficWorld()
    stalled = 0
    modes = []
    for _ in range(20):
        stalled += 100_000  # half of every tick
        totals = StallTotals(world.now_ms * 1000, {"cpu_some": stalled})
        world.eyes.machines = [NodeReading("n1", totals)]
        modes.append(world.tick().groups["web"].plan.admission.mode.value)
    assert modes[-1] == "hard"
    assert "psi_stall" in world.loop.tick(world.now_ms + 200).groups["web"].reasons


def test_the_windows_of_a_node_are_in_the_record(tmp_path: Path) -> None:
    """Raw counters are recorded; the next agent knows the stalls of the last seconds at once."""
    with FileRecorder(tmp_path, sync_each=False) as recorder:
        world = TrafficWorld(recorder=recorder)

        def stall() -> GroupRound:
            totals = StallTotals(world.now_ms * 1000, {"cpu_some": world.now_ms * 100})
            world.eyes.machines = [NodeReading("n1", totals)]
            return world.tick().groups["web"]

        for _ in range(5):
            before = stall()
        fresh = GroupGovernor("web", GroupRules())
        fresh.resume(recorder.tail(KIND), applied=True)
        world.loop = world.make_loop(fresh)
        after = stall()
    assert before.snapshot.nodes[0].psi is not None
    assert after.snapshot.nodes[0].psi == before.snapshot.nodes[0].psi
    (node,) = list(read(tmp_path))[-1].input["sighting"]["nodes"]
    assert node["totals"]["stalled_us"] == {"cpu_some": (world.now_ms - 200) * 100}
    assert {entry.verdict for entry in replay(read(tmp_path))} == {"same"}


def test_nodes_that_cannot_be_read_for_a_tick_keep_their_windows() -> None:
    """For that tick the stalls are unknown; afterwards they are again those of the last seconds."""
    world = TrafficWorld()
    machines = world.loop.ports.nodes
    assert machines is not None
    for _ in range(3):
        totals = StallTotals(world.now_ms * 1000, {"cpu_some": world.now_ms * 100})
        world.eyes.machines = [NodeReading("n1", totals)]
        world.tick()
    real = machines.read

    def broken(now_ms: int) -> Any:
        raise TemporaryFault("gone", retry_after_ms=1)

    machines.read = broken  # type: ignore[method-assign]
    made = world.tick()
    assert made.faults == ("nodes: gone",)
    assert made.groups["web"].snapshot.nodes == ()
    machines.read = real  # type: ignore[method-assign]
    (node,) = world.tick().groups["web"].snapshot.nodes
    assert node.psi is not None
    assert node.psi.cpu_some == pytest.approx(0.1)


def test_memory_that_runs_out_shuts_the_door_before_it_has() -> None:
    """A ramp of 100 MB/s with 3 GB left: less than 120 s, then less than 20 s."""
    world = TrafficWorld()
    seen = []
    for number in range(200):
        used = 5e9 + number * 20e6
        world.eyes.machines = [NodeReading("n1", None, (Resource("memory", 9e9, used),))]
        seen.append(world.tick().groups["web"])
    modes = [made.plan.admission.mode.value for made in seen]
    assert modes[0] == "normal"
    assert modes.index("soft") < modes.index("hard")
    assert seen[-1].plan.ttf_s is not None


def test_retries_are_an_index_of_successes() -> None:
    """Retries per success, from what applications count."""
    world = TrafficWorld()
    world.eyes.covered = ("retries",)

    def retry(per_tick: int) -> GroupRound:
        for _ in range(30):
            for name in world.names:
                total = world.eyes.readings.get(("web", name), Reading(retries=0)).retries or 0
                world.eyes.readings["web", name] = Reading(retries=total + per_tick)
            made = world.tick().groups["web"]
        return made

    calm = retry(per_tick=6)
    assert calm.snapshot.retry_index == pytest.approx(0.3)
    assert calm.plan.admission.mode == "normal"
    storm = retry(per_tick=12)
    assert storm.plan.admission.mode == "soft"
    assert "retry_storm" in storm.reasons


def test_what_is_scraped_is_not_taken_from_the_plane() -> None:
    """An application that fell silent is missing, not idle."""
    world = TrafficWorld()
    world.eyes.covered = ("p95_ms",)
    world.eyes.readings = {("web", "a"): Reading(p95_ms=30.0)}
    made = world.tick().groups["web"]
    seen = {backend.id: backend.p95_ms for backend in made.snapshot.backends}
    assert seen == {"a": 30.0, "b": None}
    assert "signal_missing.latency" in made.reasons


@pytest.mark.parametrize("rubbish", [float("nan"), float("inf"), -1.0])
def test_rubbish_of_a_sensor_is_a_missing_signal(rubbish: float) -> None:
    """The tick is not refused, and nothing is believed."""
    world = TrafficWorld()
    world.eyes.covered = ("p95_ms", "queue")
    world.eyes.readings = {
        ("web", name): Reading(p95_ms=rubbish, queue=rubbish) for name in world.names
    }
    made = world.tick().groups["web"]
    assert [b.p95_ms for b in made.snapshot.backends] == [None, None]
    assert [b.queue for b in made.snapshot.backends] == [None, None]


def test_counters_below_zero_are_missing() -> None:
    """A plane that says so knows nothing."""
    world = TrafficWorld()
    world.ticks(1)
    read_plane = world.plane.read

    def lying() -> dict[str, GroupSeen]:
        seen = read_plane()["web"]
        lies = {
            id: replace(b, successes=-5, errors=-1, queue=-3, connect_failures=-1)
            for id, b in seen.backends.items()
        }
        return {"web": replace(seen, backends=lies)}

    world.plane.read = lying  # type: ignore[assignment,method-assign]
    made = world.tick().groups["web"]
    assert [b.error_rate for b in made.snapshot.backends] == [None, None]
    assert [b.queue for b in made.snapshot.backends] == [None, None]


def test_counters_that_begin_again_are_a_new_process() -> None:
    """A restarted plane counts from zero; no rate becomes negative or huge."""
    world = TrafficWorld()
    world.ticks(5)
    world.plane.remove()
    world.plane.configure([group.route for group in world.loop.groups.values()])
    for made in world.ticks(2):
        for backend in made.groups["web"].snapshot.backends:
            assert backend.requests is not None
            assert 0 <= backend.requests <= 600


@pytest.mark.parametrize("jump_ms", [-3_600_000, 3_600_000])
def test_clock_jumps_change_no_slot_and_raise_nothing(jump_ms: int) -> None:
    """An hour back is no time; an hour forth is one long tick."""
    world = TrafficWorld()
    world.ticks(5)
    before = slots(world)
    world.serve()
    world.now_ms += jump_ms
    world.loop.tick(world.now_ms)
    for made in world.ticks(3):
        assert made.groups["web"].plan.slots == before
        assert made.groups["web"].fault == ""


def test_backends_come_and_go() -> None:
    """A newcomer warms up, a leaver's slots go to those who stay; the sum never changes."""
    world = TrafficWorld()
    world.ticks(2)
    for name in ("c", "d"):
        world.backends[name] = type(world.backends["a"])()
    world.loop.reconfigure([world.group(world.governor)], world.now_ms)
    rounds = world.ticks(40)
    assert all(sum(r.groups["web"].plan.slots.values()) == 256 for r in rounds)
    assert rounds[0].groups["web"].plan.slots["c"] == 0
    assert all(
        abs(each - 64) <= 256 * 0.02 for each in rounds[-1].groups["web"].plan.slots.values()
    )
    del world.backends["a"]
    world.loop.reconfigure([world.group(world.governor)], world.now_ms)
    made = world.tick().groups["web"]
    assert sum(made.plan.slots.values()) == 256
    assert "a" not in made.plan.slots


def test_the_same_world_decides_the_same() -> None:
    """No clock, no chance, no order of dictionaries in the loop."""

    def play() -> list[Any]:
        world = TrafficWorld(names=("a", "b", "c"))
        world.backends["c"].latency_ms = 90
        return [made.groups["web"].plan for made in world.ticks(6)]

    assert play() == play()


def test_a_group_begins_with_slots_that_are_recorded_before_they_are_in_force(
    tmp_path: Path,
) -> None:
    """Also when backends come and go: the dataplane shows the number of that decision."""
    with FileRecorder(tmp_path, sync_each=False) as recorder:
        world = TrafficWorld(names=("a", "b"), recorder=recorder)
        before = world.plane.read()["web"]
        (first,) = read(tmp_path)
        assert (before.epoch, before.decision) == (0, first.seq)
        assert first.input == {"group": "web", "backends": ["a", "b"], "slots": {}, "isolated": []}
        assert first.output == {"slots": HEALTHY, "fallback": ["a", "b"]}
        world.ticks(1)
        world.backends["c"] = world.backends.pop("b")
        seen: list[int] = []
        configure = world.plane.configure

        def watching(groups: Any) -> None:
            (route,) = groups
            entry = list(read(tmp_path))[-1]
            assert (entry.kind, entry.seq) == ("traffic.configure", route.decision)
            assert entry.input["slots"] == HEALTHY
            assert entry.output["slots"] == dict(route.split.slots) == {"a": 128, "c": 0}
            seen.append(entry.seq)
            configure(groups)

        world.plane.configure = watching  # type: ignore[method-assign] - a spy on the real one
        world.loop.reconfigure([world.group(world.governor)], world.now_ms)
        assert [world.plane.read()["web"].decision] == seen
        assert recorder.unapplied() == []
    assert {each.verdict for each in replay(read(tmp_path))} == {"same"}


def test_what_cannot_be_recorded_is_not_configured() -> None:
    """The groups and their slots stay as they were."""
    world = TrafficWorld()
    world.ticks(1)
    world.recorder = Diary([], TemporaryFault("full", retry_after_ms=1))
    del world.backends["b"]
    with pytest.raises(TemporaryFault, match="full"):
        world.loop.reconfigure([world.group(world.governor)], world.now_ms)
    assert world.plane.read()["web"].backends.keys() == {"a", "b"}
    assert len(world.loop.groups["web"].route.backends) == 2


def test_a_configuration_that_the_dataplane_refuses_is_voided() -> None:
    """The record says that nothing came of it."""
    diary: list[str] = []
    world = TrafficWorld()
    world.recorder = Diary(diary)

    def refuse(groups: Any) -> None:
        raise PermanentFault("no room")

    world.plane.configure = refuse  # type: ignore[method-assign] - a dataplane that refuses
    with pytest.raises(PermanentFault, match="no room"):
        world.loop.reconfigure([world.group(world.governor)], world.now_ms)
    assert diary == ["append", "mark voided"]


class Diary:
    """A recorder that only remembers what it was asked, or fails."""

    def __init__(self, diary: list[str], fault: Exception | None = None) -> None:
        self._diary, self._fault = diary, fault

    def append(self, kind: str, **_: Any) -> int:
        if self._fault is not None:
            raise self._fault
        self._diary.append("append")
        return 1

    def mark(self, seq: int, status: str, **_: Any) -> None:
        self._diary.append(f"mark {status}")

    def unapplied(self) -> list[Any]:
        return []

    def head(self) -> Any:
        return RecordHead(1, "00")

    def begins_segment(self, kind: str) -> bool:
        return False

    def sync(self) -> None:
        """Nothing is put off."""


def watched(plane: Any, name: str, diary: list[str]) -> None:
    """Have the plane's calls written into a diary."""
    real = getattr(plane, name)

    def call(*arguments: Any, **named: Any) -> Any:
        diary.append(name)
        return real(*arguments, **named)

    setattr(plane, name, call)


def test_an_early_tick_records_which_reports_brought_it_forward() -> None:
    """The looks are in the sighting, and core's rule over them is part of the recorded decision."""
    world = TrafficWorld()
    failing = tuple(Look(world.now_ms + i * 100, 10, 4 * i) for i in range(3))
    fine = tuple(Look(world.now_ms + i * 100, 10 * i, 0) for i in range(3))
    world.eyes.readings = {("web", "a"): Reading(looks=failing), ("web", "b"): Reading(looks=fine)}
    world.loop.tick(world.now_ms)
    world.loop.tick(world.now_ms + 50, early=True)
    due, early = [row for row in world.recorder.appended if row["kind"] == "traffic.govern"]
    assert (due["input"]["sighting"]["early"], due["output"]["urgent"]) == (False, [])
    assert (early["input"]["sighting"]["early"], early["output"]["urgent"]) == (True, ["a"])
    replayer = Replayer()
    for number, row in enumerate((due, early)):
        answer = replayer.run(number, row["kind"], row["version"], row["input"], row["output"])
        assert answer.verdict is Verdict.SAME


def test_calm_groups_are_decided_on_once_a_second() -> None:
    """The heartbeat goes on, the last decision is still shown, and an error ends the wait in the
    tick in which it is seen."""
    world = TrafficWorld(paced=True)
    calm = world.ticks(10)
    decided = [bool(round.groups) for round in calm[25:]]
    assert decided.count(True) == 5
    assert all(set(round.latest) == {"web"} for round in calm)
    assert world.loop.beat_ms == world.now_ms
    assert world.eyes.told == []
    while world.tick().groups:
        pass
    world.backends["b"].error_every = 2
    assert world.tick().groups["web"].snapshot.backends[1].error_rate


class GlancingPlane(MemoryDataplane):
    """Backends of groups that rest are as they were at the last closer look."""

    def __init__(self, clock_ms: Callable[[], int]) -> None:
        super().__init__(clock_ms)
        self.last: dict[str, GroupSeen] = {}
        self.glanced: list[set[str]] = []
        self.closer: list[set[str]] = []
        self.fault: Fault | None = None

    def glance(self, resting: Collection[str]) -> Mapping[str, GroupSeen]:
        self.glanced.append({*resting})
        now = self.read()
        for name, seen in now.items():
            if name in resting and name in self.last:
                now = {**now, name: replace(seen, backends=self.last[name].backends)}
        self.last = {**now}
        return now

    def look_closer(self, groups: Collection[str]) -> Mapping[str, GroupSeen]:
        summed = {name for name in groups if name in self.glanced[-1]}
        self.closer.append(summed)
        if self.fault is not None:
            raise self.fault
        found = {name: seen for name, seen in self.read().items() if name in summed}
        self.last |= found
        return found


def glancing_world() -> tuple[TrafficWorld, GlancingPlane]:
    world = TrafficWorld(paced=True)
    world.plane = plane = GlancingPlane(lambda: world.now_ms)
    world.loop = world.make_loop(world.governor)
    return world, plane


def test_single_backends_are_read_where_a_group_is_decided_on() -> None:
    """A plane that is asked for no more than it takes leads to the same record."""
    whole, (world, plane) = TrafficWorld(paced=True), glancing_world()
    whole.plane = MemoryDataplane(lambda: whole.now_ms)
    whole.loop = whole.make_loop(whole.governor)
    for _ in range(60):
        whole.tick()
        made = world.tick()
        assert made.groups.keys() == plane.closer[-1] | (made.groups.keys() - plane.glanced[-1])
    assert sum(map(len, plane.closer)) >= 5
    assert {"web"} in plane.glanced
    assert world.recorder.appended == whole.recorder.appended
    assert any(row["input"]["waited"] for row in world.recorder.appended[5:])


def test_a_group_that_cannot_be_looked_at_closer_was_not_seen() -> None:
    """It is not decided on by what its backends had counted some time ago."""
    world, plane = glancing_world()
    world.ticks(10)
    plane.fault = TemporaryFault("it ended")
    while not (made := world.tick()).groups:
        pass
    assert made.groups["web"].seen is None
    assert made.faults == ("plane: it ended",)


def calm_record() -> list[dict[str, Any]]:
    """The decisions of ten calm seconds and of an error."""
    world = TrafficWorld(paced=True)
    world.ticks(10)
    world.backends["b"].error_every = 2
    world.ticks(1)
    return [row for row in world.recorder.appended if row["kind"] == "traffic.govern"]


def verdicts_of(rows: list[dict[str, Any]]) -> list[tuple[Verdict, str]]:
    replayer = Replayer()
    answers = [
        replayer.run(number, row["kind"], row["version"], row["input"], row["output"])
        for number, row in enumerate(rows)
    ]
    return [(answer.verdict, answer.detail) for answer in answers]


def test_a_record_shows_that_ticks_without_a_decision_were_right() -> None:
    """Each decision says whether the next ticks may wait, each entry what they saw."""
    rows = calm_record()
    waited = [row["input"]["waited"] for row in rows]
    assert {verdict for verdict, _ in verdicts_of(rows)} == {Verdict.SAME}
    assert sum(wait["looks"] for wait in waited if wait) + len(rows) == 55
    for before, wait in zip(rows, waited[1:], strict=False):
        assert wait is None or (before["output"]["rests"] and wait["failures"] == 0)


def test_a_counter_that_falls_back_does_not_prolong_a_wait() -> None:
    """Many requests within a second, then fewer in all: each look alone allowed the wait, and both
    together, which are recorded, do not."""
    world = TrafficWorld(paced=True)
    world.ticks(10)
    while not world.tick().groups:
        pass
    world.tick()
    world.per_tick = 0
    world.plane._groups["web"].counts.admitted -= 40
    world.ticks(7)
    rows = [row for row in world.recorder.appended if row["kind"] == "traffic.govern"]
    assert {verdict for verdict, _ in verdicts_of(rows)} == {Verdict.SAME}


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"failures": 1}, "ends the wait"),
        ({"since_ms": 5_000}, "ends the wait"),
        ({"stay_ms": 900}, "ends the wait"),
    ],
)
def test_a_wait_that_was_wrong_is_found(change: dict[str, Any], problem: str) -> None:
    """By what was seen in it."""
    rows = calm_record()
    index = max(number for number, row in enumerate(rows) if row["input"]["waited"])
    rows[index]["input"]["waited"] |= change
    verdict, detail = verdicts_of(rows)[index]
    assert (verdict, problem in detail) == (Verdict.DIFFERENT, True)


def test_a_wait_after_a_decision_that_leaves_something_open_is_found() -> None:
    """Or after one that is not in force."""
    rows = calm_record()
    rows[-1]["input"]["waited"] = next(filter(None, (row["input"]["waited"] for row in rows)))
    assert "does not rest" in verdicts_of(rows)[-1][1]
    rows[-1]["input"]["applied"] = False
    assert "not in force" in verdicts_of(rows)[-1][1]


def test_without_a_pace_every_tick_decides() -> None:
    """As the harness in virtual time does."""
    assert all(round.groups for round in TrafficWorld().ticks(3))
