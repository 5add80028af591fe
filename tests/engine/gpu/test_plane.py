"""The control plane on fakes: who pays, a run's life, decisions that replay."""

from importlib import import_module

import pytest

from fairlead.core.gpu.place import Gang, Node, Placement, place
from fairlead.ledger.replay import replay
from fairlead.schema.border import BadInput
from fairlead.schema.kinds import KINDS
from fairlead.schema.replay import Verdict
from tests.engine.gpu.worlds import ADMIN, ALICE, HOUR, World, budget, envelope, node, run

# -- the scenarios of the design's table --------------------------------------------------------


def test_headroom_of_the_worked_example(world: World) -> None:
    """3 GPUs open since 2 h, 2 closed after 1 h: 7 and 92 h left, 5 and 82 h under the cap."""
    cap = {
        "name": "all",
        "flavor": "H100",
        "envelopes": ["west"],
        "maxConcurrency": 8,
        "maxGPUHours": 90,
    }
    world.apply(
        budget("a", "a", envelope(concurrency=10, maxGPUHours=100), aggregateCaps=[cap]),
        node(),
        run("open", gpus=3),
        run("closed", gpus=2),
    )
    world.turn()
    world.now_ms += HOUR
    world.plane.verbs.act("Run", "closed", "cancel", author=ALICE)
    world.turn(1)
    status = world.status("Budget", "a")
    (room,), (whole,) = status["headroom"], status["aggregateHeadroom"]
    assert (room["concurrencyUsed"], room["gpuHoursUsed"]) == (3, 8)
    assert (room["concurrency"], room["gpuHours"]) == (7, 92)
    assert (whole["concurrency"], whole["gpuHours"]) == (5, 82)


def test_a_child_is_covered_by_its_sibling(world: World) -> None:
    """Child 2, sibling 10, ask 4: own 2, sibling 2, not borrowed."""
    world.apply(
        budget("child", "a", envelope(concurrency=2), parents=["org"]),
        budget("sibling", "s", envelope(concurrency=10), parents=["org"]),
        node(),
        run("r", gpus=4),
    )
    world.turn()
    paid = {(row["budget"], row["gpus"], row["borrowed"]) for row in world.plane.reports.leases()}
    assert paid == {("child", 2, False), ("sibling", 2, False)}


@pytest.mark.parametrize(("limit", "code"), [(None, None), (16, "BorrowLimitExceeded")])
def test_a_sponsor_lends_up_to_its_caps(world: World, limit: int | None, code: str | None) -> None:
    """Own 96, sponsor 64 lending at most 32, ask 128: 96 + 32; with a limit of 16 nothing."""
    lending = {"allow": True, "to": ["a"], "maxConcurrency": 32}
    world.apply(
        budget("a", "a", envelope(concurrency=96)),
        budget("s", "s", envelope(concurrency=64, lending=lending)),
        node(devices=200),
        run(
            "r", gpus=128, funding={"allowBorrow": True, "maxBorrowGPUs": limit, "sponsors": ["s"]}
        ),
    )
    world.turn()
    status = world.status("Run", "r")
    if code is None:
        assert [(row["gpus"], row["borrowed"]) for row in world.plane.reports.leases()] == [
            (96, False),
            (32, True),
        ]
        assert world.headroom("s")["lentGPUs"] == 32
        assert world.plane.reports.owes() == [
            {"borrower": "a", "lender": "s", "gpus": 32, "gpu_hours": 0.0}
        ]
    else:
        assert (status["phase"], status["reason"], status["width"]) == ("Pending", code, 0)
        assert status["refusal"]["remedy"] is not None


