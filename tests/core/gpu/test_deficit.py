"""Deficits: the scope, the GPUs that are missing in it, and who is a candidate."""

import json
import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.core.canonical import canonical
from fairlead.core.gpu import (
    AggregateCap,
    Budget,
    CapDemand,
    CapKind,
    Conflict,
    ConflictLease,
    ConflictRun,
    CutTier,
    Deficit,
    Demand,
    Envelope,
    Gang,
    GangDemand,
    GuestEnvelope,
    HeldLease,
    HoldingRun,
    Holdings,
    Lending,
    Malleable,
    Node,
    NodeDemand,
    PlaceDemand,
    Role,
    caps_of,
    conflict_of,
    find_deficit,
    freeze,
    place,
    resolve,
)
from fairlead.core.invariant import InvariantBroken
from fairlead.core.lottery import OwnerWeighting, Pseudonyms
from fairlead.core.reasons import DeficitReason, Exclusion
from fairlead.schema.border import BadInput
from fairlead.schema.gpu import STYLE, deficit_document
from fairlead.schema.kinds import KINDS
from fairlead.schema.replay import SHIPPED

SEED = bytes(range(32))


@st.composite
def worlds(draw: st.DrawFn) -> Holdings:
    """Nodes of three domains, some devices leased by runs of several owners."""
    chance = random.Random(draw(st.integers(0, 2**64)))
    free: dict[str, list[int]] = {}
    labels: dict[str, dict[str, str]] = {}
    for i in range(chance.randint(1, 5)):
        where = chance.choice([("w", "a", "d1"), ("w", "a", "d2"), ("e", "b", "d3")])
        labels[f"n{i}"] = dict(zip(("region", "cluster", "domain"), where, strict=True))
        labels[f"n{i}"]["pool"] = chance.choice("xxy")
        free[f"n{i}"] = list(range(chance.randint(0, 6)))
    runs = tuple(
        HoldingRun(
            f"r{i}",
            chance.choice("abc"),
            "H100",
            Malleable(1, 1) if chance.random() < 0.3 else None,
            nominated=chance.random() < 0.2,
            ending=chance.random() < 0.2,
        )
        for i in range(chance.randint(0, 5))
    )
    leases = []
    for i in range(chance.randint(0, 8) if runs else 0):
        devices = [(node, ordinal) for node in sorted(free) for ordinal in free[node]]
        taken = chance.sample(devices, min(len(devices), chance.choice([1, 1, 2, 3])))
        if not taken:
            break
        for node, ordinal in taken:
            free[node].remove(ordinal)
        run, slots = chance.choice(runs), tuple(f"{node}#{ordinal}" for node, ordinal in taken)
        role = Role.SPARE if chance.random() < 0.2 else Role.ACTIVE
        payer = ("b", chance.choice(["east", "west"]))
        funded, ending = chance.random() < 0.8, run.ending and chance.random() < 0.5
        leases.append(HeldLease(f"l{i}", run.id, role, i, slots, funded, *payer, ending))
    nodes = tuple(
        Node(name, "H100", labels[name], tuple(free[name]), chance.random() < 0.15)
        for name in sorted(free)
    )
    return Holdings(nodes, runs, tuple(leases))


gangs = st.builds(
    Gang,
    st.just("H100"),
    st.integers(1, 12),
    st.none() | st.integers(1, 4),
    st.integers(0, 1),
    st.sampled_from([{}, {"region": "w"}, {"domain": "d1"}, {"region": "*"}, {"pool": "x"}]),
    st.booleans(),
)
demands: st.SearchStrategy[Demand] = st.one_of(
    st.builds(GangDemand, st.sampled_from(["new", "r0"]), gangs),
    st.builds(
        CapDemand,
        st.sampled_from(list(CapKind)),
        st.just("b"),
        st.just("all"),
        st.just("H100"),
        st.sampled_from([("west",), ("east", "west")]),
        st.none() | st.integers(0, 8),
        st.booleans(),
    ),
    st.builds(
        PlaceDemand, st.just("H100"), st.sampled_from([{}, {"domain": "d1"}]), st.integers(1, 9)
    ),
    st.builds(NodeDemand, st.just("n0"), st.just("H100")),
)


