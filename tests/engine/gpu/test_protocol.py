"""The protocol of a fair chance: fixed beforehand, shown afterwards, never decided twice."""

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from fairlead.core.canonical import canonical
from fairlead.core.gpu import resolve
from fairlead.core.lottery import OwnerWeighting
from fairlead.engine.gpu import Author, Forbidden, NotFound, Projection, Refused
from fairlead.engine.gpu.state import OutcomeStage
from fairlead.ledger.keys import MasterEntropy, open_master
from fairlead.ledger.replay import replay
from fairlead.ledger.sqlite import SqliteLedger
from fairlead.ports.faults import PermanentFault
from fairlead.schema.border import BadInput, check_shape, parse_json
from fairlead.schema.gpu import ResolveDocument, to_conflict
from fairlead.schema.kinds import KINDS
from fairlead.schema.replay import Verdict
from tests.core.lottery.network import KEY, network, sign, signed
from tests.engine.gpu.owner_keys import OwnerKeys
from tests.engine.gpu.resolving import CHANCE, closed, outcomes, phases, reserve, world_of
from tests.engine.gpu.worlds import ADMIN, START, World, budget, envelope, node, run
from tests.ledger.memory import MemoryKeys, MemoryLedger
from verify import fairlead_verify

ANN, BOB = Author("ann", frozenset({"a"})), Author("bob", frozenset({"b"}))
CAROL = Author("carol", frozenset({"c"}))
BEACON = network(START - 300_000)


def crowded(**config: Any) -> World:
    """Two teams fill a node; a third has a reservation for half of it in an hour."""
    world = world_of(**config)
    world.apply(
        *(run(f"b{i}", owner="b", gpus=2) for i in range(2)),
        *(run(f"c{i}", owner="c", gpus=1) for i in range(4)),
    )
    world.turn()
    reserve(world, run("winner", gpus=4), hours=1)
    world.turn(0.5)
    return world


def victims(world: World) -> list[str]:
    return sorted(name for name, phase in phases(world).items() if phase == "Pending")


# -- what a tenant can check ----------------------------------------------------------------------


@pytest.mark.parametrize("cap", [False, True])
def test_an_export_is_verified_without_fairlead(cap: bool) -> None:
    """By the loser and by the public, against a kept head; any changed byte is found."""
    if cap:
        world = world_of(devices=16)
        world.apply(run("m1", owner="b", gpus=4), run("m2", owner="b", gpus=4))
        world.turn()
        kept = world.ledger.head().head
        world.apply(budget("b", "b", envelope(concurrency=4)))
        world.plane.resolver.resolve_cap("b", "west", author=ADMIN)
    else:
        world = crowded()
        kept = world.ledger.head().head
        world.turn(0.5)
    (outcome,) = outcomes(world)
    assert outcome.stage is OutcomeStage.APPLIED
    world.apply(budget("later"))
    heads = ((kept.size, kept.root),)
    data = world.plane.outcome_reports.export(outcome.seq, author=BOB, heads=heads)
    found = fairlead_verify.verify(data, list(heads))
    assert found[0] == 0, found
    public = world.plane.outcome_reports.export(outcome.seq, author=ADMIN, public=True)
    assert fairlead_verify.verify(public)[0] == 0
    for name in ("b0", "c0", "winner", "team"):
        assert f'"{name}"'.encode() not in public
    assert b"secret" not in public
    rng = random.Random(3)
    for _ in range(60):
        at = rng.randrange(len(data))
        flipped = data[:at] + bytes([data[at] ^ (1 << rng.randrange(7))]) + data[at + 1 :]
        assert fairlead_verify.verify(flipped, list(heads))[0] != 0, at


