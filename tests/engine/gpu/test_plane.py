"""The control plane on fakes: admission, endings, funding over time, verbs."""

from typing import Any

import pytest

from fairlead.core.gpu.place import Gang, Node, Placement, place
from fairlead.engine.gpu import Author, Conflict, Forbidden, NotFound, Refused
from fairlead.ledger.replay import replay
from fairlead.ports.faults import PermanentFault, TemporaryFault
from fairlead.schema.border import BadInput
from fairlead.schema.kinds import KINDS
from fairlead.schema.replay import Verdict
from tests.engine.gpu.worlds import ADMIN, HOUR, START, World, budget, envelope, node, run

ALICE = Author("alice", frozenset({"a"}))


@pytest.fixture
def world() -> World:
    return World()


def lines(found: dict[str, Any]) -> list[tuple[str, int, bool]]:
    return [(each["budget"], each["gpus"], each["borrowed"]) for each in found["plan"]]


# -- the scenarios of the design's table --------------------------------------------------------


def test_headroom_of_the_worked_example(world: World) -> None:
    """3 GPUs open since 2 h, 2 closed after 1 h: 7 and 92 h left, 5 and 82 h under the cap."""
    cap = {"name": "all", "flavor": "H100", "envelopes": ["west"], "maxConcurrency": 8,
           "maxGPUHours": 90}  # fmt: skip
    world.apply(
        budget("a", "a", envelope(concurrency=10, maxGPUHours=100), aggregateCaps=[cap]),
        node(), run("open", gpus=3), run("closed", gpus=2),
    )  # fmt: skip
    world.turn()
    world.now_ms += HOUR
    world.plane.act("Run", "closed", "cancel", author=ALICE)
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
        budget("sibling", "s", envelope(concurrency=10), parents=["org"]), node(),
        run("r", gpus=4),
    )  # fmt: skip
    world.turn()
    paid = {(row["budget"], row["gpus"], row["borrowed"]) for row in world.plane.leases()}
    assert paid == {("child", 2, False), ("sibling", 2, False)}


@pytest.mark.parametrize(("limit", "code"), [(None, None), (16, "BorrowLimitExceeded")])
def test_a_sponsor_lends_up_to_its_caps(world: World, limit: int | None, code: str | None) -> None:
    """Own 96, sponsor 64 lending at most 32, ask 128: 96 + 32; with a limit of 16 nothing."""
    lending = {"allow": True, "to": ["a"], "maxConcurrency": 32}
    world.apply(
        budget("a", "a", envelope(concurrency=96)),
        budget("s", "s", envelope(concurrency=64, lending=lending)), node(devices=200),
        run("r", gpus=128, funding={"allowBorrow": True, "maxBorrowGPUs": limit,
                                    "sponsors": ["s"]}),
    )  # fmt: skip
    world.turn()
    status = world.status("Run", "r")
    if code is None:
        assert [(row["gpus"], row["borrowed"]) for row in world.plane.leases()] == [
            (96, False), (32, True),
        ]  # fmt: skip
        assert world.headroom("s")["lentGPUs"] == 32
        assert world.plane.owes() == [
            {"borrower": "a", "lender": "s", "gpus": 32, "gpu_hours": 0.0}
        ]
    else:
        assert (status["phase"], status["reason"], status["width"]) == ("Pending", code, 0)
        assert status["refusal"]["remedy"] is not None


@pytest.mark.parametrize(("gpus", "starts"), [(10, True), (12, False)])
def test_two_envelopes_under_one_cap(world: World, gpus: int, starts: bool) -> None:  # noqa: FBT001
    """8 + 8 under a cap of 10: ten are 8 + 2, twelve are refused."""
    cap = {"name": "all", "flavor": "H100", "envelopes": ["x", "y"], "maxConcurrency": 10}
    world.apply(
        budget("a", "a", envelope("x"), envelope("y"), aggregateCaps=[cap]), node(devices=20)
    )
    found = world.plane.plan(run("r", gpus=gpus), author=ALICE)
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
    assert world.plane.leases() == []


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
    phases = {each["metadata"]["name"]: each["status"]["phase"] for each in world.plane.list("Run")}
    assert phases == {"z": "Running", "b": "Pending", "c": "Running"}
    status = world.status("Run", "b")
    assert status["reason"] == "ConcurrencyCapExceeded"
    assert status["refusal"]["remedy"]["change"] == "envelope-concurrency"
    world.turn(0.1)  # the later one took a GPU: two are short now
    before = len(world.log)
    world.turn(0.1)
    assert len(world.log) == before, "the same refusal is not recorded again"
    world.plane.act("Run", "z", "cancel", author=ADMIN)
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
    assert world.kinds().count("gpu.fund") == 2