@settings(max_examples=300, deadline=None)
@given(worlds(), gangs, st.randoms())
def test_the_gang_fits_whichever_candidates_end(
    world: Holdings, gang: Gang, chance: random.Random
) -> None:
    """No lease ends without a start: any candidates that free the deficit make room for it."""
    found = find_deficit(GangDemand("new", gang), world)
    if found.reason is not DeficitReason.RESOLVABLE:
        return
    slots = {lease.id: lease.slots for lease in world.leases}
    for _ in range(5):
        freed: dict[str, list[int]] = {}
        gpus = 0
        for row in chance.sample(found.candidates, len(found.candidates)):
            if gpus >= found.gpus:
                break
            gpus += row.gpus
            for slot in slots[row.lease]:
                node, _, ordinal = slot.partition("#")
                freed.setdefault(node, []).append(int(ordinal))
        after = [
            replace(node, free=(*node.free, *freed.get(node.name, ()))) for node in world.nodes
        ]
        assert place(after, gang).placed


@settings(max_examples=200, deadline=None)
@given(worlds(), demands)
def test_a_deficit_leads_to_a_conflict_that_resolves_alike(world: Holdings, demand: Demand) -> None:
    """Candidates, deficit and shortfall are those of `resolve`; every lease is named once."""
    found = find_deficit(demand, world)
    if not found.gpus or found.scope is None:
        assert (found.candidates, found.excluded) == ((), ())
        return
    named = [row.lease for row in (*found.candidates, *found.excluded)]
    assert sorted(named) == sorted(lease.id for lease in world.leases)
    conflict = conflict_of(demand, found, world)
    outcome = resolve(conflict, SEED)
    assert outcome.shortfall_gpus == found.shortfall_gpus
    assert outcome.resolved is (found.reason is DeficitReason.RESOLVABLE)
    tiers = {row.run: row.tier for row in found.candidates}
    assert {run.id for run in conflict.runs} == set(tiers)
    assert all(action.tier is tiers[action.run] for action in outcome.actions)
    candidates = {row.lease for row in found.candidates}
    assert {action.lease for action in outcome.actions if action.in_scope} <= candidates


@settings(max_examples=150, deadline=None)
@given(worlds(), demands, st.randoms())
def test_the_order_of_the_input_never_matters(
    world: Holdings, demand: Demand, chance: random.Random
) -> None:
    """Every list of the document shuffled: the same bytes."""
    document = deficit_document(demand, world)
    kind = KINDS["gpu.deficit"]
    first = kind.run(json.dumps(document).encode()).result
    assert first == kind.run(json.dumps(shuffled(document, chance)).encode()).result


def shuffled(value: Any, chance: random.Random) -> Any:
    """Plain data with every list in another order."""
    if isinstance(value, dict):
        return {key: shuffled(member, chance) for key, member in value.items()}
    if isinstance(value, list):
        return chance.sample([shuffled(item, chance) for item in value], len(value))
    return value


def test_caps_are_taken_by_name_and_an_aggregate_cap_first() -> None:
    """A cap on hours or loans makes unfunded leases its own."""
    budget = Budget(
        "b",
        "team",
        (),
        (
            Envelope("west", "H100", 4, max_hours_ms=1),
            Envelope("all", "H100", 8),
            Envelope("lent", "H100", 8, lending=Lending(max_gpus=1)),
        ),
        (
            AggregateCap("all", "H100", frozenset({"west", "all"}), 10),
            AggregateCap("hours", "H100", frozenset({"west"}), None, 5),
        ),
    )
    assert [
        (cap.kind, cap.name, cap.envelopes, cap.max_gpus, cap.metered) for cap in caps_of(budget)
    ] == [
        ("aggregate", "all", ("all", "west"), 10, False),
        ("envelope", "all", ("all",), 8, False),
        ("aggregate", "hours", ("west",), None, True),
        ("envelope", "lent", ("lent",), 8, True),
        ("envelope", "west", ("west",), 4, True),
    ]
    assert {(cap.budget, cap.flavor) for cap in caps_of(budget)} == {("b", "H100")}