def test_exports_open_the_names_of_those_who_ask_alone() -> None:
    """Own owners, or one that is named; an admin says whose."""
    world = crowded()
    world.turn(0.5)
    seq = outcomes(world)[0].seq
    (opening,) = parse_json(world.plane.outcome_reports.export(seq, author=BOB))["openings"]
    assert opening["owner"] == "b"
    assert {"kind": "run", "parts": ["b0"]} in opening["names"]
    with pytest.raises(Forbidden):
        world.plane.outcome_reports.export(seq, author=BOB, owner="c")
    with pytest.raises(BadInput, match="say whose names"):
        world.plane.outcome_reports.export(seq, author=ADMIN)
    with pytest.raises(NotFound):
        world.plane.outcome_reports.export(1, author=BOB)
    with pytest.raises(Refused, match="entries, not"):
        world.plane.outcome_reports.export(seq, author=BOB, heads=((10**6, "ab" * 32),))
    mine, theirs = (world.plane.outcome_reports.get(seq, author=each) for each in (BOB, ADMIN))
    assert set(mine["names"].values()) < set(theirs["names"].values())
    assert (mine["run"], theirs["run"]) == (None, "winner")
    assert mine["result"]["resolved"] is True
    assert [row["outcome"] for row in world.plane.outcome_reports.page(100)["items"]] == [seq]


def test_explain_says_why_a_run_was_cut() -> None:
    """By which outcome, with which odds, and whether chance or rules decided."""
    world = crowded()
    world.turn(0.5)
    (loser, *_) = victims(world)
    cut = world.plane.reports.explain("Run", loser)["cut"]
    assert (cut["outcome"], cut["drawn"], cut["kinds"]) == (
        outcomes(world)[0].seq,
        True,
        ["RandomPreempt"],
    )
    assert cut["oneIn"] in (4, 8)
    assert cut["label"] == "operator-trusted"
    assert world.plane.reports.explain("Run", "winner")["cut"] is None


def test_the_recorded_decision_is_that_of_decide() -> None:
    """`fairlead decide gpu.resolve` on the frozen conflict and the shown seed gives the result."""
    world = crowded()
    world.turn(0.5)
    commit, draw = (
        next(entry for entry in world.log if entry.kind == kind)
        for kind in ("gpu.resolve.commit", "gpu.resolve.draw")
    )
    frozen = parse_json(world.ledger.blob_get(commit.body["conflict_digest"]))
    decided = KINDS["gpu.resolve"].run(canonical({**frozen, "seed": draw.body["seed"]})).result
    assert canonical(decided) == world.ledger.blob_get(draw.body["result_digest"])
    assert commit.input_digest == decided["conflict_digest"]
    assert replay(world.ledger, draw).verdict is Verdict.SAME
    assert replay(world.ledger, commit).verdict is Verdict.UNKNOWN
    lie = structs.replace(draw, body={**draw.body, "seed": "00" * 32})
    assert replay(world.ledger, lie).verdict is Verdict.DIFFERENT
    for body in ({"seed": None}, {"result_digest": "00" * 32}, {"commit_seq": 10**6}):
        unknown = structs.replace(draw, body={**draw.body, **body})
        assert replay(world.ledger, unknown).verdict is Verdict.UNKNOWN


# -- chance ---------------------------------------------------------------------------------------


def test_a_signed_nonce_is_in_the_seed_and_is_used_once() -> None:
    """Of owners with a stake alone; only who has the owner's key gives one."""
    world = crowded()
    bob, ann = OwnerKeys(world, "b", BOB), OwnerKeys(world, "a", ANN)
    bob.register()
    bob.give("00ff")
    ann.register()
    ann.give("aa")
    plain = crowded()
    world.turn(0.5)
    plain.turn(0.5)
    (outcome,) = outcomes(world)
    assert outcome.label == "owner-nonced"
    (commit,) = [entry for entry in world.log if entry.kind == "gpu.resolve.commit"]
    assert [each["nonce"] for each in commit.body["nonces"]] == ["00ff"]
    given = world.projection.resolver.signed_nonces
    assert {owner: given[owner].used for owner in given} == {"a": False, "b": True}
    data = world.plane.outcome_reports.export(outcome.seq, author=BOB)
    found = fairlead_verify.verify(data, owner_keys=[bob.public.hex()])
    assert found.account[-1] == "Everything holds; this outcome is owner-nonced."
    other = world.plane.outcome_reports.export(outcome.seq, author=CAROL)
    assert fairlead_verify.verify(other).account[-1].endswith("operator-trusted.")
    seeds = [
        next(e for e in each.log if e.kind == "gpu.resolve.draw").body["seed"]
        for each in (world, plain)
    ]
    assert seeds[0] != seeds[1]