def test_a_malleable_run_starts_at_the_width_that_is_paid_and_placed(world: World) -> None:
    """Paid for six, devices for four: four; never below its minimum."""
    world.apply(budget("a", "a", envelope(concurrency=6)), node(devices=5))
    shape = {"minTotalGPUs": 2, "stepGPUs": 2}
    world.apply(run("r", gpus=8, malleable=shape))
    world.turn()
    assert world.status("Run", "r")["width"] == 4
    world.apply(run("s", gpus=8, malleable=shape))
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

    monkeypatch.setattr("fairlead.engine.gpu.projection.place", counted)
    world.apply(budget("a", "a", envelope(concurrency=100_000)), node("n1", 3), node("n2", 2))
    world.apply(run("r", gpus=100_000, malleable={"minTotalGPUs": 1}))
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

    monkeypatch.setattr("fairlead.engine.gpu.projection.place", counted)
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
    roles = [(row["role"], row["group"], row["gpus"]) for row in world.plane.leases()]
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


# -- funding over time --------------------------------------------------------------------------


def test_hours_run_out_and_the_lease_is_unfunded_not_killed(world: World) -> None:
    """From that very moment its hours are overdraft; remaining stays 0; events say it."""
    world.apply(budget("a", "a", envelope(maxGPUHours=4)), node(), run("r", gpus=2))
    world.turn()
    world.turn(5)
    (lost,) = [entry for entry in world.log if entry.kind == "lease.unfunded"]
    assert lost.body["at_ms"] == START + 2 * HOUR
    status = world.status("Run", "r")
    assert (status["phase"], status["funded"]) == ("Running", False)
    room = world.headroom("a")
    assert (room["gpuHours"], room["overdraftGPUHours"], room["gpuHoursUsed"]) == (0, 6, 10)
    world.plane.act("Run", "r", "cancel", author=ALICE)
    (post,) = [entry.body for entry in world.log if entry.kind == "charge.post"]
    assert (post["used_ms"], post["overdraft_ms"]) == (10 * HOUR, 6 * HOUR)
    world.apply(run("next"))
    world.turn()
    assert world.status("Run", "next")["reason"] == "IntegralCapExceeded"


@pytest.mark.parametrize("first", ["nobody", "a reader", "an editor"])
def test_a_new_period_funds_it_again(world: World, first: str) -> None:
    """Four hours a day: each day's fifth hour is overdraft, also when nobody looked for days.

    Nor does it matter who comes first after that: the loop, somebody who reads, or an edit.
    """
    world.apply(budget("a", "a", envelope(maxGPUHours=4, recurrence="daily")), node(), run("r"))
    world.turn()
    world.now_ms += (48 + 6) * HOUR
    if first == "a reader":
        assert world.headroom("a")["gpuHoursUsed"] == 6
        world.plane.metrics()
        world.plane.plan(run("s"), author=ADMIN)
        lower = budget("a", "a", envelope(maxGPUHours=3, recurrence="daily"))
        world.plane.apply(lower, author=ADMIN, dry_run=True)
    elif first == "an editor":
        world.apply(budget("a", "a", envelope(maxGPUHours=4, concurrency=3, recurrence="daily")))
    world.turn()
    assert world.status("Run", "r")["funded"] is False
    world.plane.act("Run", "r", "cancel", author=ALICE)
    (post,) = [entry.body for entry in world.log if entry.kind == "charge.post"]
    overdraft = [part["overdraft_ms"] / HOUR for part in post["parts"]]
    assert overdraft == [20, 20, 2]


def test_a_lowered_cap_demotes_the_newest_and_a_raised_one_restores_them(world: World) -> None:
    """At once, not at the next turn."""
    world.apply(budget("a"), node(), run("old", gpus=4))
    world.turn()
    world.turn(1)
    world.apply(run("new", gpus=4))
    world.turn()
    preview = world.plane.apply(
        budget("a", "a", envelope(concurrency=5)), author=ADMIN, dry_run=True
    )
    (lost,) = preview.preview["unfunded"]
    lease = lost.pop("lease")
    assert lost == {"run": "new", "owner": "a", "gpus": 4, "cap": "envelope", "name": "west",
                    "hours": False}  # fmt: skip
    assert world.status("Run", "new")["funded"] is True
    world.apply(budget("a", "a", envelope(concurrency=5)))
    assert (world.status("Run", "new")["funded"], world.status("Run", "old")["funded"]) == (
        False, True,
    )  # fmt: skip
    assert world.plane.get("Lease", lease)["status"]["funded"] is False
    world.apply(budget("a"))
    assert world.status("Run", "new")["funded"] is True


