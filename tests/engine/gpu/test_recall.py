"""An owner's own envelope is never locked by others, and unfunded runs yield to funded ones."""

from hashlib import sha256
from typing import Any

import pytest
from msgspec import structs

from fairlead.core.canonical import canonical
from fairlead.core.gpu import PreemptionPolicy
from fairlead.ledger.replay import replay
from fairlead.schema.kinds import KINDS
from fairlead.schema.replay import Verdict
from tests.engine.gpu.resolving import phases, reserve, world_of
from tests.engine.gpu.worlds import ADMIN, LENIENT, World, budget, envelope, node, run


def family(devices: int = 8, **config: Any) -> World:
    """`a` has 8 of its own; sibling `b` and borrower `c` have none, and `d` has 8."""
    world = world_of(devices=devices, teams="d", **config)
    lends = {"allow": True, "to": ["c"]}
    world.apply(
        budget("a", "a", envelope(concurrency=8, sharing="family", lending=lends), parents=["lab"]),
        budget("b", "b", envelope(concurrency=1, flavor="L4"), parents=["lab"]),
    )
    return world


def entries(world: World, kind: str) -> list[Any]:
    found = [entry for entry in world.log if entry.kind == kind]
    if kind in KINDS:
        assert {replay(world.ledger, entry).verdict for entry in found} <= {Verdict.SAME}
    return found


@pytest.mark.parametrize("reserved", [False, True])
def test_an_owner_gets_its_own_envelope_back(reserved: bool) -> None:
    """The case of the issue: a sibling uses 4 of 8, and the owner asks for 8."""
    world = family()
    world.apply(run("guest", "b", 4))
    world.turn()
    assert world.status("Run", "guest")["funded"]
    if reserved:
        reserve(world, run("mine", "a", 8))
    else:
        world.apply(run("mine", "a", 8))
    world.turn()
    assert phases(world) == {"guest": "Pending", "mine": "Running"}
    (decision,) = entries(world, "gpu.recall")
    (unfunded,) = entries(world, "lease.unfunded")
    assert decision.body["output"]["leases"][0]["reason"] == "sibling"
    assert unfunded.body["decision"] == decision.seq
    assert "a recalled envelope a/west for run mine" in unfunded.body["message"]
    causes = [entry.body["cause"] for entry in entries(world, "gpu.resolve.case")]
    assert causes == ["reservation" if reserved else "admission"]
    entries(world, "gpu.refund"), entries(world, "gpu.deficit"), entries(world, "gpu.fund")


def test_a_run_that_starts_after_another_recalls_nothing_before() -> None:
    """It could not start: the guest would lose its funding for nothing."""
    world = family()
    world.apply(run("guest", "b", 4), run("first", "d", 2, duration="1h"))
    world.turn()
    after = [{"run": "first", "condition": "afterOK"}]
    world.apply(run("mine", "a", 8, after=after))
    world.turn(0.01)
    assert world.status("Run", "guest")["funded"]
    assert entries(world, "gpu.recall") == []
    world.turn(1.1)
    assert len(entries(world, "gpu.recall")) == 1


def test_both_sides_of_a_recall_are_told() -> None:
    """The guest has its minimum runtime: until then its owner reads who recalled what, and the
    envelope's owner that its run does not wait for the guest's end."""
    world = family(preemption=PreemptionPolicy(min_runtime_ms=600_000))
    world.apply(run("guest", "b", 4), run("other", "d", 2))
    world.turn()
    assert world.status("Run", "guest")["message"] == "4 GPUs, paid by 1 envelope"
    world.apply(run("mine", "a", 8))
    world.turn()
    assert phases(world)["mine"] == "Pending"
    guest = world.status("Run", "guest")["message"]
    assert guest == "4 GPUs, unfunded since a recalled them: first to be preempted"
    assert "; 4 GPUs of its envelopes are recalled" in world.status("Run", "mine")["message"]
    assert "recalled" not in world.status("Run", "other")["message"]


