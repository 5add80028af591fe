"""Widths, groups, spares and funding are recorded decisions: applied as decided, found if bent."""

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from fairlead.core.canonical import digest
from fairlead.engine.gpu.state import OutcomeStage
from fairlead.ledger.replay import replay
from fairlead.ports.ledger import Entry
from fairlead.schema.replay import Verdict
from tests.core.lottery.network import signed
from tests.engine.gpu.resolving import outcomes, phases, world_of
from tests.engine.gpu.test_grow import ELASTIC, shrunk
from tests.engine.gpu.test_protocol import BEACON, crowded
from tests.engine.gpu.worlds import ADMIN, World, budget, envelope, node, run

CHOICES = ("gpu.start", "gpu.resize", "gpu.refund")


def choices(world: World, kind: str, after: int = 0) -> list[Entry]:
    found = [entry for entry in world.log if entry.kind == kind and entry.seq > after]
    assert {replay(world.ledger, entry).verdict for entry in found} <= {Verdict.SAME}
    return found


def entries_after(world: World, decision: Entry, *kinds: str) -> list[dict[str, Any]]:
    """Bodies of these kinds behind a decision, up to the next one of its kind."""
    bodies = []
    for entry in world.log:
        if entry.seq > decision.seq and entry.kind == decision.kind:
            break
        if entry.seq > decision.seq and entry.kind in kinds:
            bodies.append(entry.body)
    return bodies


def narrow_start() -> World:
    """Five devices for a run of two to eight, which starts with four."""
    world = world_of(devices=5)
    world.apply(run("elastic", owner="b", gpus=8, **ELASTIC))
    world.turn()
    return world


def grown() -> World:
    world = shrunk(duration="9h")
    world.turn(1)
    return world


def shrunk_by_its_owner() -> World:
    world = world_of(devices=8)
    world.apply(run("elastic", owner="b", gpus=8, **ELASTIC))
    world.turn()
    world.plane.verbs.act("Run", "elastic", "shrink", author=ADMIN, width=4)
    return world


def swapped() -> World:
    world = World()
    world.apply(budget("a"), node("n1", 1), node("n2", 1), node("n3", 2))
    world.apply(run("r", gpus=2, groupGPUs=2, sparesPerGroup=2))
    world.turn()
    world.plane.verbs.act("Node", "n3", "fail", author=ADMIN)
    return world


def demoted() -> World:
    world = World()
    hours = {"maxGPUHours": 100, "recurrence": "daily"}
    world.apply(budget("a", "a", envelope(concurrency=8, **hours)), node("n1", 8))
    world.apply(run("old", gpus=2), run("new", gpus=3, duration="9h"))
    world.turn()
    world.turn(1)
    world.apply(budget("a", "a", envelope(concurrency=3, **hours)))
    return world


def test_a_narrower_start_is_decided_before_its_funding_and_placement() -> None:
    """The whole search replays; the leases are the devices that it chose."""
    world = narrow_start()
    (decision,) = choices(world, "gpu.start")
    output = decision.body["output"]
    assert (output["reason"], output["gpus"]) == ("Starts", 4)
    assert decision.body["input"]["request"]["gpus"] == 8
    opened = entries_after(world, decision, "lease.open")
    chosen = [slot for group in output["placement"]["groups"] for slot in group["active"]]
    assert [slot for body in opened for slot in body["slots"]] == chosen
    (fund,) = entries_after(world, decision, "gpu.fund")
    assert fund["output"] == output["funding"]


def test_a_start_at_the_full_width_needs_no_search_and_no_entry() -> None:
    """Funding and placement say all there is: a rigid run, and a malleable one that fits."""
    world = world_of(devices=9)
    world.apply(run("rigid", gpus=1), run("elastic", owner="b", gpus=8, **ELASTIC))
    world.turn()
    assert set(phases(world).values()) == {"Running"}
    assert choices(world, "gpu.start") == []


def test_growth_is_decided_with_the_groups_that_come_back() -> None:
    """Under their numbers, as the leases have them."""
    world = grown()
    decision = choices(world, "gpu.start")[-1]
    assert (decision.body["cause"], decision.body["output"]["groups"]) == ("growth", [2, 3])
    opened = entries_after(world, decision, "lease.open")
    assert [body["group"] for body in opened] == [2, 3]
    growth = decision.body["input"]["growth"]
    assert growth == {"width": 4, "grows_to": 8, "groups": [0, 1]}


def test_a_shrink_takes_the_leases_that_were_decided() -> None:
    world = shrunk_by_its_owner()
    (decision,) = choices(world, "gpu.resize")
    ended = {row["lease"]: row["reason"] for row in decision.body["output"]["ended"]}
    (cut,) = entries_after(world, decision, "run.cut")
    assert cut["leases"] == ended
    assert len(ended) == 2


def test_spares_take_over_as_decided() -> None:
    """What ends and begins is the decision's; a gang without spares waits by one, too."""
    world = swapped()
    (decision,) = choices(world, "gpu.resize")
    output = decision.body["output"]
    closed = entries_after(world, decision, "lease.close")
    assert [(body["lease"], body["reason"]) for body in closed] == [
        (row["lease"], row["reason"]) for row in output["ended"]
    ]
    opened = entries_after(world, decision, "lease.open")
    assert [body["slots"] for body in opened] == [row["slots"] for row in output["begun"]]
    world.plane.verbs.act("Node", "n1", "fail", author=ADMIN)
    last = choices(world, "gpu.resize")[-1]
    assert last.body["output"]["reason"] == "NoSpares"
    assert phases(world) == {"r": "Pending"}