def test_a_frozen_conflict_hides_its_names_and_announces_who_is_left_out() -> None:
    """Runs in scope that end or win are no part of the conflict, and the notice says so."""
    nodes = (Node("n1", "H100", {"domain": "d1"}),)
    runs = (HoldingRun("r1", "a", "H100"), HoldingRun("r2", "b", "H100", ending=True))
    leases = (
        HeldLease("l1", "r1", Role.ACTIVE, 0, ("n1#0",), True, "b", "west"),
        HeldLease("l2", "r2", Role.ACTIVE, 0, ("n1#1",), True, "b", "west", ending=True),
    )
    demand = CapDemand(CapKind.AGGREGATE, "b", "all", "H100", ("west",), 0, metered=False)
    names = Pseudonyms("ab" * 32, 0, lambda owner: owner.encode().ljust(32), lambda budget: "a")
    world = Holdings(nodes, runs, leases)
    frozen = freeze(demand, find_deficit(demand, world), world, names)
    (run,), (lease,) = frozen.conflict.runs, frozen.conflict.leases
    assert (names.runs[run.id], names.leases[lease.id]) == ("r1", "l1")
    assert names.owners[run.owner] == "a"
    assert frozen.notice.candidates == (lease.id,)
    ((left_out, reason),) = frozen.notice.exclusions
    assert (names.leases[left_out], reason) == ("l2", Exclusion.ENDING)
    assert resolve(frozen.conflict, SEED).resolved
    assert names.clear["a"]["run"] == [["r1"]]


def test_a_frozen_place_stays_clear() -> None:
    """Flavor and location are public; only names are hidden."""
    nodes = (Node("n1", "H100", {"domain": "d1"}),)
    lease = HeldLease("l1", "r1", Role.ACTIVE, 0, ("n1#0",), True, "b", "west")
    world = Holdings(nodes, (HoldingRun("r1", "a", "H100"),), (lease,))
    demand = PlaceDemand("H100", {"domain": "d1"}, 1)
    names = Pseudonyms("ab" * 32, 0, lambda owner: owner.encode().ljust(32), lambda budget: "a")
    frozen = freeze(demand, find_deficit(demand, world), world, names)
    assert frozen.conflict.scope == demand.scope


@pytest.mark.parametrize("promised", [True, False])
@pytest.mark.parametrize("guest", ["west", "east"])
def test_no_devices_are_taken_for_a_guest_of_an_envelope_that_is_promised(
    promised: bool, guest: str
) -> None:
    """Its owner recalled it for a run that waits: the guest would take the devices in its place."""
    nodes = (Node("n1", "H100", {}),)
    lease = HeldLease("l1", "r1", Role.ACTIVE, 0, ("n1#0",), False, "b", "west", False, True)
    lease = replace(lease, promised=promised)
    world = Holdings(nodes, (HoldingRun("r1", "a", "H100"),), (lease,))
    demand = GangDemand("new", Gang("H100", 1), True, (GuestEnvelope("b", guest),))
    withheld = promised and guest == "west"
    expected = DeficitReason.ENVELOPE_PROMISED if withheld else DeficitReason.RESOLVABLE
    assert find_deficit(demand, world).reason is expected
    free = replace(world, nodes=(Node("n1", "H100", {}, (1,)),))
    assert find_deficit(demand, free).reason is DeficitReason.FITS


def test_a_conflict_needs_a_scope() -> None:
    """What fits, or fits nowhere, leads to none."""
    demand = GangDemand("new", Gang("H100", 1))
    with pytest.raises(InvariantBroken):
        conflict_of(demand, Deficit(DeficitReason.FITS), Holdings())


def test_the_tier_is_the_whole_runs() -> None:
    """One unfunded candidate makes its run unfunded; a nominated run comes before the rest."""
    assert CutTier.of(unfunded=True, nominated=True) is CutTier.UNFUNDED
    assert CutTier.of(unfunded=False, nominated=True) is CutTier.NOMINATED
    assert CutTier.of(unfunded=False, nominated=False) is CutTier.FUNDED