def test_a_plan_says_that_it_starts_by_recall() -> None:
    """Counts only: the leases are other owners'. A plan of a run that is paid for says nothing."""
    world = family()
    world.apply(run("guest", "b", 4))
    world.turn()
    plan = world.plane.objects.plan(run("mine", "a", 8), author=ADMIN)
    assert (plan["funded"], plan["recall"], plan["overdraft"]) == (
        False,
        {"leases": 1, "gpus": 4},
        None,
    )
    shown = world.plane.objects.apply(run("mine", "a", 8), author=ADMIN, dry_run=True)
    assert (shown.preview or {})["recall"] == plan["recall"]
    assert world.plane.objects.plan(run("mine", "a", 4), author=ADMIN)["recall"] is None


def test_a_preview_of_a_reservation_counts_the_recall() -> None:
    """It said "not funded", and then the owner got its envelope and the guest was preempted."""
    world = family()
    world.apply(run("guest", "b", 4))
    world.turn()
    reserve(world, run("mine", "a", 8), 1)
    forecast = world.plane.resolver.preview("Reservation", "mine-slot")
    assert (forecast["refusal"], forecast["recall"]) == (None, {"leases": 1, "gpus": 4})
    assert [(row["run"], row["tier"], row["certain"]) for row in forecast["atRisk"]] == [
        ("guest", "unfunded", True)
    ]
    assert forecast["earliestStart"] == "2026-01-01T01:00:00Z"
    assert world.status("Run", "guest")["funded"], "a preview changes nothing"


def test_a_preview_says_which_reservations_it_does_not_count() -> None:
    world = family()
    reserve(world, run("first", "a", 3), 1)
    reserve(world, run("second", "d", 2), 2)
    due = {
        name: world.plane.resolver.preview("Reservation", f"{name}-slot")["due"]
        for name in ("first", "second")
    }
    assert due == {"first": {"runs": 0, "gpus": 0}, "second": {"runs": 1, "gpus": 3}}


@pytest.mark.parametrize("reserved", [False, True])
def test_a_recalled_run_has_its_minimum_runtime(reserved: bool) -> None:
    """It began with funding: it is not preempted in its first second, and the owner waits for no
    more than that, also where the run was preempted a short while ago."""
    world = family(preemption=PreemptionPolicy())
    world.apply(run("guest", "b", 4))
    world.turn()
    for attempt in (1, 2):
        assert world.status("Run", "guest")["attempts"] == attempt
        mine = run(f"mine{attempt}", "a", 8, duration="19m")
        if reserved:
            reserve(world, mine)
        else:
            world.apply(mine)
        world.turn()
        assert phases(world)["guest"] == "Running"
        assert world.status("Run", "guest")["funded"] is False
        world.turn(9 / 60)
        assert phases(world)["guest"] == "Running"
        world.turn(1 / 60)
        assert phases(world) == {**phases(world), "guest": "Pending", f"mine{attempt}": "Running"}
        world.turn(0.5)
    assert world.status("Run", "guest")["attempts"] == 3
    assert entries(world, "gpu.deficit"), "they replay"


def test_with_free_devices_no_run_ends() -> None:
    world = family(devices=16)
    world.apply(run("guest", "b", 4))
    world.turn()
    world.apply(run("mine", "a", 8))
    world.turn()
    assert phases(world) == {"guest": "Running", "mine": "Running"}
    assert not world.status("Run", "guest")["funded"]
    world.plane.verbs.act("Run", "mine", "cancel", author=ADMIN)
    world.turn(0.01)
    world.turn(0.01)
    assert world.status("Run", "guest")["funded"], "there is room again"


