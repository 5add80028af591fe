"""Preemption is no weapon: notice, quota, minimum runtime, cooldown; refusals say what would do."""

from typing import Any

import pytest

from fairlead.core.gpu import PreemptionPolicy
from fairlead.engine.gpu import Author, Refused
from fairlead.ledger.replay import replay, replay_ledger
from fairlead.schema.replay import Verdict
from tests.engine.gpu.resolving import phases, reservation, reserve, world_of
from tests.engine.gpu.worlds import ADMIN, ALICE, START, World, run

POLICY = PreemptionPolicy()
MINUTE = 1 / 60


def strict(**config: Any) -> World:
    return world_of(preemption=POLICY, **config)


def refusal(
    world: World, *manifests: dict[str, Any], author: Author = ALICE, **how: Any
) -> Refused:
    size = len(world.log)
    with pytest.raises(Refused) as refused:
        world.plane.objects.apply_all(list(manifests), author=author, **how)
    assert len(world.log) == size, "nothing half-applied"
    return refused.value


@pytest.mark.parametrize("dry_run", [False, True])
def test_a_reservation_needs_notice_and_a_start_in_the_future(dry_run: bool) -> None:
    world = strict()
    world.apply(run("mine", gpus=8))
    short = refusal(world, reservation("slot", "mine", 0.5), dry_run=dry_run)
    assert short.reason == "NoticeTooShort"
    assert "needs 1h notice" in short.message
    assert "earliest start that would do is 2026-01-01T01:00:00Z" in short.message
    past = refusal(world, reservation("slot", "mine", -1), author=ADMIN, dry_run=dry_run)
    assert (past.reason, "2026-01-01T00:00:00Z" in past.message) == ("StartInThePast", True)
    made = {"author": ALICE, "dry_run": dry_run}
    world.plane.objects.apply(reservation("slot", "mine", 1), **made)
    assert ("gpu.reserve" in world.kinds()) is not dry_run


def test_owners_that_may_resolve_and_operators_need_no_notice() -> None:
    for world, author in ((strict(), ADMIN), (strict(may_resolve=frozenset("a")), ALICE)):
        world.apply(run("mine", gpus=8))
        world.plane.objects.apply(reservation("slot", "mine"), author=author)
        (decision,) = [entry for entry in world.log if entry.kind == "gpu.reserve"]
        assert decision.body["input"]["exempt"]
        assert replay(world.ledger, decision).verdict is Verdict.SAME


def test_the_quota_counts_a_batch_and_not_a_move() -> None:
    world = strict()
    world.apply(*(run(f"r{i}") for i in range(6)))
    for i in range(3):
        world.plane.objects.apply(reservation(f"s{i}", f"r{i}", 2 + i), author=ALICE)
    two = [reservation(f"s{i}", f"r{i}", 9) for i in (3, 4)]
    refused = refusal(world, *two)
    assert refused.reason == "ReservationQuota"
    assert (
        "has 4 open reservations of 4; the next of them is due at 2026-01-01T02" in refused.message
    )
    assert refused.path == "manifests[1]"
    world.plane.objects.apply(two[0], author=ALICE)
    world.plane.objects.apply(reservation("s3", "r3", 5), author=ALICE)
    assert refusal(world, reservation("s3", "r3", 0.5)).reason == "NoticeTooShort"
    world.plane.objects.delete("Reservation", "s0", author=ALICE)
    world.plane.objects.apply(two[1], author=ALICE)


def test_the_start_of_a_reservation_that_comes_near_stays_as_it_is() -> None:
    world = strict()
    world.apply(run("mine", gpus=8))
    world.plane.objects.apply(reservation("slot", "mine", 1), author=ALICE)
    world.turn(0.9)
    world.plane.objects.apply(reservation("slot", "mine", 1), author=ALICE)
    world.plane.objects.apply(reservation("slot", "mine", 1.05), author=ALICE)
    assert (
        "would do is 2026-01-01T01:03:00Z" in refusal(world, reservation("slot", "mine", 1)).message
    )


def test_a_run_that_has_just_started_is_no_candidate() -> None:
    """`reserve --at +0s` preempts no run that started a second ago; it waits until one may go."""
    world = strict()
    world.apply(run("mine", "a", 8))
    world.turn()
    reserve(world, run("big", "b", 8))
    world.turn(MINUTE)
    status = world.status("Reservation", "big-slot")
    assert (status["state"], status["reason"]) == ("Blocked", "NotEnough")
    assert "the next of them is one at 2026-01-01T00:10:00Z" in status["message"]
    size = len(world.log)
    world.turn(8 * MINUTE)
    assert len(world.log) == size, "a turn in between says nothing new"
    world.turn(2 * MINUTE)
    assert phases(world) == {"big": "Running", "mine": "Pending"}
    for entry in world.log:
        if entry.kind == "gpu.deficit":
            assert replay(world.ledger, entry).verdict is Verdict.SAME
    (_, deficit) = [entry for entry in world.log if entry.kind == "gpu.deficit"]
    assert deficit.body["input"]["protection"]["min_runtime_ms"] == 600_000