def test_events_open_no_pseudonym_by_its_nonce() -> None:
    """A public export has each nonce beside a pseudonym; events have each owner, and no nonce."""
    world = crowded()
    bob = OwnerKeys(world, "b", BOB)
    bob.register()
    bob.give("00ff" * 8)
    world.turn(0.5)
    told = world.plane.events.read(0, 1_000)
    (given,) = [event for event in told if event["kind"] == "gpu.resolve.nonce"]
    assert (given["owner"], given["body"]) == ("b", {"owner": "b", "size": given["body"]["size"]})
    (commit,) = [event for event in told if event["kind"] == "gpu.resolve.commit"]
    assert [each["nonce"] for each in commit["body"]["nonces"]] == ["00ff" * 8]
    assert commit["body"]["nonces"][0]["owner"].startswith("o-")
    (case,) = [event for event in told if event["kind"] == "gpu.resolve.case"]
    assert "nonce_owners" not in case["body"]
    others = [event for event in told if event is not commit]
    assert b"00ff00ff" not in canonical(others)


def test_owner_weighting_is_committed_to_drawn_by_and_checked() -> None:
    """Tokens are equal where the operator said so before the conflict; not by a later setting."""
    world = crowded(owner_weighting=OwnerWeighting.TOKENS, beacon=BEACON)
    shown = world.plane.resolver.preview("Reservation", "winner-slot")
    assert {row["oneIn"] for row in shown["atRisk"]} == {6}
    world.turn(0.5)
    (outcome,) = outcomes(world)
    commit = next(entry for entry in world.log if entry.kind == "gpu.resolve.commit")
    assert (commit.body["owner_weighting"], commit.version) == ("tokens", 2)
    told = world.plane.outcome_reports.get(outcome.seq, author=ADMIN)
    assert told["ownerWeighting"] == "tokens"
    assert {row["one_in"] for row in told["tokens"]} == {6}
    world.config = replace(world.config, owner_weighting=OwnerWeighting.OWNERS)
    world.plane = world.open()
    world.plane.contributions.add_beacon(*signed(outcome.beacon), author=ADMIN)
    assert phases(world)["winner"] == "Running"
    draw = next(entry for entry in world.log if entry.kind == "gpu.resolve.draw")
    conflict = to_conflict(
        check_shape(
            {**parse_json(world.ledger.blob_get(outcome.conflict_digest)), "seed": "00" * 32},
            ResolveDocument,
        )
    )
    seed = bytes.fromhex(draw.body["seed"])
    expected = resolve(conflict, seed, owner_weighting=OwnerWeighting.TOKENS)
    recorded = parse_json(world.ledger.blob_get(draw.body["result_digest"]))
    assert [each["token"] for each in recorded["draws"]] == [
        draw.token for _, draw in expected.draws()
    ]
    assert replay(world.ledger, draw).verdict is Verdict.SAME
    lie = structs.replace(draw, version=3)
    assert replay(world.ledger, lie).verdict is Verdict.DIFFERENT
    verdict = fairlead_verify.verify(world.plane.outcome_reports.export(outcome.seq, author=BOB))
    assert verdict.code == 0, verdict
    assert any(line.startswith("Every run was as likely") for line in verdict.account)


def test_owners_are_equal_unless_it_is_said() -> None:
    """The commitment says so; one from before it could be said means the same."""
    world = crowded()
    world.turn(0.5)
    (outcome,) = outcomes(world)
    commit = next(entry for entry in world.log if entry.kind == "gpu.resolve.commit")
    assert (commit.body["owner_weighting"], commit.version) == ("owners", 1)
    early = {key: value for key, value in commit.body.items() if key != "owner_weighting"}
    projection = Projection()
    for entry in world.ledger.entries(0, commit.seq - 1):
        projection.apply(entry)
    projection.apply(structs.replace(commit, body=early))
    assert projection.resolver.outcomes[outcome.seq].owner_weighting is OwnerWeighting.OWNERS