def test_what_was_recalled_stays_so_while_the_owner_waits() -> None:
    """Without preemption the owner waits for devices; its funding does not go back meanwhile."""
    world = family(resolver="dry-run")
    world.apply(run("guest", "b", 4))
    world.turn()
    world.apply(run("mine", "a", 8))
    for _ in range(3):
        world.turn(0.01)
    assert phases(world) == {"guest": "Running", "mine": "Pending"}
    assert world.status("Run", "mine")["reason"] == "NoDevices"
    assert len(entries(world, "gpu.recall")) == 1
    assert len(entries(world, "lease.funded")) == 0
    world.plane = world.open()
    world.plane.verbs.act("Run", "mine", "cancel", author=ADMIN)
    world.turn(0.01)
    assert len(entries(world, "lease.funded")) == 1


def test_borrowers_before_siblings_the_youngest_first_and_no_more_than_it_takes() -> None:
    world = family(devices=16)
    loan = {"funding": {"allowBorrow": True, "sponsors": ["a"]}}
    world.apply(run("old-loan", "c", 2, **loan), run("guest", "b", 2))
    world.turn()
    world.turn(0.1)
    world.apply(run("new-loan", "c", 2, **loan))
    world.turn()
    world.apply(run("mine", "a", 4))
    world.turn()
    funded = {name: world.status("Run", name)["funded"] for name in phases(world)}
    assert funded == {"old-loan": True, "guest": True, "new-loan": False, "mine": True}
    world.apply(run("more", "a", 3))
    world.turn()
    funded = {name: world.status("Run", name)["funded"] for name in phases(world)}
    assert funded["guest"] is False, "2 of the loan and 1 of the guest's 2 are not enough alone"
    assert funded["old-loan"] is False


def test_nothing_is_recalled_that_does_not_help() -> None:
    world = family(devices=16)
    world.apply(run("guest", "b", 4))
    world.turn()
    world.apply(run("huge", "a", 9))
    world.turn()
    assert entries(world, "gpu.recall") == []
    assert world.status("Run", "guest")["funded"]


def test_an_ordinary_submit_takes_no_device_of_a_funded_run() -> None:
    world = family()
    world.apply(run("guest", "b", 4), run("paid", "d", 4))
    world.turn()
    world.apply(run("other", "d", 4))
    world.turn()
    assert phases(world) == {"guest": "Running", "paid": "Running", "other": "Pending"}
    assert entries(world, "gpu.resolve.case") == []
    size = len(world.log)
    world.turn(0.01)
    assert len(world.log) == size, "idle turns say nothing"
    world.apply(budget("a", "a", envelope(concurrency=2), parents=["lab"]))
    world.turn()
    assert phases(world) == {"guest": "Pending", "paid": "Running", "other": "Running"}
    (case,) = entries(world, "gpu.resolve.case")
    assert (case.body["cause"], case.body["run"]) == ("admission", "other")
    last = entries(world, "gpu.deficit")[-1].body["output"]
    assert {row["reason"] for row in last["exclusions"]} == {"funded"}


@pytest.mark.parametrize(
    "more", [{"location": {"cluster": "typo"}}, {"groupGPUs": 8}, {"gpus": 8, "cordoned": True}]
)
def test_nothing_is_recalled_for_a_run_that_fits_nowhere(more: dict[str, Any]) -> None:
    """It would take the funding of its family's runs for as long as it stays in the queue."""
    world = family(devices=4)
    world.apply(node("n2", 4, location={"region": "west", "cluster": "a", "domain": "d2"}))
    world.apply(run("guest", "b", 4))
    world.turn()
    if more.pop("cordoned", False):
        world.plane.verbs.act("Node", "n2", "cordon", author=ADMIN)
    world.apply(run("mine", "a", **{"gpus": 8, **more}))
    world.turn(0.1)
    assert entries(world, "gpu.recall") == []
    assert world.status("Run", "guest")["funded"]
    if "location" not in more and "groupGPUs" not in more:
        world.plane.verbs.act("Node", "n2", "uncordon", author=ADMIN)
        world.turn(0.1)
        assert phases(world) == {"guest": "Pending", "mine": "Running"}