LEASE = {
    "id": "l1",
    "run": "r1",
    "role": "active",
    "group": 0,
    "slots": ["n1#0"],
    "funded": True,
    "budget": "b",
    "envelope": "west",
}
RUN = {"id": "r1", "owner": "a", "flavor": "H100"}
NODE = {"name": "n1", "flavor": "H100", "location": {}, "free": []}
DRAIN = {"type": "node", "node": "n1", "flavor": "H100"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"leases": [LEASE, LEASE]}, "leases[1].id: repeats another lease's id, 'l1'"),
        ({"runs": [RUN, RUN]}, "runs[1].id: repeats another run's id, 'r1'"),
        ({"nodes": [NODE, NODE]}, "nodes[1].name: repeats another node's name, 'n1'"),
        ({"runs": []}, "leases[0].run: names an unknown run, 'r1'"),
        ({"nodes": []}, "leases[0].slots[0]: is on no known node: 'n1#0'"),
        ({"leases": [{**LEASE, "slots": []}]}, "leases[0].slots: must have at least 1 item, got 0"),
        ({"leases": [{**LEASE, "slots": ["n1#0"] * 2}]}, "leases[0].slots: names a device twice"),
        ({"nodes": [{**NODE, "free": [1, 1]}]}, "nodes[0].free: names a device twice"),
        ({"demand": {**DRAIN, "node": ""}}, 'demand.node: must be a non-empty string, got ""'),
        (
            {"demand": {"type": "rack"}},
            'demand.type: must be one of cap, gang, node, place, got "rack"',
        ),
        ({"demand": {"node": "n1"}}, "demand.type: is required"),
    ],
)
def test_bad_input_is_refused_with_its_path(change: dict[str, Any], message: str) -> None:
    """Before anything is decided."""
    document = {"demand": DRAIN, "nodes": [NODE], "runs": [RUN], "leases": [LEASE], **change}
    with pytest.raises(BadInput) as refused:
        KINDS["gpu.deficit"].run(json.dumps(document).encode())
    assert str(refused.value) == message


def test_devices_of_leases_that_have_ended_are_free() -> None:
    """A run that holds nothing any more is no candidate."""
    before = Holdings(
        (Node("n1", "H100", free=(0,)),),
        (HoldingRun("a", "x", "H100"), HoldingRun("b", "y", "H100")),
        (
            HeldLease("a0", "a", Role.ACTIVE, 0, ("n1#1", "n1#2"), True, "x", "e"),
            HeldLease("b0", "b", Role.ACTIVE, 0, ("n1#3",), True, "y", "e"),
            HeldLease("b1", "b", Role.ACTIVE, 1, ("n1#4",), True, "y", "e"),
        ),
    )
    after = before.after({"a0", "b0"})
    assert [node.free for node in after.nodes] == [(0, 1, 2, 3)]
    assert [run.id for run in after.runs] == ["b"]
    assert [lease.id for lease in after.leases] == ["b1"]
    assert before.after(frozenset()) is before


def held(name: str, *slots: str, funded: bool = True) -> HeldLease:
    """The lease of a run of its own."""
    return HeldLease(f"l-{name}", name, Role.ACTIVE, 0, slots, funded, "b", "west")


def world_of(nodes: dict[str, dict[str, str]], *leases: HeldLease, **free: int) -> Holdings:
    """Nodes by name with their labels and free devices, which are the last of ten."""
    return Holdings(
        tuple(
            Node(name, "H100", labels, tuple(range(10 - free.get(name, 0), 10)))
            for name, labels in nodes.items()
        ),
        tuple(HoldingRun(lease.run, "a", "H100") for lease in leases),
        leases,
    )


def wanted(gang: Gang, world: Holdings, *, unfunded_only: bool = False) -> Deficit:
    return find_deficit(GangDemand("new", gang, unfunded_only), world)