def test_an_outcome_waits_for_its_beacon() -> None:
    """Nobody is cut and nothing starts in between; the value decides, and is supplied once."""
    world = crowded(beacon=BEACON)
    world.turn(0.5)
    (outcome,) = outcomes(world)
    assert (outcome.stage, victims(world)) == (OutcomeStage.COMMITTED, [])
    assert outcome.beacon == BEACON.round_after(world.now_ms)
    status = world.status("Reservation", "winner-slot")
    assert (status["state"], status["outcome"]) == ("Pending", outcome.seq)
    world.turn(0.001)
    assert world.status("Reservation", "winner-slot")["reason"] == "Resolving"
    with pytest.raises(Refused, match=f"being preempted for it, by outcome {outcome.seq}"):
        world.plane.resolver.preview("Reservation", "winner-slot")
    with pytest.raises(Refused, match="not over"):
        world.plane.resolver.resolve(flavor="H100", gpus=1, author=ADMIN)
    number = outcome.beacon.round
    supply = world.plane.contributions.add_beacon
    with pytest.raises(Forbidden):
        supply("drand", number, sign(number), author=BOB)
    with pytest.raises(BadInput, match="in hex"):
        supply("drand", number, "", author=ADMIN)
    with pytest.raises(BadInput, match="is not the signature of round"):
        supply("drand", number, sign(number - 1), author=ADMIN)
    with pytest.raises(BadInput, match="no network is known"):
        supply("other", number, sign(number), author=ADMIN)
    supply("drand", number - 1, sign(number - 1), author=ADMIN)
    assert victims(world) == []
    supply(*signed(outcome.beacon), author=ADMIN)
    supply(*signed(outcome.beacon), author=ADMIN)
    assert phases(world)["winner"] == "Running"
    assert outcomes(world)[0].label == "beacon"
    data = world.plane.outcome_reports.export(outcome.seq, author=BOB)
    found = fairlead_verify.verify(data, networks=[KEY])
    assert found.account[-1] == "Everything holds; this outcome is beacon."
    assert fairlead_verify.verify(data).account[-1].endswith("operator-trusted.")


def test_a_commitment_that_waits_holds_others_for_a_while_only() -> None:
    """What is free is meant for the winner; but an absent beacon does not stop the lab."""
    world = crowded(beacon=BEACON)
    world.turn(0.5)
    world.plane.verbs.act("Run", "b0", "cancel", author=ADMIN)
    world.apply(run("small", owner="c"))
    world.turn(0.01)
    assert phases(world)["small"] == "Pending"
    world.turn(0.1)
    assert phases(world)["small"] == "Running"


def test_an_operator_voids_what_is_never_revealed() -> None:
    """It discloses the entropy; the next one has the same luck, the reservation stays put."""
    world = crowded(beacon=BEACON)
    world.turn(0.5)
    (outcome,) = outcomes(world)
    with pytest.raises(Forbidden):
        world.plane.outcomes.void(outcome.seq, "why not", author=BOB)
    with pytest.raises(BadInput, match="must say why"):
        world.plane.outcomes.void(outcome.seq, " ", author=ADMIN)
    world.plane.outcomes.void(outcome.seq, "the beacon is down", author=ADMIN)
    final = next(entry for entry in world.log if entry.kind == "gpu.resolve.void")
    assert (final.author, final.body["reason"]) == ("root", "the beacon is down")
    assert (final.body["seed"], final.body["result_digest"]) == (None, None)
    assert final.body["entropy"] == CHANCE.entropy(outcome.chain, 0).hex()
    with pytest.raises(Refused, match="cannot be voided: it is already void"):
        world.plane.outcomes.void(outcome.seq, "again", author=ADMIN)
    assert (
        fairlead_verify.verify(world.plane.outcome_reports.export(outcome.seq, author=BOB))[0] == 0
    )
    world.turn(0.01)
    status = world.status("Reservation", "winner-slot")
    assert (status["state"], status["reason"]) == ("Blocked", "OutcomeVoided")
    assert victims(world) == []
    world.config = replace(world.config, beacon=None)
    world.plane = world.open()
    place = {"region": "west", "cluster": "a", "domain": "d1"}
    world.plane.resolver.resolve(flavor="H100", gpus=1, location=place, author=ADMIN)
    last = outcomes(world)[-1]
    assert (last.chain, last.k, last.turn, last.beacon) == (outcome.chain, 1, 0, outcome.beacon)
    world.plane.contributions.add_beacon(*signed(outcome.beacon), author=ADMIN)
    last = outcomes(world)[-1]
    assert (last.stage, last.label) == (OutcomeStage.APPLIED, "operator-trusted")
    assert fairlead_verify.verify(world.plane.outcome_reports.export(last.seq, author=BOB))[0] == 0