def test_the_room_that_a_recall_needs_is_in_its_record() -> None:
    """Whether the run fits on the devices is decided again; other devices are found. A record of
    version 1 has none, and replays."""
    world = family(devices=8)
    world.apply(run("guest", "b", 4))
    world.turn()
    world.apply(run("mine", "a", 8))
    world.turn(0.1)
    (entry,) = entries(world, "gpu.recall")
    body = entry.body
    assert (entry.version, len(body["input"]["room"]["nodes"])) == (2, 1)
    for room, verdict in (({"nodes": []}, Verdict.DIFFERENT), (None, Verdict.SAME)):
        changed = None if room is None else {**body["input"]["room"], **room}
        asked = {**body["input"], "room": changed}
        if room is None:
            del asked["room"]
        digest = sha256(canonical(asked)).hexdigest()
        version = 2 if room else 1
        other = structs.replace(
            entry, body={**body, "input": asked}, input_digest=digest, version=version
        )
        assert replay(world.ledger, other).verdict is verdict


def test_which_envelopes_pay_for_a_reclaim_is_in_its_record() -> None:
    """A guest that takes devices of unfunded runs says whose guest it is; were one of these
    envelopes promised, the decision would be another."""
    world = family(devices=8)
    world.apply(run("big", "d", 8))
    world.turn()
    world.apply(budget("d", "d", envelope(concurrency=2)))
    world.turn()
    world.apply(run("guest", "b", 4))
    for _ in range(3):
        world.turn(0.1)
    assert phases(world)["guest"] == "Running"
    found = [row for row in entries(world, "gpu.deficit") if row.body["cause"] == "admission"]
    body = found[-1].body
    assert body["input"]["demand"]["guest_of"] == [{"budget": "a", "envelope": "west"}]
    leases = [{**row, "budget": "a", "promised": True} for row in body["input"]["leases"]]
    asked = {**body["input"], "leases": leases}
    digest = sha256(canonical(asked)).hexdigest()
    other = structs.replace(found[-1], body={**body, "input": asked}, input_digest=digest)
    answer = replay(world.ledger, other)
    assert answer.verdict is Verdict.DIFFERENT
    assert answer.result is not None
    assert answer.result["reason"] == "EnvelopePromised"


@pytest.mark.parametrize("fits", [True, False])
def test_siblings_do_not_take_turns_on_a_recalled_envelope(fits: bool) -> None:
    """What is recalled for the owner's run pays for no other waiting run that would preempt for it:
    two of them would preempt each other at every turn, and the owner would never start."""
    world = family(grace_ms=0)
    if not fits:
        world.apply(run("other", "d", 2))
        world.turn()
    world.apply(run("first", "b", 6), run("second", "b", 6))
    world.turn()
    world.apply(run("mine", "a", 8))
    for _ in range(20):
        world.turn(0.01)
    assert phases(world)["mine"] == ("Running" if fits else "Pending")
    assert len(entries(world, "gpu.resolve.commit")) == int(fits)
    if not fits:
        assert phases(world)["first"] == "Running", "nothing is gained by its end"
        world.plane.verbs.act("Run", "other", "cancel", author=ADMIN)
        world.turn(0.01)
        world.turn(0.01)
        assert phases(world)["mine"] == "Running"


LOAN = {"funding": {"allowBorrow": True, "sponsors": ["a"]}}


def waiting_guest(**guest: Any) -> World:
    """The owner's first run holds its envelope; a guest waits for it, and then the owner's next."""
    world = family(preemption=PreemptionPolicy())
    world.apply(run("first", "a", 8, command=["x"]))
    world.turn()
    world.apply(run("guest", **{"owner": "b", "gpus": 4, "command": ["x"], **guest}))
    world.turn(2)
    assert world.status("Run", "guest")["queue"]["position"] == 1
    return world


def end(world: World, name: str) -> None:
    world.executor.end(name, world.now_ms)
    world.turn(1 / 3600)