def test_funding_is_lost_and_regained_by_decisions() -> None:
    """A lowered cap demotes the newest, a raised one restores it, from the recorded accounts."""
    world = demoted()
    (decision,) = choices(world, "gpu.refund")
    (lost,) = entries_after(world, decision, "lease.unfunded")
    (row,) = decision.body["output"]["unfunded"]
    assert (lost["lease"], lost["at_ms"], lost["kind"]) == (row["lease"], row["at_ms"], "envelope")
    world.turn(1)
    world.apply(budget("a", "a", envelope(concurrency=8)))
    last = choices(world, "gpu.refund")[-1]
    (again,) = entries_after(world, last, "lease.funded")
    assert last.body["output"] == {"unfunded": [], "funded": [again["lease"]]}
    size = len(choices(world, "gpu.refund"))
    world.turn(0.1)
    assert len(choices(world, "gpu.refund")) == size, "nothing changed, and nothing is said"


@pytest.mark.parametrize(
    ("how", "reason"), [("draw", "StartsLater"), ("fits", "Starts"), ("unfunded", "NotFunded")]
)
def test_a_draw_or_a_void_follows_from_a_recorded_decision(how: str, reason: str) -> None:
    """In the same batch, before it: whether the winner starts on what is freed."""
    world = crowded(beacon=BEACON)
    world.turn(0.5)
    (outcome,) = outcomes(world)
    if how == "fits":
        for name in ("b0", "b1"):
            world.plane.verbs.act("Run", name, "cancel", author=ADMIN)
    elif how == "unfunded":
        world.apply(budget("a", "a", envelope(concurrency=1)))
    world.plane.contributions.add_beacon(*signed(outcome.beacon), author=ADMIN)
    decision = [row for row in choices(world, "gpu.start") if row.body["cause"] == "draw"][-1]
    assert (decision.body["output"]["reason"], decision.reasons) == (reason, (reason,))
    (behind,) = [entry for entry in world.log if entry.seq == decision.seq + 1]
    assert behind.kind == ("gpu.resolve.draw" if how == "draw" else "gpu.resolve.void")
    assert (outcomes(world)[0].stage is OutcomeStage.VOID) == (how != "draw")
    first = choices(world, "gpu.start")[0]
    assert (first.body["cause"], first.body["output"]["reason"]) == ("reservation", "NoDevices")
    deficit = next(entry for entry in world.log if entry.kind == "gpu.deficit")
    assert deficit.body["input"]["demand"]["gang"] == first.body["output"]["gang"]


def test_a_reservation_that_is_not_funded_cites_its_decision_once() -> None:
    world = crowded()
    world.apply(budget("a", "a", envelope(concurrency=1)))
    for _ in range(3):
        world.turn(0.5)
    (decision,) = choices(world, "gpu.start")
    (change,) = entries_after(world, decision, "reservation.state")[:1]
    refusal = decision.body["output"]["funding"]["refusal"]
    assert (change["state"], change["reason"]) == ("Blocked", refusal["code"])


@pytest.mark.parametrize("kind", ["gpu.resolve.commit", "reservation.state"])
def test_what_a_reservation_lacks_is_asked_again_after_a_lost_race(kind: str) -> None:
    """Another replica lowers the budget just before: the entry is about what is so then."""
    world = crowded(resolver="enforce" if kind == "gpu.resolve.commit" else "dry-run")
    other, append = world.open(), world.ledger.append
    edits = [budget("a", "a", envelope(concurrency=1))]

    def overtaken(drafts: Any, *, expected_size: int | None = None) -> Any:
        if edits and any(draft.kind == kind for draft in drafts):
            other.objects.apply(edits.pop(), author=ADMIN)
        return append(drafts, expected_size=expected_size)

    world.ledger.append = overtaken  # type: ignore[method-assign]
    world.turn(3600)
    world.turn(1)
    assert not edits
    (decision,) = choices(world, "gpu.start")
    assert decision.body["output"]["reason"] == "NotFunded"
    assert not outcomes(world)


def wider(output: dict[str, Any]) -> dict[str, Any]:
    return {**output, "gpus": output["gpus"] + 2}


def other_groups(output: dict[str, Any]) -> dict[str, Any]:
    return {**output, "groups": [1, 2]}


def other_leases(output: dict[str, Any]) -> dict[str, Any]:
    return {**output, "ended": output["ended"][:-1]}


def other_devices(output: dict[str, Any]) -> dict[str, Any]:
    first, *rest = output["begun"]
    return {**output, "begun": [{**first, "slots": ["n9#0"]}, *rest]}


def nobody(output: dict[str, Any]) -> dict[str, Any]:
    return {**output, "unfunded": []}


@pytest.mark.parametrize(
    ("made", "kind", "bend"),
    [
        (narrow_start, "gpu.start", wider),
        (grown, "gpu.start", other_groups),
        (shrunk_by_its_owner, "gpu.resize", other_leases),
        (swapped, "gpu.resize", other_devices),
        (demoted, "gpu.refund", nobody),
    ],
)
def test_a_bent_choice_is_found(
    made: Callable[[], World], kind: str, bend: Callable[[dict[str, Any]], dict[str, Any]]
) -> None:
    """Another output, or an input that is not the one of its digest; also with the digest bent."""
    world = made()
    entry = choices(world, kind)[-1]
    body = entry.body
    bent = replace(entry, body={**body, "output": bend(body["output"])})
    assert replay(world.ledger, bent).verdict is Verdict.DIFFERENT
    key = {"gpu.start": "nodes", "gpu.resize": "leases", "gpu.refund": "accounts"}[kind]
    input = {**body["input"], key: []}
    other = replace(entry, body={**body, "input": input})
    assert replay(world.ledger, other).verdict is Verdict.DIFFERENT
    forged = replace(other, input_digest=digest(input))
    assert replay(world.ledger, forged).verdict is Verdict.DIFFERENT