@pytest.mark.parametrize(("gpus", "starts"), [(10, True), (12, False)])
def test_two_envelopes_under_one_cap(world: World, gpus: int, starts: bool) -> None:
    """8 + 8 under a cap of 10: ten are 8 + 2, twelve are refused."""
    cap = {"name": "all", "flavor": "H100", "envelopes": ["x", "y"], "maxConcurrency": 10}
    world.apply(
        budget("a", "a", envelope("x"), envelope("y"), aggregateCaps=[cap]), node(devices=20)
    )
    found = world.plane.objects.plan(run("r", gpus=gpus), author=ALICE)
    assert found["starts"] is starts
    if starts:
        assert [each["gpus"] for each in found["plan"]] == [8, 2]
    else:
        assert found["refusal"]["code"] == "ConcurrencyCapExceeded"
    assert world.kinds() == ["object.applied"] * 2, "a plan writes nothing"


# -- a run's life -------------------------------------------------------------------------------


def test_a_run_is_covered_placed_leased_and_its_end_is_charged(world: World) -> None:
    """Hold at admission; at the end post what was used and void the rest, each once."""
    world.apply(budget("a"), node(), run("r", gpus=4, duration="2h", command=["train"]))
    world.turn()
    kinds = [kind for kind in world.kinds() if not kind.startswith(("object", "budget"))]
    assert kinds == ["gpu.fund", "gpu.place", "lease.open", "charge.hold", "run.phase"]
    (job,) = world.executor.jobs.values()
    assert (job.command, job.user, job.owner) == (("train",), "root", "a")
    assert job.devices == ("n1#0", "n1#1", "n1#2", "n1#3")
    assert world.headroom("a")["gpuHoursHeld"] == 8
    world.executor.end("r", world.now_ms + HOUR)
    world.turn(1.5)
    world.turn(0.5)
    status = world.status("Run", "r")
    assert (status["phase"], status["exitCode"], status["width"]) == ("Completed", 0, 0)
    assert status["completionTime"] == "2026-01-01T01:00:00Z"
    ends = {entry.kind: entry.body for entry in world.log[-5:]}
    assert ends["charge.post"]["used_ms"] == 4 * HOUR
    assert ends["charge.void"]["gpu_ms"] == 4 * HOUR
    assert world.kinds().count("charge.post") == 1
    assert world.executor.exits == []
    room = world.headroom("a")
    assert (room["gpuHoursUsed"], room["gpuHoursHeld"], room["concurrency"]) == (4, 0, 8)


@pytest.mark.parametrize(
    ("how", "reason", "message"),
    [
        ({"code": 3}, "Exited", "the command ended with 3"),
        ({"signal": 9}, "Exited", "the command ended by signal 9"),
        ({"lost": True}, "Lost", "its process is gone and left no exit status"),
    ],
)
def test_a_command_that_fails_fails_its_run(world: World, how, reason, message) -> None:
    """And its lease is settled all the same."""
    world.apply(budget("a"), node(), run("r", command=["train"]))
    world.turn()
    world.executor.end("r", world.now_ms, **how)
    world.turn(1)
    status = world.status("Run", "r")
    assert (status["phase"], status["reason"], status["message"]) == ("Failed", reason, message)
    assert world.plane.reports.leases() == []


def test_a_run_without_a_command_ends_with_its_duration(world: World) -> None:
    """To the millisecond, however late anybody looks."""
    world.apply(budget("a"), node(), run("r", gpus=2, duration="90m"), run("forever"))
    world.turn()
    world.turn(10)
    assert world.status("Run", "r")["completionTime"] == "2026-01-01T01:30:00Z"
    assert world.headroom("a")["gpuHoursUsed"] == 3 + 10
    assert world.status("Run", "forever")["phase"] == "Running"


def test_runs_are_admitted_in_order_of_submission(world: World) -> None:
    """The first that fits; a later, smaller one may start while an earlier one waits."""
    world.apply(budget("a", "a", envelope(concurrency=4)), node())
    world.apply(run("z", gpus=3), run("b", gpus=2), run("c", gpus=1))
    world.turn()
    phases = {
        each["metadata"]["name"]: each["status"]["phase"]
        for each in world.plane.objects.list("Run")
    }
    assert phases == {"z": "Running", "b": "Pending", "c": "Running"}
    status = world.status("Run", "b")
    assert status["reason"] == "ConcurrencyCapExceeded"
    assert status["refusal"]["remedy"]["change"] == "envelope-concurrency"
    world.turn(0.1)  # the later one took a GPU: two are short now
    before = len(world.log)
    world.turn(0.1)
    assert len(world.log) == before, "the same refusal is not recorded again"
    world.plane.verbs.act("Run", "z", "cancel", author=ADMIN)
    world.turn()
    assert world.status("Run", "b")["phase"] == "Running"