@pytest.mark.parametrize("guest", [{"owner": "b"}, {"owner": "c", **LOAN}])
def test_an_owner_comes_before_its_guests_on_its_own_envelope(guest: dict[str, Any]) -> None:
    """The guest was promised its start: it took 4 of 8, was recalled a second later and preempted
    after its minimum runtime, and the owner waited for that."""
    world = waiting_guest(**guest)
    world.apply(run("mine", "a", 8, command=["x"]))
    world.turn()
    end(world, "first")
    assert phases(world) == {"first": "Completed", "guest": "Pending", "mine": "Running"}
    assert entries(world, "gpu.recall") == []
    decision = next(
        entry
        for entry in entries(world, "gpu.fund")
        if entry.body["run"] == "guest" and "claimants" in entry.body["input"]
    )
    assert [row["run"] for row in decision.body["input"]["claimants"]] == ["mine"]
    assert decision.version == 2
    size = len(world.log)
    world.turn(1 / 3600)
    assert len(world.log) == size, "idle turns say nothing"
    end(world, "mine")
    assert phases(world)["guest"] == "Running"
    assert entries(world, "gpu.fund")[-1].version == 1


def test_without_preemption_a_guest_keeps_the_start_that_it_was_promised() -> None:
    """The owner's later run ends none, so a wide guest is not passed by it again and again."""
    world = waiting_guest()
    world.reconfigure(resolver="dry-run")
    world.turn()
    world.apply(run("mine", "a", 8, command=["x"]))
    world.turn()
    end(world, "first")
    assert phases(world) == {**phases(world), "guest": "Running", "mine": "Pending"}


def test_claims_of_an_owner_add_up_and_leave_the_rest() -> None:
    """Two runs of 2 and one of 9, which its envelope never pays for: a guest of 4 starts beside
    them, and the next one waits."""
    world = waiting_guest(gpus=4)
    world.apply(run("other", "b", 4, command=["x"]))
    world.apply(run("never", "a", 9, command=["x"]))
    world.apply(*(run(f"m{i}", "a", 2, command=["x"], priority=i) for i in range(2)))
    world.turn()
    end(world, "first")
    running = {name for name, phase in phases(world).items() if phase == "Running"}
    assert running == {"guest", "m0", "m1"}
    assert entries(world, "gpu.recall") == []


def test_an_owner_that_cannot_start_keeps_no_envelope_from_its_family() -> None:
    """Its run asks for a place without devices: the guest starts."""
    world = waiting_guest()
    world.apply(run("nowhere", "a", 8, command=["x"], location={"region": "east"}))
    world.turn()
    end(world, "first")
    assert phases(world)["guest"] == "Running"


def test_an_owner_that_would_delay_another_keeps_no_envelope_from_its_family() -> None:
    """Its run has no duration, and would delay a wide one; the guest ends before that starts."""
    world = family(preemption=PreemptionPolicy())
    world.apply(budget("a", "a", envelope(concurrency=4, sharing="family"), parents=["lab"]))
    world.apply(budget("d", "d", envelope(concurrency=16)))
    world.apply(run("busy", "d", 4, command=["x"], duration="3h"))
    world.apply(run("first", "a", 4, command=["x"]))
    world.turn()
    world.apply(run("wide", "d", 8, command=["x"]))
    world.turn(0.1)
    world.apply(run("guest", "b", 4, command=["x"], duration="1h"))
    world.turn(0.1)
    world.apply(run("mine", "a", 4, command=["x"]))
    world.turn()
    assert phases(world)["guest"] == "Pending"
    end(world, "first")
    assert phases(world) == {**phases(world), "guest": "Running", "mine": "Pending"}


