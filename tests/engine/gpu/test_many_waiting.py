"""Where thousands wait: what a turn looks at, what it records, and what stays the same."""

import gc
import tracemalloc
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from fairlead.core import gpu
from fairlead.core.canonical import canonical
from fairlead.engine.gpu import Config, backfill, checkpoint, recall, waiting
from fairlead.engine.gpu.admission import RESAID_MAX, RunAdmission
from fairlead.engine.gpu.entries import QueueDecision, encode
from fairlead.engine.gpu.orders import order_decision
from fairlead.engine.gpu.projection import Projection
from fairlead.engine.gpu.state import Phase
from fairlead.engine.gpu.waiting import WaitingRows
from fairlead.ledger.replay import replay
from fairlead.ports.ledger import Blob
from fairlead.schema.gpu import STYLE
from fairlead.schema.objects import after_of
from fairlead.schema.replay import Verdict
from tests.engine.gpu.resolving import CHANCE, reservation, reserve, world_of
from tests.engine.gpu.test_races import Interrupted
from tests.engine.gpu.worlds import (
    ADMIN,
    LENIENT,
    START,
    Clocks,
    World,
    budget,
    envelope,
    node,
    run,
)


def entries(world: World, kind: str, after: int = 0) -> list[Any]:
    found = [entry for entry in world.log if entry.kind == kind and entry.seq > after]
    assert {replay(world.ledger, entry).verdict for entry in found} <= {Verdict.SAME}
    return found


def resize(world: World, gpus: int) -> None:
    world.apply(budget("a", "a", envelope(concurrency=gpus)))


def test_of_many_refusals_that_changed_a_few_are_recorded_in_a_turn() -> None:
    """Each one has its whole input: where all of them were, they were most of the ledger."""
    world = world_of(devices=64, gpus=4, teams="a")
    names = [f"r{i:02d}" for i in range(RESAID_MAX + 15)]
    world.apply(*(run(name, gpus=8) for name in names))
    world.turn()
    assert len(entries(world, "gpu.fund")) == len(names), "each one is refused once"
    resize(world, 6)
    before = world.projection.seq
    world.turn()
    told = [entry.body["run"] for entry in entries(world, "gpu.fund", before)]
    assert told == names[:RESAID_MAX], "the first ones of the queue"
    world.turn()
    told += [entry.body["run"] for entry in entries(world, "gpu.fund", before)][RESAID_MAX:]
    assert told == names, "the others follow"
    resize(world, 400)
    world.turn()
    assert Counter(state.phase for state in world.projection.runs.values())[Phase.RUNNING] == 8


def test_another_code_is_recorded_at_once() -> None:
    world = world_of(devices=64, gpus=4, teams="a")
    world.apply(*(run(f"r{i:02d}", gpus=8, duration="2h") for i in range(RESAID_MAX + 15)))
    world.turn()
    world.apply(budget("a", "a", envelope(concurrency=8, maxGPUHours=1)))
    before = world.projection.seq
    world.turn()
    found = entries(world, "gpu.fund", before)
    assert {entry.body["output"]["refusal"]["code"] for entry in found} == {"IntegralCapExceeded"}
    assert len(found) == RESAID_MAX + 15


def test_runs_that_are_alike_have_the_same_record() -> None:
    """What is decided once for all of them is written as it would be for each."""
    world = world_of(devices=8, gpus=4, teams="a")
    world.apply(*(run(f"r{i}", gpus=8) for i in range(3)))
    world.turn()
    first, *others = entries(world, "gpu.fund")
    for other in others:
        assert other.body["input"] == first.body["input"]
        assert other.body["output"] == first.body["output"]
        assert other.input_digest == first.input_digest
    assert {entry.body["run"] for entry in (first, *others)} == {"r0", "r1", "r2"}


def _inputs(kind: str) -> list[tuple[Any, str]]:
    world = world_of(devices=8, gpus=64)
    world.apply(run("first", owner="a", gpus=4, duration="2h"))
    world.turn()
    world.apply(run("wide", owner="b", gpus=6, duration="1h"))
    world.apply(*(run(f"short{i}", owner="c", duration="1h", priority=i) for i in range(3)))
    world.turn(0.1)
    return [(entry.body["input"], entry.input_digest) for entry in entries(world, kind)]