def test_an_edit_never_changes_elapsed_charges(world: World) -> None:
    """Other caps, another window, another owner: the used hours are the same."""
    world.apply(budget("a", "a", envelope(maxGPUHours=100)), node(), run("r", gpus=2))
    world.turn()
    world.turn(3)
    used = world.headroom("a")["gpuHoursUsed"]
    for edited in (
        envelope(maxGPUHours=1), envelope(maxGPUHours=5),
        envelope(maxGPUHours=5, recurrence="daily"),
        envelope(window={"start": "2026-01-01T00:00:00Z", "end": "2026-02-01T00:00:00Z"}),
    ):  # fmt: skip
        world.apply(budget("a", "somebody", edited))
        assert world.headroom("a")["gpuHoursUsed"] == used
    world.plane.act("Run", "r", "cancel", author=ADMIN)
    (post,) = [entry.body for entry in world.log if entry.kind == "charge.post"]
    assert post["used_ms"] == 6 * HOUR


# -- verbs --------------------------------------------------------------------------------------


def test_cancelling_a_process_charges_its_grace(world: World) -> None:
    """The lease ends when the process is gone, not when somebody wished it."""
    world.apply(budget("a"), node(), run("r", command=["train"]))
    world.turn()
    world.plane.act("Run", "r", "cancel", author=ALICE)
    assert world.executor.calls[-1] == ("stop", "r", 30_000)
    assert world.status("Run", "r")["stopping"] is True
    world.plane.act("Run", "r", "cancel", author=ALICE)
    world.executor.end("r", world.now_ms + 20_000, signal=15)
    world.turn(0.01)
    status = world.status("Run", "r")
    assert (status["phase"], status["reason"]) == ("Failed", "Cancelled")
    assert world.plane._projection.closed[-1].end_reason == "Cancelled"
    assert world.plane._projection.closed[-1].used_ms == 20_000
    with pytest.raises(Refused) as refused:
        world.plane.act("Run", "r", "cancel", author=ALICE)
    assert refused.value.reason == "RunEnded"


def test_a_pause_keeps_the_lease(world: World) -> None:
    """Pauses are charged; a restart finds the run still paused."""
    world.apply(budget("a"), node(), run("r", command=["train"]))
    world.turn()
    for verb in ("pause", "pause", "resume", "pause"):
        world.plane.act("Run", "r", verb, author=ALICE)
        world.turn(0.1)
    told = [call[0] for call in world.executor.calls]
    assert told == ["start", "pause", "resume", "pause"]
    assert world.status("Run", "r")["paused"] is True
    world.plane = world.open()
    world.turn()
    assert world.executor.calls[-1] == ("pause", "r")
    world.plane.act("Run", "r", "resume", author=ALICE)
    world.plane = world.open()
    world.turn()
    assert world.executor.calls[-1] == ("resume", "r")
    world.plane.act("Run", "r", "cancel", author=ALICE)
    with pytest.raises(Refused, match="not running"):
        world.plane.act("Run", "r", "pause", author=ALICE)


def test_cordon_keeps_new_leases_away_and_drain_ends_the_old_ones(world: World) -> None:
    """A drained gang waits again and starts elsewhere, with another job."""
    world.apply(budget("a"), node(), run("r", gpus=2, command=["train"]))
    world.turn()
    world.plane.act("Node", "n1", "cordon", author=ADMIN)
    world.plane.act("Node", "n1", "cordon", author=ADMIN)
    world.apply(run("s"))
    world.turn()
    assert (world.status("Run", "r")["phase"], world.status("Run", "s")["reason"]) == (
        "Running", "NoDevices",
    )  # fmt: skip
    world.plane.act("Node", "n1", "drain", author=ADMIN)
    status = world.status("Run", "r")
    assert (status["phase"], status["reason"]) == ("Pending", "Drained")
    assert ("stop", "r", 0) in world.executor.calls
    world.executor.end("r", world.now_ms, signal=9)
    world.plane.act("Node", "n1", "uncordon", author=ADMIN)
    world.turn()
    assert world.status("Run", "r")["phase"] == "Running"
    assert len([job for job in world.executor.jobs.values() if job.run == "r"]) == 2