def test_a_conflict_has_its_runs_whole_and_of_labels_those_that_decide() -> None:
    """Runs without a candidate are left out."""
    nodes = (
        Node("n1", "H100", {"region": "w", "domain": "d1"}),
        Node("n2", "H100", {"region": "w", "domain": "d2"}),
    )
    malleable = Malleable(1, 2)
    runs = (HoldingRun("r1", "a", "H100", malleable, nominated=True), HoldingRun("r2", "b", "H100"))
    leases = (
        HeldLease("l1", "r1", Role.ACTIVE, 3, ("n1#0", "n1#1"), True, "b", "west"),
        HeldLease("l2", "r1", Role.SPARE, 0, ("n2#0",), False, "c", "east"),
        HeldLease("l3", "r2", Role.ACTIVE, 0, ("n2#1",), True, "b", "west"),
    )
    world = Holdings(nodes, runs, leases)
    demand = PlaceDemand("H100", {"domain": "d1"}, 2)
    here, there = {"domain": "d1"}, {"domain": "d2"}
    assert conflict_of(demand, find_deficit(demand, world), world) == Conflict(
        demand.scope,
        2,
        (ConflictRun("r1", "a", malleable, nominated=True),),
        (
            ConflictLease("l1", "r1", Role.ACTIVE, 3, 2, "H100", here, True, "b", "west"),
            ConflictLease("l2", "r1", Role.SPARE, 0, 1, "H100", there, False, "c", "east"),
        ),
    )


def test_a_drained_node_is_frozen_as_its_scope_with_the_weights_of_the_draws() -> None:
    world = world_of({"n1": {"domain": "d1"}}, held("r1", "n1#0"))
    demand = NodeDemand("n1", "H100")
    names = Pseudonyms("ab" * 32, 0, lambda owner: owner.encode().ljust(32), lambda budget: "a")
    weighting = OwnerWeighting.STAKE
    frozen = freeze(demand, find_deficit(demand, world), world, names, owner_weighting=weighting)
    assert [lease.location for lease in frozen.conflict.leases] == [{"node": "n1"}]
    assert frozen.notice.owner_weighting is weighting


@pytest.mark.parametrize("funded", [True, False])
def test_a_cap_on_hours_alone_is_over_where_a_lease_is_unfunded(funded: bool) -> None:
    world = world_of({"n1": {}}, held("r1", "n1#0", funded=funded))
    demand = CapDemand(CapKind.AGGREGATE, "b", "all", "H100", ("west",), None, metered=True)
    found = find_deficit(demand, world)
    reason = DeficitReason.WITHIN_CAP if funded else DeficitReason.RESOLVABLE
    assert (found.reason, found.gpus) == (reason, 0 if funded else 1)


def test_what_is_on_a_cordoned_node_is_nowhere_for_a_gang() -> None:
    """It could not be placed there."""
    world = world_of({"n1": {"domain": "d"}, "n2": {"domain": "d"}}, held("a", "n1#0"))
    shut = replace(world.nodes[1], cordoned=True)
    world = Holdings(
        (world.nodes[0], shut),
        (*world.runs, HoldingRun("b", "a", "H100")),
        (*world.leases, held("b", "n2#0")),
    )
    found = wanted(Gang("H100", 1), world)
    assert (found.gpus, [row.run for row in found.candidates]) == (1, ["a"])
    assert [(row.run, row.reason) for row in found.excluded] == [("b", Exclusion.LOCATION)]


def test_a_scope_is_chosen_by_what_may_end_there() -> None:
    """Of three domains, the one with a run that is not funded; no other rule protects any."""
    places = {f"n{i}": {"domain": f"d{i}"} for i in range(3)}
    leases = [held(f"r{i}", f"n{i}#0", funded=i < 2) for i in range(3)]
    found = wanted(Gang("H100", 1), world_of(places, *leases), unfunded_only=True)
    assert found.reason is DeficitReason.RESOLVABLE
    assert found.scope is not None
    assert found.scope.location == {"domain": "d2"}


def test_of_scopes_of_one_size_that_with_the_least_deficit() -> None:
    """Both could be made free; in the second one device is."""
    places = {"n1": {"domain": "d1"}, "n2": {"domain": "d2"}}
    world = world_of(places, held("a", "n1#0", "n1#1"), held("b", "n2#0"), n2=1)
    found = wanted(Gang("H100", 2), world)
    assert found.scope is not None
    assert (found.scope.location, found.gpus) == ({"domain": "d2"}, 1)


def test_the_widest_scope_is_everywhere() -> None:
    """One GPU in each of two regions."""
    places = {"n1": {"region": "w"}, "n2": {"region": "e"}}
    found = wanted(Gang("H100", 2), world_of(places, held("a", "n1#0"), held("b", "n2#0")))
    assert found.scope is not None
    assert (found.reason, found.scope.location) == (DeficitReason.RESOLVABLE, {})