def test_a_guest_with_other_payers_does_not_wait_for_the_owner() -> None:
    """Another sponsor pays for it; and so it starts at once where devices are free."""
    world = family(devices=16)
    world.apply(budget("d", "d", envelope(concurrency=8, lending={"allow": True, "to": ["c"]})))
    world.apply(run("first", "a", 8, command=["x"]), run("full", "d", 8, command=["x"]))
    world.turn()
    both = {"funding": {"allowBorrow": True, "sponsors": ["a", "d"]}}
    world.apply(run("guest", "c", 4, command=["x"], **both))
    world.turn(2)
    world.apply(run("mine", "a", 8, command=["x"]))
    world.turn()
    world.executor.end("full", world.now_ms)
    end(world, "first")
    assert phases(world) == {**phases(world), "guest": "Running", "mine": "Running"}
    (lease,) = world.projection.runs["guest"].leases.values()
    assert lease.budget == "d"
    entries(world, "gpu.fund")


@pytest.mark.parametrize("reserved", [True, False])
def test_a_guest_that_is_malleable_or_reserved_comes_behind_the_owner_too(reserved: bool) -> None:
    world = family(preemption=LENIENT)
    world.apply(run("first", "a", 8, command=["x"]))
    world.turn()
    elastic = {"groupGPUs": 2, "malleable": {"minTotalGPUs": 2, "stepGPUs": 2}}
    guest = run("guest", "b", 8, command=["x"], **elastic)
    if reserved:
        reserve(world, guest)
    else:
        world.apply(guest)
    world.turn(2)
    world.apply(run("mine", "a", 6, command=["x"]))
    world.turn()
    end(world, "first")
    assert phases(world) == {**phases(world), "guest": "Running", "mine": "Running"}
    assert world.projection.runs["guest"].width == 2
    assert entries(world, "gpu.recall") == []
    entries(world, "gpu.start"), entries(world, "gpu.fund")


def test_nothing_is_recalled_for_a_run_that_starts_after_others() -> None:
    """It cannot start yet, and would take the funding of its family's runs as long as it waits."""
    world = family(devices=16)
    world.apply(run("guest", "b", 4, command=["x"]), run("before", "d", 1, command=["x"]))
    world.turn()
    world.apply(run("mine", "a", 8, command=["x"], after=[{"run": "before"}]))
    world.turn(0.01)
    assert entries(world, "gpu.recall") == []
    assert world.status("Run", "guest")["funded"]
    end(world, "before")
    assert len(entries(world, "gpu.recall")) == 1


def test_guests_that_follow_each_other_do_not_keep_the_owner_waiting() -> None:
    """Short runs, each within its minimum runtime and over before the owner's promised start: they
    were paid by the envelope that the owner had taken back, again and again."""
    world = family(preemption=PreemptionPolicy())
    world.apply(run("long", "b", 1))
    world.apply(*(run(f"s{i}", "b", 1, command=["x"], duration="9m") for i in range(16)))
    world.turn()
    world.apply(run("mine", "a", 8, command=["x"]))
    world.turn(1 / 60)
    for minute in range(1, 12):
        if minute == 8:
            for i in range(7):
                world.executor.end(f"s{i}", world.now_ms)
        world.turn(1 / 60)
    assert phases(world)["mine"] == "Running"
    assert len(entries(world, "gpu.recall")) == 1
    assert entries(world, "gpu.fund")


def test_a_plan_says_that_an_owner_comes_first_on_its_own_envelope() -> None:
    """It said that the run would start now, paid by what the owner had taken back."""
    world = family(preemption=PreemptionPolicy())
    world.apply(run("long", "b", 1), run("short", "b", 7, command=["x"]))
    world.turn()
    world.apply(run("mine", "a", 8, command=["x"]))
    world.turn(1 / 60)
    end(world, "short")
    late = run("late", "b", 1, command=["x"], duration="1m")
    planned = world.plane.objects.plan(late, author=ADMIN)
    tried = world.plane.objects.apply(late, author=ADMIN, dry_run=True).preview
    world.apply(late)
    world.turn(1 / 3600)
    status = world.status("Run", "late")
    assert status["reason"] == "OwnerFirst"
    for shown in (planned, tried):
        assert shown is not None
        assert (shown["starts"], shown["funded"]) == (False, False)
        assert shown["refusal"]["shortfall_gpus"] == status["refusal"]["shortfall_gpus"] == 1