def test_a_gang_without_enough_spares_waits_again(world: World) -> None:
    """Three devices lost, two spares: whole or not running."""
    world.apply(budget("a"), node("n1", 3), node("n2", 3))
    world.apply(run("r", gpus=3, groupGPUs=3, sparesPerGroup=2))
    world.turn()
    world.plane.act("Node", "n1", "fail", author=ADMIN)
    status = world.status("Run", "r")
    assert (status["phase"], status["reason"], status["width"]) == ("Pending", "NodeFailed", 0)
    reasons = {entry.body["reason"] for entry in world.log if entry.kind == "lease.close"}
    assert reasons == {"NodeFailed"}


def test_a_lost_spare_leaves_the_rest_running(world: World) -> None:
    """Part of an active lease and part of a spare one: what is left stays leased."""
    world.apply(budget("a"), node("n1", 2), node("n2", 2), node("n3", 2))
    world.apply(run("r", gpus=3, groupGPUs=3, sparesPerGroup=3))
    world.turn()
    before = {row["role"]: row["slots"] for row in world.plane.leases()}
    assert before == {"Active": ["n1#0", "n1#1", "n2#0"], "Spare": ["n3#0", "n3#1", "n2#1"]}
    world.plane.act("Node", "n2", "fail", author=ADMIN)
    after = sorted((row["role"], row["slots"]) for row in world.plane.leases())
    assert after == [("Active", ["n1#0", "n1#1"]), ("Active", ["n3#0"]), ("Spare", ["n3#1"])]
    world.plane.act("Node", "n3", "fail", author=ADMIN)
    assert world.status("Run", "r")["phase"] == "Pending"


def test_a_swap_opens_active_leases_on_the_spares(world: World) -> None:
    """One device lost, one spare: closed with NodeFailed and DropSpare, opened with Swap."""
    world.apply(budget("a"), node("n1", 1), node("n2", 1), node("n3", 2))
    world.apply(run("r", gpus=2, groupGPUs=2, sparesPerGroup=2, duration="4h", command=["x"]))
    world.turn()
    active = [row for row in world.plane.leases() if row["role"] == "Active"]
    assert active[0]["slots"] == ["n3#0", "n3#1"]
    world.turn(1)
    world.plane.act("Node", "n3", "fail", author=ADMIN)
    status = world.status("Run", "r")
    assert (status["phase"], status["reason"], status["width"], status["spares"]) == (
        "Running", "Swapped", 2, 0,
    )  # fmt: skip
    assert [row["slots"] for row in world.plane.leases()] == [["n1#0", "n2#0"]]
    reasons = [entry.body["reason"] for entry in world.log if entry.kind == "lease.close"]
    assert sorted(reasons) == ["DropSpare", "NodeFailed"]
    # The new job waits until the old one, whose devices are gone, has ended.
    assert [job.id for job in world.executor.jobs.values()] == [status["job"][:-1] + "1"]
    world.executor.end("r", world.now_ms, signal=9)
    world.turn()
    assert world.executor.running() == {status["job"]}
    assert world.status("Run", "r")["phase"] == "Running"
    assert world.headroom("a")["gpuHoursUsed"] == 4


def test_an_unknown_verb_is_refused(world: World) -> None:
    """And so is one on nothing."""
    world.apply(node())
    with pytest.raises(Refused, match="cannot 'reboot'"):
        world.plane.act("Node", "n1", "reboot", author=ADMIN)
    with pytest.raises(NotFound):
        world.plane.act("Run", "r", "cancel", author=ADMIN)


# -- the executor fails -------------------------------------------------------------------------


def test_a_start_that_cannot_succeed_fails_the_run(world: World) -> None:
    """Its leases are settled; a fault that may pass is tried again."""
    world.apply(budget("a"), node(), run("r", command=["train"]))
    world.executor.fail = TemporaryFault("busy", retry_after_ms=10)
    world.turn()
    assert world.plane.faults == {"r": "busy"}
    assert world.status("Run", "r")["phase"] == "Running"
    world.executor.fail = PermanentFault("no such program")
    world.turn()
    status = world.status("Run", "r")
    assert (status["phase"], status["reason"]) == ("Failed", "StartFailed")
    assert world.plane.leases() == []