def test_a_funded_run_waits_for_devices_and_says_so_once(world: World) -> None:
    """Budget is not the problem: no refusal, the shortfall in devices."""
    world.apply(budget("a"), node(devices=2), run("r", gpus=4))
    world.turn()
    size = len(world.log)
    world.turn(0.1)
    assert len(world.log) == size
    status = world.status("Run", "r")
    assert (status["reason"], status["refusal"]) == ("NoDevices", None)
    assert status["message"] == "funded, but there are no free devices for its 4 GPUs together"
    world.apply(node("n2"))
    world.turn()
    assert world.status("Run", "r")["phase"] == "Running"


def test_groups_without_a_place_are_told_apart_from_the_others(world: World) -> None:
    """Of three groups of two, one fits: the other two are what waits for devices."""
    world.apply(budget("a"), node(devices=3), run("r", gpus=6, groupGPUs=2))
    world.turn()
    assert world.status("Run", "r")["message"] == (
        "funded, but there are no free devices for the groups that hold 4 of its 6 GPUs"
    )


def test_a_refusal_is_over_when_only_devices_are_missing(world: World) -> None:
    """First no budget, then no devices, then no budget again: three answers, each recorded."""
    world.apply(budget("a", "a", envelope(concurrency=2)), node(devices=2), run("r", gpus=4))
    world.turn()
    world.apply(budget("a"))
    world.turn()
    status = world.status("Run", "r")
    assert (status["reason"], status["refusal"]) == ("NoDevices", None)
    world.apply(budget("a", "a", envelope(concurrency=2)))
    world.turn()
    assert world.status("Run", "r")["reason"] == "ConcurrencyCapExceeded"
    assert world.kinds().count("gpu.fund") == 3


def test_a_malleable_run_starts_at_the_width_that_is_paid_and_placed(world: World) -> None:
    """Paid for six, devices for four: four; never below its minimum."""
    world.apply(budget("a", "a", envelope(concurrency=6)), node(devices=5))
    shape = {"minTotalGPUs": 2, "stepGPUs": 2}
    world.apply(run("r", gpus=8, groupGPUs=2, malleable=shape))
    world.turn()
    assert world.status("Run", "r")["width"] == 4
    world.apply(run("s", gpus=8, groupGPUs=2, malleable=shape))
    world.turn()
    assert world.status("Run", "s")["reason"] == "NoDevices"