@pytest.mark.parametrize(
    ("pool", "elsewhere", "scope"),
    [
        ("x", False, {"domain": "d", "pool": "x"}),
        ("x", True, {"domain": "d"}),
        ("*", False, {"domain": "d"}),
    ],
)
def test_a_scope_has_the_labels_that_a_gang_asks_for(
    pool: str, elsewhere: bool, scope: dict[str, str]
) -> None:
    """Not where any value would do, and not where it may be placed elsewhere."""
    gang = Gang("H100", 1, location={"pool": pool}, elsewhere=elsewhere)
    found = wanted(gang, world_of({"n1": {"domain": "d", "pool": "x"}}))
    assert found.scope is not None
    assert (found.reason, found.scope.location) == (DeficitReason.NOT_ENOUGH, scope)


def test_a_rest_of_each_domain_but_one_may_be_too_small_for_a_group() -> None:
    """Two groups of 4 in domains of 6, 6 and 2: with 3 and 2 left over, 13 are enough."""
    places = {f"n{i}": {"region": "w", "domain": f"d{i}"} for i in range(3)}
    leases = [
        held(f"r{i}", *(f"n{i}#{at}" for at in range(gpus))) for i, gpus in enumerate((6, 6, 2))
    ]
    found = wanted(Gang("H100", 8, 4), world_of(places, *leases))
    assert (found.reason, found.gpus, found.candidate_gpus) == (DeficitReason.RESOLVABLE, 13, 14)


def test_free_devices_of_all_nodes_of_a_domain_are_its_room() -> None:
    """Two domains of 5: groups of 6 lack as much in both together as in one."""
    places = {f"n{i}": {"region": "w", "domain": f"d{i // 2}"} for i in range(4)}
    leases = [held(f"r{i}", *(f"n{i}#{at}" for at in range(2 - i % 2))) for i in range(4)]
    found = wanted(Gang("H100", 12, 6), world_of(places, *leases, n0=1, n1=1, n2=1, n3=1))
    assert found.scope is not None
    assert found.scope.location == {"region": "w", "domain": "d0"}
    assert (found.reason, found.gpus, found.shortfall_gpus) == (DeficitReason.NOT_ENOUGH, 10, 7)


def test_a_gang_that_no_node_can_hold_lacks_its_spares_too() -> None:
    found = wanted(Gang("H100", 4, 2, 1), Holdings())
    assert found == Deficit(DeficitReason.NO_DEVICES, None, 6, 0, 6)


def test_no_lease_ends_for_a_group_that_its_location_and_elsewhere_hold_together() -> None:
    """It would end, and the gang would not start; records of before are decided as they were."""
    places = {name: {"domain": "d", "pool": pool} for name, pool in (("n1", "x"), ("n2", "y"))}
    gang = Gang("H100", 2, 2, location={"pool": "x"}, elsewhere=True)
    world = world_of(places, held("r", "n1#0"), n2=1)
    found = wanted(gang, world)
    assert (found.reason, found.gpus, found.candidate_gpus) == (DeficitReason.NOT_ENOUGH, 2, 1)
    before = find_deficit(GangDemand("new", gang), world, apart=False)
    assert (before.reason, before.gpus) == (DeficitReason.RESOLVABLE, 1)
    document = canonical(deficit_document(GangDemand("new", gang), world))
    for version, decided in ((1, before), (2, before), (3, found)):
        assert SHIPPED["gpu.deficit", version].run(document).result == STYLE.from_core(decided)


def test_room_enough_that_cannot_hold_the_gang_is_no_scope() -> None:
    """A group is not divided between its location and elsewhere."""
    places = {name: {"domain": "d", "pool": pool} for name, pool in (("n1", "x"), ("n2", "y"))}
    gang = Gang("H100", 2, 2, location={"pool": "x"}, elsewhere=True)
    world = world_of(places, n1=1, n2=1)
    found = wanted(gang, world)
    assert (found.reason, found.shortfall_gpus) == (DeficitReason.NOT_ENOUGH, 1)
    before = find_deficit(GangDemand("new", gang), world, apart=False)
    assert before.reason is DeficitReason.NO_DEVICES