def test_a_crash_between_record_and_start_is_healed(world: World) -> None:
    """The start is recorded, asked for again after a restart, and happens once."""
    world.apply(budget("a"), node(), run("r", command=["train"]))
    world.executor.fail = TemporaryFault("the machine is gone", retry_after_ms=1)
    world.turn()
    world.executor.fail = None
    world.plane = world.open()
    world.turn()
    world.plane = world.open()
    world.turn()
    assert [call for call in world.executor.calls if call[0] == "start"] == [
        ("start", world.status("Run", "r")["job"])
    ]


def test_an_executor_that_cannot_be_asked_is_asked_again(world: World) -> None:
    """Its faults are kept for people; nothing is lost, and nothing is ended twice."""
    world.apply(budget("a"), node(), run("r", command=["train"]))
    world.turn()
    world.executor.end("r", world.now_ms)
    fault = TemporaryFault("no answer", retry_after_ms=1)
    for broken in ("poll", "acknowledge", "running"):
        setattr(world.executor, broken, _raising(fault))
        world.turn(0.1)
        assert world.plane.faults == {f"*{broken}": "no answer"}
        delattr(world.executor, broken)
    world.turn(0.1)
    assert world.plane.faults == {}
    assert world.status("Run", "r")["phase"] == "Completed"
    assert world.kinds().count("charge.post") == 1


def _raising(fault: Exception) -> Any:
    def raising(*_: Any) -> None:
        raise fault

    return raising


def test_a_pause_that_fails_is_tried_again(world: World) -> None:
    """At the next turn; the ledger says what is wanted."""
    world.apply(budget("a"), node(), run("r", command=["train"]))
    world.turn()
    world.executor.pause = _raising(TemporaryFault("busy", retry_after_ms=1))  # type: ignore[method-assign]
    world.plane.act("Run", "r", "pause", author=ALICE)
    assert world.plane.faults == {"r": "busy"}
    del world.executor.pause  # type: ignore[method-assign]
    world.turn()
    assert world.executor.calls[-1] == ("pause", "r")
    assert world.plane.faults == {}


# -- who may ------------------------------------------------------------------------------------


def test_a_tenant_acts_only_for_its_own_owners(world: World) -> None:
    """Runs of others, budgets and nodes are not a tenant's to touch."""
    world.apply(budget("a"), node(), run("other", owner="b"))
    world.plane.apply(run("mine"), author=ALICE)
    for attempt in (
        lambda: world.plane.apply(run("r", owner="b"), author=ALICE),
        lambda: world.plane.apply(run("other", owner="a"), author=ALICE),
        lambda: world.plane.apply(budget("a"), author=ALICE),
        lambda: world.plane.apply(node(), author=ALICE),
        lambda: world.plane.plan(run("r", owner="b"), author=ALICE),
        lambda: world.plane.act("Run", "other", "cancel", author=ALICE),
        lambda: world.plane.act("Node", "n1", "cordon", author=ALICE),
        lambda: world.plane.delete("Budget", "a", author=ALICE),
        lambda: world.plane.delete("Run", "other", author=ALICE),
    ):
        with pytest.raises(Forbidden):
            attempt()
    world.plane.delete("Run", "mine", author=ALICE)


def test_an_expected_version_must_be_the_current_one(world: World) -> None:
    """Zero means: it must not exist; a resourceVersion in the manifest means the same check."""
    first = world.plane.apply(budget("a"), author=ADMIN, expected_version=0)
    version = first.object["metadata"]["resourceVersion"]
    with pytest.raises(Conflict):
        world.plane.apply(budget("a"), author=ADMIN, expected_version=0)
    edited = budget("a", "a", envelope(concurrency=3))
    second = world.plane.apply(edited, author=ADMIN, expected_version=version)
    assert (second.change, second.object["metadata"]["generation"]) == ("configured", 2)
    stale = {**edited, "metadata": {**edited["metadata"], "resourceVersion": version}}
    with pytest.raises(Conflict):
        world.plane.apply(stale, author=ADMIN)
    assert world.plane.apply(edited, author=ADMIN).change == "unchanged"


def test_what_was_read_can_be_applied(world: World) -> None:
    """get, edit, apply: status and what else the server wrote is ignored."""
    world.apply(budget("a"), node(), run("r"))
    for kind, name in (("Budget", "a"), ("Node", "n1"), ("Run", "r")):
        assert world.plane.apply(world.plane.get(kind, name), author=ADMIN).change == "unchanged"


