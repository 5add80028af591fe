"""One turn of the loop: record before apply, decreases before increases, faults leave limits."""

from typing import Any

import pytest

from fairlead.core.cpu import ContainerSighting, Counters, CpuConfig, Guardrails, PodSighting
from fairlead.engine.cpu import CpuGovernor, CpuLoop, GovernorState
from fairlead.ports.cpu import Gone
from fairlead.ports.faults import PermanentFault, TemporaryFault
from fairlead.ports.recorder import RecordEntry, RecordHead, Status

CONFIG = CpuConfig(
    node_millicores=1000, reserve=0.0, guardrails=Guardrails(cooldown_ms=0, grace_ms=0)
)


class World:
    """Two ports in one: pods with a want and a limit, and a diary of everything that happened."""

    def __init__(self, **wants: int) -> None:
        self.wants, self.limits = wants, dict.fromkeys(wants, 800)
        self.used = dict.fromkeys(wants, 0)
        self.diary: list[tuple[str, Any]] = []
        self.faults: dict[str, Exception] = {}
        self.decisions: set[int] = set()

    def sample(self, now_ms: int) -> list[PodSighting]:
        sightings = []
        for uid, want in self.wants.items():
            self.used[uid] += want * 1000
            counters = Counters(now_ms * 1000, self.used[uid], now_ms // 100, 0, 0)
            sightings.append(
                PodSighting(uid, 100, (ContainerSighting("", self.limits[uid], counters),))
            )
        return sightings

    def write(self, decision: int, uid: str, container: str, millicores: int) -> int:
        self.decisions.add(decision)
        if uid in self.faults:
            raise self.faults[uid]
        self.diary.append(("write", (uid, millicores)))
        self.limits[uid] = millicores
        return millicores

    def keep(self, state: GovernorState) -> None:
        self.diary.append(("keep", len(state.pods)))


class Diary:
    """A recorder that only remembers, or fails."""

    def __init__(self, world: World, left: list[RecordEntry] | None = None) -> None:
        self.world, self.left, self.fault = world, left or [], None

    fault: Exception | None

    def append(self, kind: str, *, version: int, time_ms: int, input: Any, output: Any) -> int:
        if self.fault:
            raise self.fault
        self.world.diary.append(("record", kind))
        return 7

    def begins_segment(self, kind: str) -> bool:
        return False

    def mark(self, seq: int, status: Status, *, time_ms: int, note: str = "") -> None:
        self.world.diary.append((status, seq))

    def unapplied(self) -> list[RecordEntry]:
        return self.left

    def head(self) -> RecordHead:
        return RecordHead(0, "")

    def close(self) -> None:
        """Nothing to give back."""


def turned(world: World, recorder: Diary | None = None, **options: Any) -> CpuLoop:
    loop = CpuLoop(
        CpuGovernor(CONFIG),
        sensor=world,
        actuator=options.pop("actuator", world),
        recorder=recorder or Diary(world),
        keep=world.keep,
        **options,
    )
    for second in range(5):
        loop.sample(second * 1000)
    return loop


def settled(world: World) -> CpuLoop:
    """A loop whose limits are ours and follow the wants."""
    loop = turned(world)
    for clear in range(1, 6):
        loop.clear(clear * 5000)
        for second in range(5):
            loop.sample(clear * 5000 + second * 1000 + 1)
    world.diary.clear()
    return loop


def verbs(world: World) -> list[str]:
    return [verb for verb, _ in world.diary]


def test_record_and_state_come_before_the_first_write() -> None:
    """Recorded, kept, written, marked applied, kept: in this order."""
    world = World(a=200, b=300)
    turn = turned(world).clear(5000)
    assert verbs(world) == ["record", "keep", "write", "write", "applied", "keep"]
    assert turn.sequence == 7
    assert world.decisions == {7}, "every write carries the id of its recorded decision"
    assert sum(world.limits.values()) <= 1000


def test_decreases_come_before_increases() -> None:
    """Once the limits are ours, whoever falls is written first."""
    world = World(a=100, b=390)
    loop = settled(world)
    world.wants.update(a=390, b=100)
    for second in range(30, 95):  # longer than a peak is held
        loop.sample(second * 1000)
    loop.clear(95_000)
    written = [what for verb, what in world.diary if verb == "write"]
    assert [uid for uid, _ in written] == ["b", "a"]


def test_a_failed_decrease_keeps_increases_waiting() -> None:
    """Room that was not freed is not handed out."""
    world = World(a=100, b=390)
    loop = settled(world)
    before = dict(world.limits)
    world.wants.update(a=390, b=100)
    world.faults["b"] = TemporaryFault("busy", retry_after_ms=1)
    for second in range(30, 95):
        loop.sample(second * 1000)
    turn = loop.clear(95_000)
    reasons = {failure.write.uid: failure.reason for failure in turn.failures}
    assert reasons == {"b": "busy", "a": "waits for a decrease that failed"}
    assert world.limits == before


def test_increases_never_pass_what_is_really_in_force() -> None:
    """A kernel that keeps more than it was told leaves no room, whatever the plan says."""
    world = World(a=100, b=390)
    loop = settled(world)
    stuck = {"a": 700, "b": 300}
    world.limits.update(stuck)
    world.wants.update(a=700, b=390)
    world.faults["a"] = PermanentFault("read-only")
    for second in range(30, 60):
        loop.sample(second * 1000)
    turn = loop.clear(60_000)
    assert sum(world.limits.values()) <= 1000
    assert turn.failures


def test_a_pod_that_is_gone_is_not_a_failure() -> None:
    """Its limit went with it."""
    world = World(a=100, b=390)
    world.faults["a"] = Gone("a")
    turn = turned(world).clear(5000)
    assert turn.failures == ()
    assert [change.uid for change in turn.written] == ["b"]


@pytest.mark.parametrize("where", ["record", "keep"])
def test_what_cannot_be_recorded_is_not_applied(where: str) -> None:
    """A full disk stops the writes and leaves the limits as they are."""
    world = World(a=100, b=390)
    recorder = Diary(world)
    fault = TemporaryFault("No space left on device", retry_after_ms=1)

    def full(_: GovernorState) -> None:
        raise fault

    loop = turned(world, recorder)
    if where == "record":
        recorder.fault = fault
    else:
        loop._keep = full
    with pytest.raises(TemporaryFault):
        loop.clear(5000)
    assert world.limits == {"a": 800, "b": 800}


def test_observing_records_and_writes_nothing() -> None:
    """The switch, and an agent without an actuator."""
    for options in ({"paused": lambda: True}, {"actuator": None}):
        world = World(a=100)
        turn = turned(world, **options).clear(5000)
        assert turn.observed_only
        assert verbs(world) == ["record", "keep", "voided"]


def test_a_start_voids_what_was_recorded_but_not_applied() -> None:
    """Never decided anew with new luck, never applied from an old snapshot."""
    world = World(a=100)
    left = RecordEntry(3, 0, "cpu.clear", 1, {}, {}, "")
    loop = turned(world, Diary(world, [left]))
    assert loop.heal(0) == 1
    assert world.diary[-1] == ("voided", 3)


def test_what_could_not_be_recorded_is_not_remembered() -> None:
    """After a full disk the next decision starts from the memory of the last recorded one."""
    world = World(a=200, b=300)
    recorder = Diary(world)
    loop = turned(world, recorder)
    recorder.fault = TemporaryFault("disk full", retry_after_ms=1)
    before = loop.governor.decide(5000)
    with pytest.raises(TemporaryFault):
        loop.clear(5000)
    assert loop.governor.decide(5000) == before
    recorder.fault = None
    loop.clear(5000)
    assert loop.governor.decide(5000) != before, "the test would see a change"


def test_a_pod_that_was_never_read_is_told_of() -> None:
    """It is not governed, and was ignored in silence: with cgroup v1 one that is in `cpu` alone."""

    class Half(World):
        def sample(self, now_ms: int) -> list[PodSighting]:
            half = PodSighting("half", 100, (ContainerSighting("", None, None),))
            return [*super().sample(now_ms), half, half._replace(uid="out", opted_out=True)]

    world = Half(web=300)
    turn = turned(world).clear(5000)
    assert turn.unread == ("half",)
    assert [pod.uid for pod in turn.snapshot.pods] == ["web"]