def test_a_void_with_a_known_value_says_what_the_outcome_would_have_been() -> None:
    """Its winner was cancelled meanwhile: nobody is cut, and everything is shown."""
    world = crowded(beacon=BEACON)
    world.turn(0.5)
    (outcome,) = outcomes(world)
    world.plane.verbs.act("Run", "winner", "cancel", author=ADMIN)
    world.plane.contributions.add_beacon(*signed(outcome.beacon), author=ADMIN)
    (outcome,) = outcomes(world)
    assert (outcome.stage, outcome.reason) == (OutcomeStage.VOID, "the run that it was for is gone")
    assert victims(world) == []
    assert closed(world) == {}
    data = world.plane.outcome_reports.export(outcome.seq, author=BOB)
    assert parse_json(data)["result"]["resolved"] is True
    assert fairlead_verify.verify(data)[0] == 0


@pytest.mark.parametrize("how", ["reservation", "fits", "unpaid"])
def test_nobody_is_cut_for_a_run_that_will_not_start(how: str) -> None:
    """The reservation is gone, there is room by now, or its budget pays no longer: a void."""
    world = crowded(beacon=BEACON)
    world.turn(0.5)
    (outcome,) = outcomes(world)
    if how == "reservation":
        world.plane.objects.delete("Reservation", "winner-slot", author=ADMIN)
    elif how == "fits":
        for name in ("b0", "b1"):
            world.plane.verbs.act("Run", name, "cancel", author=ADMIN)
    else:
        world.apply(budget("a", "a", envelope(concurrency=1)))
    before = len(closed(world))
    world.plane.contributions.add_beacon(*signed(outcome.beacon), author=ADMIN)
    assert outcomes(world)[0].stage is OutcomeStage.VOID
    assert len(closed(world)) == before
    world.turn(0.001)
    if how == "fits":
        assert phases(world)["winner"] == "Running"


def test_a_lost_master_secret_is_a_fault_and_not_another_draw(tmp_path: Path) -> None:
    """What was fixed with one secret is not shown with another, and nothing is fixed with it."""
    world = crowded(beacon=BEACON)
    world.turn(0.5)
    (outcome,) = outcomes(world)
    kept, world.chance = world.chance, MasterEntropy(b"x" * 32)
    world.plane = world.open()
    assert "not the one" in world.plane.faults["*chance"]
    world.plane.contributions.add_beacon(*signed(outcome.beacon), author=ADMIN)
    with pytest.raises(Refused, match="nothing can be disclosed"):
        world.plane.outcomes.void(outcome.seq, "the key is lost", author=ADMIN)
    world.apply(
        budget("d", "d", envelope(flavor="A100")),
        node("n2", 1, flavor="A100"),
        run("other", owner="d", flavor="A100"),
    )
    world.turn(0.1)
    assert (outcomes(world)[0].stage, victims(world)) == (OutcomeStage.COMMITTED, [])
    assert phases(world)["other"] == "Running", "the rest goes on without it"
    assert "d" not in world.projection.resolver.owners
    world.chance = kept
    world.plane = world.open()
    world.turn(0.1)
    assert phases(world)["winner"] == "Running"
    assert "d" in world.projection.resolver.owners
    data = world.plane.outcome_reports.export(outcome.seq, author=BOB)
    assert fairlead_verify.verify(data)[0] == 0
    first, second = open_master(tmp_path / "keys"), open_master(tmp_path / "keys")
    assert first.owner_secret("a") == second.owner_secret("a") != first.owner_secret("b")
    assert first.entropy("ab" * 32, 1) != first.entropy("ab" * 32, 2)
    (tmp_path / "keys" / "chance.key").chmod(0o644)
    with pytest.raises(PermanentFault, match="owner alone"):
        open_master(tmp_path / "keys")
    with pytest.raises(PermanentFault, match="32 bytes"):
        MasterEntropy(b"short")