def test_what_is_in_use_stays(world: World) -> None:
    """Payers of open leases, leased devices, running runs."""
    world.apply(budget("a", "a", envelope("x"), envelope("y")), node(), run("r", gpus=2))
    world.turn()
    for reason, attempt in (
        ("EnvelopeInUse", lambda: world.apply(budget("a", "a", envelope("y")))),
        ("EnvelopeInUse", lambda: world.plane.delete("Budget", "a", author=ADMIN)),
        ("DeviceInUse", lambda: world.apply(node(devices=1))),
        ("DeviceInUse", lambda: world.apply(node(flavor="A100"))),
        ("DeviceInUse", lambda: world.plane.delete("Node", "n1", author=ADMIN)),
        ("RunActive", lambda: world.plane.delete("Run", "r", author=ADMIN)),
    ):
        with pytest.raises(Refused) as refused:
            attempt()
        assert refused.value.reason == reason
    world.apply(budget("a", "a", envelope("x")), node(devices=2))
    world.plane.act("Run", "r", "cancel", author=ADMIN)
    for kind, name in (("Run", "r"), ("Budget", "a"), ("Node", "n1")):
        world.plane.delete(kind, name, author=ADMIN, dry_run=True)
        assert world.plane.delete(kind, name, author=ADMIN)["metadata"]["name"] == name
        assert world.plane.get(kind, name) is None


def test_only_funding_of_a_run_can_be_changed(world: World) -> None:
    """The rest is what was submitted."""
    world.apply(run("r"))
    with pytest.raises(BadInput, match=r"spec\.totalGPUs: cannot be changed"):
        world.apply(run("r", gpus=2))
    changed = world.plane.apply(run("r", funding={"allowBorrow": True}), author=ALICE)
    assert changed.change == "configured"


def test_parents_may_not_form_a_circle(world: World) -> None:
    """Across all budgets."""
    world.apply(budget("a", "a", parents=["b"]))
    with pytest.raises(BadInput, match=r"spec\.parents: form a circle: a > b > a"):
        world.apply(budget("b", "b", parents=["a"]))


def test_dry_runs_write_nothing(world: World) -> None:
    """They answer with the object as it would be, and what it would lead to."""
    world.apply(budget("a"), node())
    size = len(world.log)
    shown = world.plane.apply(run("r", gpus=3), author=ALICE, dry_run=True)
    assert (shown.change, shown.object["spec"]["totalGPUs"]) == ("created", 3)
    assert lines(shown.preview) == [("a", 3, False)]
    assert shown.preview["placement"]["groups"][0]["active"] == ["n1#0", "n1#1", "n1#2"]
    assert world.plane.apply(node(), author=ADMIN, dry_run=True).preview == {"leases": []}
    with pytest.raises(BadInput, match="only runs are planned"):
        world.plane.plan(budget("a"), author=ADMIN)
    assert len(world.log) == size


# -- decisions replay ---------------------------------------------------------------------------


def test_recorded_decisions_replay_byte_for_byte(world: World) -> None:
    """Every gpu.fund and gpu.place entry, funded and refused, with cousins and sponsors."""
    lend = envelope(concurrency=4, lending={"allow": True, "to": ["*"], "maxConcurrency": 2})
    world.apply(
        budget("a", "a", envelope(concurrency=2, maxGPUHours=9.5), parents=["p"]),
        budget("p", "p", envelope(concurrency=1, recurrence="weekly"), parents=["g"]),
        budget("u", "u", envelope(concurrency=50), parents=["g"]),
        budget("c", "c", envelope(concurrency=3), parents=["u"]),
        budget("s", "s", lend), budget("far", "far"), node(devices=30),
        run("r1", gpus=3, duration="1h"), run("r2", gpus=3), run("r3", gpus=9),
        run("r4", gpus=2, funding={"allowBorrow": True, "sponsors": ["s"]}),
    )  # fmt: skip
    for _ in range(3):
        world.turn(0.3)
    seen = [entry for entry in world.log if entry.kind in KINDS]
    assert {entry.kind for entry in seen} == {"gpu.fund", "gpu.place"}
    assert {entry.body["output"].get("funded") for entry in seen} >= {True, False}
    for entry in seen:
        assert replay(world.ledger, entry).verdict is Verdict.SAME
    names = {b["name"] for e in seen if e.kind == "gpu.fund" for b in e.body["input"]["budgets"]}
    assert "far" not in names, "only budgets that can matter are recorded"
