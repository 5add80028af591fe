"""An operator tries to steer a draw and keep its label: each of these once worked."""

from typing import Any

import pytest

from fairlead.engine.gpu import Author, Forbidden, NotFound, Refused
from fairlead.engine.gpu.state import OutcomeStage
from fairlead.schema.border import BadInput, parse_json
from tests.core.lottery.network import KEY, signed
from tests.engine.gpu.owner_keys import OwnerKeys
from tests.engine.gpu.resolving import outcomes, phases, world_of
from tests.engine.gpu.test_protocol import ANN, BEACON, BOB, crowded, victims
from tests.engine.gpu.worlds import ADMIN, World, node, run
from verify import fairlead_verify

MALLORY = Author("mallory", frozenset({"m"}), admin=True)
TRIES = 9


def resolved(world: World, **place: str) -> dict[str, Any]:
    """The body of the draw of a resolve by hand, which preempts one of two."""
    world.plane.resolver.resolve(flavor="H100", gpus=1, location=place, author=ADMIN)
    draws = [entry.body for entry in world.log if entry.kind == "gpu.resolve.draw"]
    return dict(draws[-1])


def contested(**labels: str) -> World:
    """Two teams with a run each on one node."""
    world = world_of(devices=4, teams="bc")
    place = {"region": "west", "cluster": "a", "domain": "d1", **labels}
    world.apply(node("n1", 4, location=place))
    world.apply(run("b0", owner="b", gpus=2), run("c0", owner="c", gpus=2))
    world.turn()
    return world


# -- nonces of other owners -----------------------------------------------------------------------


def test_nobody_gives_a_nonce_for_another_owner() -> None:
    """Not an admin, not with a key of their own, and not with one that was signed before."""
    world = crowded()
    bob = OwnerKeys(world, "b", BOB)
    mallory = OwnerKeys(world, "b", MALLORY, seed=2)
    with pytest.raises(Forbidden, match="not bound"):
        mallory.register()
    with pytest.raises(Refused, match="has no key"):
        mallory.give("00")
    bob.register()
    with pytest.raises(Refused, match="needs the signature of that one"):
        mallory.register(author=BOB)
    with pytest.raises(BadInput, match="is not made with key"):
        mallory.register(approval=mallory.sign_key(mallory.public), author=BOB)
    with pytest.raises(BadInput, match="is not made with key"):
        mallory.give("00")
    used = world.projection.seq
    bob.give("00ff", size=used)
    for tried in range(TRIES):
        with pytest.raises(BadInput, match="is not made with key"):
            mallory.give(f"{tried:02x}")
    world.turn(0.5)
    (outcome,) = outcomes(world)
    assert outcome.label == "owner-nonced"
    with pytest.raises(BadInput, match="checkpoint after the last nonce"):
        bob.give("00ff", size=used, author=MALLORY)  # the operator has its signature
    data = world.plane.outcome_reports.export(outcome.seq, author=BOB)
    assert fairlead_verify.verify(data, owner_keys=[bob.public.hex()]).code == 0
    assert fairlead_verify.verify(data, owner_keys=[mallory.public.hex()]).code == 1


def test_a_key_is_replaced_with_the_one_before_alone() -> None:
    """And a request that is not well formed, of another owner or of nobody, is refused."""
    world = crowded()
    bob, again = OwnerKeys(world, "b", BOB), OwnerKeys(world, "b", BOB, seed=2)
    bob.register()
    with pytest.raises(BadInput, match="approval: must be"):
        again.register(approval="ab")
    again.register(approval=bob.sign_key(again.public))
    with pytest.raises(BadInput, match="is not made with key"):
        bob.give("00")
    again.give("00")
    with pytest.raises(Forbidden):
        again.give("00", author=ANN)
    with pytest.raises(NotFound):
        OwnerKeys(world, "nobody", Author("x", frozenset({"nobody"}))).register()
    contributions = world.plane.contributions
    for nonce, signature in (("xyz", "ab" * 64), ("00", "ab")):
        with pytest.raises(BadInput, match="in hex"):
            contributions.add_nonce("b", nonce, size=1, signature=signature, author=BOB)
    for public, signature in (("ab", "ab" * 64), ("ab" * 32, "ab")):
        with pytest.raises(BadInput, match="in hex"):
            contributions.add_key("b", public, signature=signature, author=BOB)


# -- another place, another label -----------------------------------------------------------------