@pytest.mark.parametrize("kind", ["gpu.queue", "gpu.backfill"])
def test_what_is_written_once_is_recorded_as_if_written_anew(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = _inputs(kind)
    monkeypatch.setattr(backfill, "_written", STYLE.from_core)
    monkeypatch.setattr(
        WaitingRows,
        "decision",
        lambda _, queue, waiting: order_decision(QueueDecision, queue, waiting, waiting.now_ms),
    )
    assert kept
    assert kept == _inputs(kind)


@pytest.mark.parametrize("runs", [0, 1, 2, 3, 9])
def test_an_order_is_written_in_parts_as_if_at_once(
    runs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With all that a run has of its own: its times, a promise, a reservation, a priority."""
    monkeypatch.setattr(waiting, "ROWS_AT_ONCE", 2)
    world = world_of(devices=8, gpus=64, teams="ab", resolver="off")
    places = ({}, {"zone": 'a"\\é'})
    for number in range(runs):
        of = {"gpus": 1 + number % 2, "location": places[number % 2], "priority": number % 3}
        made = run(f"r{number}", owner="ab"[number % 2], **of)
        (reserve(world, made) if number == 8 else world.apply(made))
        world.now_ms += 1 + 500 * number
    rows = WaitingRows(world.projection)
    found = list(rows.look())
    assert (len(found), runs == 9) == (runs, any(each.reservation for each in found))
    for place, own in ((1, {"waiting_since_ms": START + 7}), (2, {"promised_ms": START + 9})):
        if place < runs:
            found[place] = replace(found[place], **own)
    asked = gpu.Waiting(START, tuple(found), policy=gpu.QueuePolicy())
    order = gpu.queue(asked)
    made, plain = rows.decision(order, asked), order_decision(QueueDecision, order, asked, START)
    assert isinstance(made.input, Blob)
    assert made.input.document() == canonical(plain.input)
    assert canonical(made.body.document()) == canonical(plain.body.document())
    assert encode(made) == encode(replace(made, input=plain.input))


def _taken(count: int) -> tuple[int, int]:
    """Bytes by which memory grows with so many waiting runs, and with an order of them that is
    just being recorded."""
    world = world_of(devices=8, gpus=64, teams="a")
    world.apply(run("first", gpus=8, duration="9h", command=["x"]))
    world.turn()
    gc.collect()
    tracemalloc.start()
    try:
        for number in range(count):
            made = run(f"team-a.waits-{number:04}", gpus=8, duration="1h", command=["x"])
            made["metadata"]["labels"] = {"uid": f"{number:036}", "template": "0" * 64}
            world.apply(made)
        world.turn()
        world.turn(1 / 3600)
        gc.collect()
        kept = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        world.executor.end("first", world.now_ms)
        world.turn(1 / 3600)
        recording = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(world.projection.orders[QueueDecision.ENTRY]) == count
    return kept, recording


def test_a_run_that_waits_takes_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside what the interpreter takes, it is most of what the control plane of a large cluster
    takes; a waiting run took 2.4 KB, and 2.6 KB while an order was recorded. The parts in which an
    order is written are small against it, as they are against one of thousands."""
    monkeypatch.setattr(waiting, "ROWS_AT_ONCE", 10)
    few, many = _taken(100), _taken(300)
    kept, recording = ((more - less) / 200 for less, more in zip(few, many, strict=True))
    assert kept < 1_800, kept
    assert recording < 1_700, recording


def test_alike_runs_are_asked_once_whether_a_recall_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    world = world_of(devices=16, teams="d")
    own = envelope(concurrency=4, sharing="family")
    world.apply(budget("a", "a", own, parents=["lab"]))
    world.apply(budget("b", "b", envelope(concurrency=1, flavor="L4"), parents=["lab"]))
    world.apply(run("guest", "b", 4))
    world.turn()
    world.apply(*(run(f"r{i}", "a", 8) for i in range(10)), run("other", "a", 9))
    asked: list[str] = []
    real = recall.recalled

    def counted(projection: Any, name: str, now_ms: int) -> Any:
        asked.append(name)
        return real(projection, name, now_ms)

    monkeypatch.setattr(recall, "recalled", counted)
    monkeypatch.setattr(recall, "rank_order", None)
    world.turn()
    assert asked == ["r0", "other"], "and they are not ordered where it helps none"


def _indexed(projection: Projection) -> tuple[set[str], set[str], set[str]]:
    runs = {name: run for name, run in projection.runs.items() if not run.phase.ended}
    running = {name for name, run in runs.items() if run.phase is Phase.RUNNING}
    following = {name for name in runs if after_of(projection.run_spec(name))}
    return set(runs), running, following


def test_what_runs_and_what_follows_others_is_known_without_a_search() -> None:
    world = world_of(devices=4, gpus=4)
    after = [{"run": "one"}]
    world.apply(run("one", gpus=2, duration="1h"), run("two", gpus=4, duration="1h"))
    world.apply(run("six", after=after, duration="1h"))
    world.turn()
    world.apply(run("three", gpus=1, duration="1h"))
    for hours in (0, 0.5, 1, 2, 2):
        world.turn(hours)
        for known in (world.projection, checkpoint.restore(checkpoint.export(world.projection))):
            found = (set(known.live), set(known.running), known.following)
            assert found == _indexed(known)
    assert world.projection.following == set(), "what ended is forgotten"


def standing(monkeypatch: pytest.MonkeyPatch, *, more_than: int = 1) -> None:
    """An order of more than so many runs stands for six minutes, as that of thousands does for
    seconds."""
    monkeypatch.setattr(
        gpu, "order_stands", lambda *, runs, age_ms: runs > more_than and 0 <= age_ms < 360_000
    )


def started(world: World) -> list[str]:
    return [
        name
        for name, state in sorted(world.projection.runs.items())
        if state.phase is Phase.RUNNING
    ]


def test_by_an_order_that_stands_the_next_run_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """No order is recorded again, and who came since then waits for the next one."""
    standing(monkeypatch)
    world = world_of(devices=2, gpus=64, teams="a")
    world.apply(*(run(f"r{i}", gpus=1, duration="1m") for i in range(6)))
    world.turn()
    assert started(world) == ["r0", "r1"]
    world.apply(run("urgent", gpus=1, priority=9))
    before = world.projection.seq
    world.turn(1 / 60)
    assert started(world) == ["r2", "r3"]
    assert entries(world, "gpu.queue", before) == []
    world.turn(0.2)
    assert started(world) == ["r4", "urgent"], "the next order has it"
    assert len(entries(world, "gpu.queue", before)) == 1


def test_where_the_next_one_does_not_start_it_stands_for_all_that_are_alike(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fairlead.engine.gpu.admission.SAID_MAX", 3)
    standing(monkeypatch)
    world = world_of(devices=64, gpus=4, teams="a")
    world.apply(run("narrow", gpus=1), *(run(f"r{i}", gpus=8) for i in range(6)))
    told = []
    for _ in range(3):
        before = world.projection.seq
        world.turn()
        found = [entry.body["run"] for entry in entries(world, "gpu.fund", before)]
        told.append(found)
    assert told == [["narrow", "r0", "r1"], ["r2", "r3", "r4", "r5"], []], "three where one starts"
    resize(world, 25)
    world.turn()
    assert started(world) == ["narrow", "r0", "r1", "r2"], "one after the other, in one turn"


def test_another_run_of_a_name_is_not_in_the_order_that_stands(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    standing(monkeypatch)
    world = world_of(devices=2, gpus=64, teams="a")
    world.apply(*(run(f"r{i}", gpus=2, duration="1m") for i in range(3)))
    world.turn()
    world.plane.verbs.act("Run", "r1", "cancel", author=ADMIN)
    world.plane.objects.delete("Run", "r1", author=ADMIN)
    world.apply(run("r1", gpus=1))
    world.turn(1 / 60)
    assert started(world) == ["r2"]


def test_of_many_that_lack_devices_a_few_more_are_told_in_a_turn() -> None:
    """They were refused before: that they are funded now, and wait for devices, starts none."""
    world = world_of(devices=4, gpus=4, teams="a")
    world.apply(run("first", gpus=4))
    world.turn()
    names = [f"r{i:02d}" for i in range(RESAID_MAX + 15)]
    world.apply(*(run(name, gpus=4) for name in names))
    world.turn()
    resize(world, 400)
    before = world.projection.seq
    for most in (RESAID_MAX + 1, len(names)):
        world.turn()
        told = {entry.body["run"] for entry in entries(world, "gpu.place", before)}
        assert told <= set(names[:most])
    before = world.projection.seq
    world.turn()
    assert entries(world, "gpu.place", before) == []


def delete(world: World, name: str) -> None:
    world.plane.verbs.act("Run", name, "cancel", author=ADMIN)
    world.plane.objects.delete("Run", name, author=ADMIN)


def test_after_a_lost_race_no_run_of_an_order_that_stands_overtakes_those_before_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is to be said of runs is decided again on what the other replica freed: the first of
    those that ask for the same takes it."""
    standing(monkeypatch)
    ledger = Interrupted(time_ms=START)
    world = world_of(ledger=ledger, devices=64, gpus=4, teams="a")
    world.apply(*(run(f"r{i}", gpus=8) for i in range(4)))
    world.turn()
    world.turn()
    world.apply(run("told", gpus=8), run("untold", gpus=8))
    other = world.open()
    ledger.kind = "gpu.fund"
    ledger.act = lambda: other.objects.apply(
        budget("a", "a", envelope(concurrency=12)), author=ADMIN
    )
    before = world.projection.seq
    world.turn(0.2)
    assert ledger.act is None, "the other replica was quicker"
    assert started(world) == ["r0"]
    first, *others = [entry.body["run"] for entry in entries(world, "gpu.fund", before)]
    assert first == "r0"
    assert "untold" in others, "who waits is told so in the same turn"


def test_the_winner_of_an_outcome_does_not_stand_for_those_that_are_alike(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It waits for its outcome; they may start elsewhere at once, in their order."""
    standing(monkeypatch)
    world = World(
        clocks=Clocks(), config=Config(resolver="enforce", preemption=LENIENT), chance=CHANCE
    )
    world.apply(budget("a", "a", envelope(concurrency=64)))
    for place in ("west", "east"):
        world.apply(node(place, 4, location={"region": place}))
        world.apply(run(f"in-{place}", gpus=4, command=["x"], location={"region": place}))
    world.apply(*(run(name, gpus=4, command=["x"]) for name in ("vip", "next", "zlast")))
    world.turn()
    world.plane.verbs.act("Run", "vip", "resolve", author=ADMIN)
    (outcome,) = world.projection.resolver.outcomes.values()
    loser = f"in-{outcome.location['region']}"
    other = "in-west" if loser == "in-east" else "in-east"
    world.executor.end(other, world.plane.committer.now())
    asked: list[str] = []
    real = RunAdmission._decide
    monkeypatch.setattr(
        RunAdmission, "_decide", lambda *given: asked.append(given[1]) or real(*given)
    )
    world.turn(1 / 3600)
    assert started(world) == sorted([loser, "next"])
    assert asked[:2] == ["next", "zlast"], (
        "by their order, and not where only their reasons are told"
    )
    world.executor.end(loser, world.plane.committer.now(), signal=15)
    world.turn(1 / 3600)
    assert started(world) == ["next", "vip"], "the winner is in the order still"


def promised_world(monkeypatch: pytest.MonkeyPatch) -> World:
    """`big` is promised the devices of `block`, and stands before all others."""
    standing(monkeypatch)
    world = world_of(devices=4, gpus=64, teams="ab")
    world.apply(run("block", gpus=4, duration="1h", command=["x"]))
    world.turn()
    world.apply(run("big", gpus=4, duration="1h", command=["x"]))
    world.apply(*(run(f"s{i}", owner="b", gpus=3, duration="1h", command=["x"]) for i in range(3)))
    world.turn()
    return world


@pytest.mark.parametrize("minutes", [1, 30])
def test_another_run_of_a_name_does_not_inherit_a_promise(
    minutes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither in the next order nor by an order that is followed meanwhile."""
    world = promised_world(monkeypatch)
    delete(world, "big")
    world.apply(run("big", owner="b", gpus=2, duration="1h", command=["x"]))
    world.turn(minutes / 60)
    world.executor.end("block", world.now_ms)
    world.turn(1)
    assert started(world) == ["s0"], "it came last"
    assert world.plane.admission._promised.keys() == {"s1"}, "the head by now"


def test_a_run_that_started_by_an_order_that_stands_keeps_no_promise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Preempted, it would be before all others again."""
    world = promised_world(monkeypatch)
    assert world.plane.admission._promised.keys() == {"big"}
    world.executor.end("block", world.now_ms)
    world.turn(1 / 60)
    assert started(world) == ["big"]
    assert world.plane.admission._promised.keys() == {"s0"}


def test_an_order_is_made_anew_after_a_pause_and_stands_from_the_end_of_its_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing followed it yet: its age counts nonetheless."""
    standing(monkeypatch)
    world = world_of(devices=2, gpus=64, teams="a")
    world.apply(*(run(f"r{i}", gpus=1, duration="1m", command=["x"]) for i in range(6)))
    real = world.executor.start

    def slow(job: Any) -> None:
        world.now_ms += 240_000
        real(job)

    monkeypatch.setattr(world.executor, "start", slow)
    world.turn()
    assert started(world) == ["r0", "r1"]
    monkeypatch.setattr(world.executor, "start", real)
    world.apply(run("urgent", gpus=1, priority=9, command=["x"]))
    for name in started(world):
        world.executor.end(name, world.now_ms)
    world.turn(5 / 60)
    assert started(world) == ["r2", "r3"], "thirteen minutes after its turn began"
    for name in started(world):
        world.executor.end(name, world.now_ms)
    world.turn(0.2)
    for name in started(world):
        world.executor.end(name, world.now_ms)
    assert started(world) == ["r4", "urgent"]
    world.apply(run("other", gpus=1, priority=9))
    world.turn(5)
    assert "other" in started(world), "five hours later"


def test_after_a_turn_that_failed_an_order_is_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    standing(monkeypatch)
    world = world_of(devices=2, gpus=64, teams="a")
    world.apply(*(run(f"r{i}", gpus=1, duration="1m") for i in range(6)))
    with monkeypatch.context() as broken:
        broken.setattr(world.plane.effects, "carry_out", None)
        with pytest.raises(TypeError):
            world.turn()
    assert started(world) == ["r0", "r1"]
    world.apply(run("urgent", gpus=1, priority=9))
    world.turn(1 / 60)
    assert started(world) == ["r2", "urgent"]


@pytest.mark.parametrize("how", ["moved", "another"])
def test_a_reserved_run_that_is_not_due_any_more_keeps_no_devices(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its owner moved the reservation, or it is another run of its name."""
    standing(monkeypatch)
    world = world_of(devices=8, gpus=64, teams="ab", resolver="off")
    world.apply(run("block", gpus=4, duration="3h"))
    world.turn()
    reserve(world, run("wide", owner="b", gpus=8, duration="1h"))
    world.apply(*(run(f"s{i}", gpus=2, duration="9h") for i in range(5)))
    world.turn()
    assert started(world) == ["block"]
    if how == "moved":
        world.apply(reservation("wide-slot", "wide", 100))
    else:
        world.plane.objects.delete("Reservation", "wide-slot", author=ADMIN)
        delete(world, "wide")
        world.now_ms += 1_000
        reserve(world, run("wide", owner="b", gpus=8, duration="1h"))
    world.turn(1 / 60)
    assert started(world) == ["block", "s0", "s1"]


def test_another_run_of_a_name_claims_nothing_by_an_order_that_stands(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is not in the order, and keeps its owner's envelope from no guest before the next one."""
    standing(monkeypatch)
    world = world_of(devices=16, teams="")
    own = envelope(concurrency=8, sharing="family")
    world.apply(budget("a", "a", own, parents=["lab"]))
    world.apply(budget("b", "b", envelope(concurrency=1), parents=["lab"]))
    world.apply(run("block", gpus=8, duration="1m"))
    world.turn()
    world.apply(run("mine", gpus=8), run("guest", "b", 7), run("other", "b", 7))
    world.turn()
    delete(world, "mine")
    world.apply(run("mine", gpus=4))
    world.turn(2 / 60)
    assert started(world) == ["guest"]


def test_another_run_of_a_name_has_no_place_in_an_order_that_stands(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = promised_world(monkeypatch)
    assert list(world.plane.admission.positions()) == ["big", "s0", "s1", "s2"]
    delete(world, "big")
    world.apply(run("big", owner="b", gpus=1))
    assert list(world.plane.admission.positions()) == ["s0", "s1", "s2"]
    assert world.status("Run", "big")["queue"] is None