def test_a_width_that_no_devices_are_free_for_is_not_tried(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Anything from 1 to 100 000 wide, on 5 devices: one tenant must not hold up all others."""
    tried = []

    def counted(nodes: list[Node], gang: Gang) -> Placement:
        tried.append(gang.gpus)
        return place(nodes, gang)

    monkeypatch.setattr(import_module("fairlead.core.gpu.devices"), "place", counted)
    world.apply(budget("a", "a", envelope(concurrency=100_000)), node("n1", 3), node("n2", 2))
    world.apply(run("r", gpus=100_000, groupGPUs=100_000, malleable={"minTotalGPUs": 1}))
    world.turn()
    assert world.status("Run", "r")["width"] == 5
    assert tried == [100_000, 5]


def test_runs_of_one_shape_are_tried_once_until_a_device_changes_hands(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thousands may wait after a large resolve: a turn must not place each of them anew."""
    tried = []

    def counted(nodes: list[Node], gang: Gang) -> Placement:
        tried.append([node.name for node in nodes])
        return place(nodes, gang)

    monkeypatch.setattr(import_module("fairlead.core.gpu.devices"), "place", counted)
    world.apply(budget("a", "a", envelope(concurrency=400)), node("n1", 3), node("n2", 0))
    world.apply(*(run(f"r{i:02}", gpus=4) for i in range(50)))
    world.turn()
    world.turn(0.1)
    assert tried == [["n1"]], "and nodes without a free device are not looked at"
    world.apply(node("n2", 1))
    world.turn()
    assert world.status("Run", "r00")["phase"] == "Running"
    assert tried == [["n1"], ["n1", "n2"], []], "what the first one took, the second must not"
    assert world.status("Run", "r01")["phase"] == "Pending"


def test_a_variable_that_the_lease_decides_is_refused(world: World) -> None:
    """At once and by name, not when it starts."""
    for name in ("CUDA_VISIBLE_DEVICES", "FAIRLEAD_JOB"):
        with pytest.raises(BadInput, match=f"spec.env.{name}: is set by Fairlead"):
            world.apply(run("r", env={name: "0"}))


def test_spares_are_paid_like_the_rest(world: World) -> None:
    """Two groups of two with a spare each: six GPUs paid, four wide."""
    world.apply(budget("a"), node("n1", 4), node("n2", 4))
    world.apply(run("r", gpus=4, groupGPUs=2, sparesPerGroup=1))
    world.turn()
    status = world.status("Run", "r")
    assert (status["width"], status["spares"]) == (4, 2)
    assert world.headroom("a")["concurrencyUsed"] == 6
    roles = [(row["role"], row["group"], row["gpus"]) for row in world.plane.reports.leases()]
    assert roles == [("Active", 0, 2), ("Spare", 0, 1), ("Active", 1, 2), ("Spare", 1, 1)]


def test_elsewhere_is_placed_only_when_paid_elsewhere(world: World) -> None:
    """In location no node, and the payer is in location: it waits."""
    west, east = {"region": "west"}, {"region": "east"}
    world.apply(node("n1", 8, location=east), budget("a", "a", envelope(location=west)))
    world.apply(run("r", location=west))
    world.turn()
    assert world.status("Run", "r")["reason"] == "NoDevices"
    world.apply(budget("b", "a", envelope(location=east)), run("s", gpus=9, location=west))
    world.apply(node("n2", 8, location=east))
    world.turn()
    assert world.status("Run", "s")["phase"] == "Running"


# -- decisions replay ---------------------------------------------------------------------------


def test_recorded_decisions_replay_byte_for_byte(world: World) -> None:
    """Every gpu.fund, gpu.place and gpu.queue, funded and refused, with cousins and sponsors."""
    lend = envelope(concurrency=4, lending={"allow": True, "to": ["*"], "maxConcurrency": 2})
    world.apply(
        budget("a", "a", envelope(concurrency=2, maxGPUHours=9.5), parents=["p"]),
        budget("p", "p", envelope(concurrency=1, recurrence="weekly"), parents=["g"]),
        budget("u", "u", envelope(concurrency=50), parents=["g"]),
        budget("c", "c", envelope(concurrency=3), parents=["u"]),
        budget("s", "s", lend),
        budget("far", "far"),
        node(devices=30),
        run("r1", gpus=3, duration="1h"),
        run("r2", gpus=3),
        run("r3", gpus=9),
        run("r4", gpus=2, funding={"allowBorrow": True, "sponsors": ["s"]}),
    )
    for _ in range(3):
        world.turn(0.3)
    seen = [entry for entry in world.log if entry.kind in KINDS]
    assert {entry.kind for entry in seen} == {"gpu.fund", "gpu.place", "gpu.queue"}
    assert {entry.body["output"].get("funded") for entry in seen} >= {True, False}
    for entry in seen:
        assert replay(world.ledger, entry).verdict is Verdict.SAME
    names = {b["name"] for e in seen if e.kind == "gpu.fund" for b in e.body["input"]["budgets"]}
    assert "far" not in names, "only budgets that can matter are recorded"