# -- crashes --------------------------------------------------------------------------------------


class Crash(BaseException):
    """The process is gone."""


class Mortal:
    """A ledger whose process dies before, or right after, a given append."""

    def __init__(self, ledger: Any) -> None:
        self._ledger, self.lives, self.before = ledger, 10**9, True

    def append(self, drafts: Any, **named: Any) -> Any:
        self.lives -= 1
        if self.lives < 0 and self.before:
            raise Crash
        done = self._ledger.append(drafts, **named)
        if self.lives < 0:
            raise Crash
        return done

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ledger, name)


def story(world: World) -> None:
    """From an empty ledger to a winner that runs, as far as the process lives."""
    world.turn(0.5)
    world.turn(0.01)


@pytest.mark.parametrize("before", [True, False])
def test_a_crash_at_any_point_does_not_change_which_runs_are_preempted(before: bool) -> None:
    """Killed at every append between commit and applied; the next process goes on with the same."""
    calm = crowded()
    story(calm)
    expected, marks = victims(calm), [e.kind for e in calm.log if e.kind.startswith("gpu.resolve")]
    assert expected
    deaths = 0
    for lives in range(40):
        ledger = Mortal(MemoryLedger(time_ms=START))
        world = crowded(ledger=ledger)
        ledger.lives, ledger.before = lives, before
        try:
            story(world)
        except Crash:
            deaths += 1
        else:
            break
        ledger.lives = 10**9
        world.plane = world.open()
        world.turn()
        world.turn(0.5)
        world.turn(0.01)
        assert victims(world) == expected, lives
        assert phases(world)["winner"] == "Running"
        assert [e.kind for e in world.log if e.kind.startswith("gpu.resolve")] == marks
        cited = [outcome for _, outcome in closed(world).values()]
        assert len(set(cited)) == 1
    assert deaths >= 4


def test_two_planes_on_one_ledger_make_one_outcome(tmp_path: Path) -> None:
    """Both want to activate the same reservation; the second goes on with the first one's."""
    ledger = SqliteLedger.open(tmp_path / "l.db", MemoryKeys())
    world = crowded(ledger=ledger)
    other = world.open()
    world.now_ms += 3_600_000
    other.reconcile(world.now_ms)
    world.turn()
    assert [entry.kind for entry in world.log].count("gpu.resolve.commit") == 1
    assert phases(world)["winner"] == "Running"
    assert ledger.verify().ok
    ledger.close()


def test_several_scopes_have_one_chain() -> None:
    """The smallest scope that covers the deficit: a domain, else a cluster, else everywhere."""
    world = world_of(devices=4, gpus=64)
    for i in range(2, 4):
        place = {"region": "west", "cluster": "a", "domain": f"d{i}"}
        world.apply(node(f"n{i}", 4, location=place))
    far = {"region": "east", "cluster": "z", "domain": "d9"}
    world.apply(node("n9", 4, location=far))
    world.apply(*(run(f"r{i}", owner="bc"[i % 2], gpus=2) for i in range(8)))
    world.turn()
    for size, location in ((2, 3), (6, 2), (14, 0)):
        reserve(world, run(f"w{size}", gpus=size))
        world.turn(0.01)
        scope = parse_json(world.ledger.blob_get(outcomes(world)[-1].conflict_digest))["scope"]
        assert len(scope["location"]) == location, (size, scope)
        world.plane.verbs.act("Run", f"w{size}", "cancel", author=ADMIN)
        world.turn(0.01)
    assert len({each.chain for each in outcomes(world)}) == 1
    assert [each.k for each in outcomes(world)] == [0, 1, 2]