def test_another_place_gets_no_other_seed() -> None:
    """The same runs are at risk in every scope that holds them all; there is one sequence."""
    full = {"region": "west", "cluster": "a", "domain": "d1"}
    places = [dict(list(full.items())[:size]) for size in range(4)] + [{"domain": "d1"}]
    draws = [resolved(contested(), **place) for place in places]
    assert len({draw["seed"] for draw in draws}) == 1
    assert len({draw["chain"] for draw in draws}) == 1


def test_a_label_gets_no_other_seed_and_is_not_in_what_is_frozen() -> None:
    """Whatever the operator calls a rack."""
    found = set()
    for number in range(TRIES):
        world = contested(rack=str(number))
        found.add((resolved(world)["seed"], *victims(world)))
        conflict = parse_json(world.ledger.blob_get(outcomes(world)[0].conflict_digest) or b"")
        assert all(lease["location"] == {} for lease in conflict["leases"])
    assert len(found) == 1


def test_a_name_gets_no_other_seed() -> None:
    """Whatever a sock puppet calls its runs: the owner stage does not change."""
    found = set()
    for number in range(TRIES):
        world = world_of(devices=4, teams="bc")
        world.apply(run("b0", owner="b", gpus=2), run(f"c{number}", owner="c", gpus=2))
        world.turn()
        draw = resolved(world)
        result = parse_json(world.ledger.blob_get(draw["result_digest"]) or b"")
        found.add((draw["seed"], result["draws"][0]["owner"]))
    assert len(found) == 1


# -- voids ----------------------------------------------------------------------------------------


def test_a_void_is_no_second_draw() -> None:
    """Voided before its value was recorded, the next has the same round and so the same result."""
    honest, steered = (crowded(beacon=BEACON) for _ in range(2))
    for world in (honest, steered):
        world.turn(0.5)
    (outcome,) = outcomes(honest)
    honest.plane.contributions.add_beacon(*signed(outcome.beacon), author=ADMIN)
    for tried in range(3):
        steered.plane.outcomes.void(outcomes(steered)[-1].seq, "why not", author=ADMIN)
        steered.apply(run(f"x{tried}", gpus=4))
        steered.plane.resolver.start_run(f"x{tried}", ADMIN)
        assert outcomes(steered)[-1].stage is OutcomeStage.COMMITTED
    steered.plane.contributions.add_beacon(*signed(outcome.beacon), author=ADMIN)
    final, last = (
        [entry.body for entry in world.log if entry.kind == "gpu.resolve.draw"][-1]
        for world in (honest, steered)
    )
    assert (last["seed"], last["k"], last["turn"]) == (final["seed"], 3, 0)
    assert (final["label"], last["label"]) == ("beacon", "operator-trusted")
    both = {name for name in phases(honest) if name[0] in "bc"}
    assert {name for name in victims(steered) if name in both} == {
        name for name in victims(honest) if name in both
    }
    data = steered.plane.outcome_reports.export(outcomes(steered)[-1].seq, author=BOB)
    found = fairlead_verify.verify(data, networks=[KEY])
    assert "Before it, 3 outcomes of this sequence were voided." in found.account
    assert found.account[-1].endswith("this outcome is operator-trusted.")


def test_a_lost_beacon_ends_the_wait_and_the_protection() -> None:
    """The entropy is the same, the round is dropped, and the label says that it is trusted."""
    world = crowded(beacon=BEACON)
    world.turn(0.5)
    (outcome,) = outcomes(world)
    world.plane.outcomes.void(outcome.seq, "it was shut down", author=ADMIN, beacon_lost=True)
    world.plane.resolver.resolve(flavor="H100", gpus=1, author=ADMIN)
    last = outcomes(world)[-1]
    assert (last.beacon, last.label) == (None, "operator-trusted")
    data = world.plane.outcome_reports.export(last.seq, author=BOB)
    assert fairlead_verify.verify(data).code == 0


def test_a_beacon_whose_value_is_known_is_not_lost() -> None:
    """The void of such an outcome discloses what it would have been."""
    world = crowded(beacon=BEACON, resolver="enforce")
    world.turn(0.5)
    (outcome,) = outcomes(world)
    world.reconfigure(resolver="off")
    world.plane.contributions.add_beacon(*signed(outcome.beacon), author=ADMIN)
    with pytest.raises(Refused, match="has the value of its round"):
        world.plane.outcomes.void(outcome.seq, "lost", author=ADMIN, beacon_lost=True)
    world.plane.outcomes.void(outcome.seq, "we stop this", author=ADMIN)
    final = next(entry for entry in world.log if entry.kind == "gpu.resolve.void")
    assert final.body["seed"] is not None