def test_who_was_preempted_is_not_preempted_again_at_once() -> None:
    """Its victim cannot answer in kind, and no run goes twice within the cooldown."""
    world = strict(devices=8)
    world.apply(run("mine", "a", 8))
    world.turn()
    world.turn(1)
    reserve(world, run("big", "b", 8, duration="5m"), 1)
    world.turn()
    assert phases(world) == {"big": "Running", "mine": "Pending"}
    reserve(world, run("answer", "c", 8))
    world.turn(MINUTE)
    assert world.status("Reservation", "answer-slot")["reason"] == "NotEnough"
    world.plane.objects.delete("Reservation", "answer-slot", author=ADMIN)
    world.plane.verbs.act("Run", "answer", "cancel", author=ADMIN)
    world.turn(5 * MINUTE)
    assert phases(world)["mine"] == "Running"
    world.turn(20 * MINUTE)
    reserve(world, run("later", "c", 8), 0)
    world.turn(MINUTE)
    status = world.status("Reservation", "later-slot")
    assert (status["reason"], "2026-01-01T02:00" in status["message"]) == ("NotEnough", True)
    world.turn(40 * MINUTE)
    assert phases(world) == {**phases(world), "later": "Running", "mine": "Pending"}


def test_a_restart_by_its_own_limit_does_not_protect_a_run_again() -> None:
    """`restartPolicy: Always` with a `maxRuntime` below the minimum runtime is no way to be
    protected for ever: the first start counts."""
    world = strict()
    world.apply(run("mine", "a", 8, maxRuntime="9m", restartPolicy="Always", backoffLimit=1000))
    world.turn()
    for _ in range(2):
        world.turn(9 * MINUTE)
        world.turn(MINUTE)
    assert world.status("Run", "mine")["attempts"] == 3
    reserve(world, run("big", "b", 8), 0)
    world.turn(MINUTE)
    assert phases(world) == {"big": "Running", "mine": "Pending"}
    (deficit,) = [entry for entry in world.log if entry.kind == "gpu.deficit"]
    assert deficit.body["input"]["runs"][0]["started_ms"] == START
    assert replay(world.ledger, deficit).verdict is Verdict.SAME


def test_a_run_that_lost_its_devices_to_others_is_protected_again() -> None:
    """A preemption is not its choice; its next start counts as its first one."""
    world = strict()
    world.apply(run("mine", "a", 8))
    world.turn()
    world.turn(1)
    reserve(world, run("big", "b", 8, duration="2h"), 1)
    world.turn()
    world.turn(2.1)
    assert phases(world) == {"big": "Completed", "mine": "Running"}
    reserve(world, run("next", "b", 8), 0)
    world.turn(MINUTE)
    assert world.status("Reservation", "next-slot")["reason"] == "NotEnough"


def test_what_the_operator_frees_by_hand_is_freed() -> None:
    world = strict()
    world.apply(run("mine", "a", 8))
    world.turn()
    world.plane.resolver.resolve(flavor="H100", gpus=8, author=ADMIN)
    assert world.projection.runs["mine"].preempted_ms == START


@pytest.mark.parametrize("told", [{}, {"duration": "1s"}, {"duration": "9m"}])
def test_runs_that_follow_each_other_do_not_keep_a_reservation_waiting(
    told: dict[str, Any],
) -> None:
    """Each is too young to be preempted; without a promise the reservation would never start, and a
    duration that is too short is no way around it."""
    world = strict()
    for i in range(8):
        world.apply(run(f"s{i}", "a", command=["x"], **told))
        world.turn(MINUTE)
    reserve(world, run("big", "b", 8), 1)
    world.turn(45 * MINUTE)
    for i in range(40):
        if phases(world).get(f"s{i}") == "Running":
            world.executor.end(f"s{i}", world.now_ms)
        world.apply(run(f"s{8 + i}", "a", command=["x"], **told))
        world.turn(MINUTE)
        if phases(world)["big"] == "Running":
            break
    assert phases(world)["big"] == "Running"
    assert {found.verdict for found in replay_ledger(world.ledger)} == {Verdict.SAME}
