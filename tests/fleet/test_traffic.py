"""Many groups in columns: every bit as core's, hostile or everyday; the rare is core's to tick."""

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.apportion import largest_remainder
from fairlead.core.traffic import Config, Node, Psi, Resource, Snapshot, State, tick
from fairlead.core.traffic.slots import slew, target_slots
from fairlead.core.units import OutOfRange
from fairlead.fleet.roster import Roster
from fairlead.fleet.traffic import TrafficPlan, TrafficSnapshot, TrafficState, tick_fleet
from fairlead.fleet.traffic_slots import share_out, slew_rows, target_rows
from tests.core.traffic.groups import backend
from tests.core.traffic.walks import Life, random_config


class Fleet:
    """The same groups twice: ticked one by one by core, and all at once in columns."""

    def __init__(self, lives: list[Life], config: Config) -> None:
        self.lives, self.config = lives, config
        self.states: list[State | None] = [None] * len(lives)
        self.columns: TrafficState | None = None

    def step(self) -> TrafficPlan:
        seen = [
            Snapshot(
                now_ms=life.time(),
                group="g",
                backends=life.view(),
                nodes=life.nodes(),
                retry_index=None if life.calm else life.retries(),
                config=self.config,
                state=state,
            )
            for life, state in zip(self.lives, self.states, strict=True)
        ]
        return self.both_ways(seen)

    def both_ways(self, seen: list[Snapshot]) -> TrafficPlan:
        """Every bit is the same, the state's too."""
        columns = TrafficSnapshot.from_snapshots(seen, self.config, self.columns)
        plan = tick_fleet(columns)
        for snapshot, ours in zip(seen, plan.to_plans(), strict=True):
            theirs = tick(snapshot)
            # repr tells 0.0 from -0.0 and shows dictionaries in their order; == does not.
            assert repr(ours) == repr(theirs), f"{snapshot}\nfleet {ours}\ncore  {theirs}"
        self.columns, self.states = plan.state, [one.state for one in plan.to_plans()]
        return plan


@pytest.mark.parametrize("seed", range(15))
def test_hostile_fleets_are_bit_equal(seed: int) -> None:
    """Members come and go, signals are lost, clocks jump, groups of all sizes, none included."""
    rng = random.Random(f"hostile {seed}")
    fleet = Fleet([Life(rng) for _ in range(4)], random_config(rng))
    for _ in range(30):
        fleet.step()


@pytest.mark.parametrize("seed", range(8))
def test_everyday_fleets_are_bit_equal_and_decided_in_columns(seed: int) -> None:
    """Steady and slewing groups, few requests, any door: hardly ever core's."""
    rng = random.Random(f"everyday {seed}")
    sizes = (1, 2, 3, 4, 5, 6, 7, 8, 20, 50)
    config = random_config(rng)
    fleet = Fleet([Life(rng, calm=True, size=size) for size in sizes], config)
    by_core = moved = 0
    for _ in range(40):
        plan = fleet.step()
        by_core += plan.fallbacks
        moved += int(plan.applied.sum())
    assert by_core <= 0.05 * 40 * len(sizes)
    assert moved > len(sizes) or config.s_total == 1


def test_isolated_and_warming_backends_are_decided_in_columns() -> None:
    """Only the tick in which somebody is isolated is core's."""
    config = Config()
    members = [backend("a", requests=9), backend("b", age_ms=0), backend("c"), backend("d")]
    fleet, by_core = Fleet([], config), []
    fleet.states = [None]
    for turn in range(12):
        members[1] = replace(members[1], age_ms=200 * turn)
        members[3] = replace(members[3], isolated=turn >= 5)
        seen = Snapshot(
            now_ms=200 * turn,
            group="g",
            backends=tuple(members),
            config=config,
            state=fleet.states[0],
        )
        by_core.append(fleet.both_ways([seen]).fallbacks)
    assert by_core == [0] * 5 + [1] + [0] * 6


def test_a_group_whose_members_change_does_not_slow_the_others() -> None:
    """Its tick is core's; the rows of the others move with them."""
    config = Config()
    groups = [["a", "b"], ["c", "d", "e"], ["f", "g"]]
    fleet, plans = Fleet([], config), []
    fleet.states = [None] * 3
    for turn in range(4):
        if turn == 2:
            groups[1] = ["c", "e", "x", "y"]
        nodes = [Node(f"n{i}", Psi(cpu_some=0.9), (Resource("m", 9, turn),)) for i in range(3)]
        seen = [
            Snapshot(
                now_ms=200 * turn,
                group="g",
                backends=tuple(map(backend, names)),
                nodes=(node,),
                config=config,
                state=state,
            )
            for names, node, state in zip(groups, nodes, fleet.states, strict=True)
        ]
        plans.append(fleet.both_ways(seen))
    assert [plan.fallback.tolist() for plan in plans] == [
        [False] * 3,
        [False] * 3,
        [False, True, False],
        [False] * 3,
    ]
    assert plans[2].bypass == {1: ("d",)}


def test_a_machine_that_is_remembered_but_not_reported_is_cores() -> None:
    """Its state does not fit the columns until it is forgotten."""
    config = Config(stall_m=3)
    fleet, odd = Fleet([], config), []
    fleet.states = [None]
    for turn in range(8):
        nodes = (Node("n", Psi(cpu_some=0.9)),) if turn < 2 else ()
        seen = Snapshot(
            now_ms=200 * turn,
            group="g",
            backends=(backend("a"), backend("b")),
            nodes=nodes,
            config=config,
            state=fleet.states[0],
        )
        odd.append(len(fleet.both_ways([seen]).state.odd))
    assert odd == [0, 0, 1, 1, 0, 0, 0, 0]


def test_another_window_of_samples_is_taken_over() -> None:
    """A config with more samples, or fewer, than the state was kept with."""
    fleet = Fleet([], Config())
    fleet.states = [None]
    for turn, samples in enumerate((10, 10, 4, 4, 20, 20)):
        fleet.config = Config(stall_m=samples)
        seen = Snapshot(
            now_ms=200 * turn,
            group="g",
            backends=(backend("a"), backend("b")),
            nodes=(Node("n", Psi(cpu_some=0.9)),),
            config=fleet.config,
            state=fleet.states[0],
        )
        fleet.both_ways([seen])


@pytest.mark.parametrize(("cpu_some", "stall"), [(0.4, False), (0.41, True)])
def test_the_smallest_share_of_samples_still_takes_one_stall(cpu_some: float, stall: bool) -> None:
    """Rounding must not make a stall of nothing, in columns neither."""
    config = Config(stall_m=1, stall_p=1e-9)
    fleet = Fleet([], config)
    seen = Snapshot(
        now_ms=0,
        group="g",
        backends=(backend("a"), backend("b")),
        nodes=(Node("n", Psi(cpu_some=cpu_some)),),
        config=config,
    )
    plan = fleet.both_ways([seen])
    assert (plan.stall.tolist(), plan.fallbacks) == ([stall], 0)


def test_long_trails_of_core_get_their_columns() -> None:
    """A group that core ticked for a while comes back with its whole history."""
    config = Config()
    fleet = Fleet([], config)
    fleet.states = [None]
    for turn in range(60):
        blind = 5 < turn < 40
        members = (backend("a", p95_ms=None if blind else 40), backend("b"))
        seen = Snapshot(
            now_ms=100 * turn,
            group="g",
            backends=members,
            config=config,
            state=fleet.states[0],
            nodes=(Node("n", None, (Resource("m", 1e9, 10.0 * turn),)),),
        )
        plan = fleet.both_ways([seen])
    assert not plan.fallbacks


def test_larger_tables_than_doubles_can_divide_are_cores() -> None:
    """Ten thousand slots for two hundred backends."""
    fleet = Fleet([], Config(s_total=10_000))
    fleet.states = [None]
    members = tuple(backend(f"b{i:03d}", p95_ms=40 + i / 7) for i in range(200))
    seen = Snapshot(now_ms=0, group="g", backends=members, config=fleet.config)
    assert fleet.both_ways([seen]).fallbacks == 1


def test_remainders_too_close_to_call_are_cores() -> None:
    """Four to one to one: sixths of 256 leave the same remainder, but for rounding."""
    fleet = Fleet([], Config())
    fleet.states = [None]
    members = (backend("a", p95_ms=160), backend("b", p95_ms=40), backend("c", p95_ms=160))
    seen = Snapshot(now_ms=0, group="g", backends=members, config=fleet.config)
    assert fleet.both_ways([seen]).fallbacks == 1


shares = st.lists(st.integers(0, 50), min_size=1, max_size=9)


@given(st.integers(0, 300), shares)
def test_rows_are_shared_out_as_core_shares(total: int, parts: list[int]) -> None:
    """Largest remainder, the earlier of equals first."""
    ours = share_out(np.array([total]), np.array([parts]))
    assert ours[0].tolist() == largest_remainder(total, parts)


@given(st.lists(st.integers(0, 100), min_size=2, max_size=9), st.data())
def test_rows_slew_as_core_slews(slots: list[int], data: st.DataObject) -> None:
    """For any two divisions of the same total and any limit."""
    target, limit = data.draw(st.permutations(slots)), data.draw(st.integers(1, 40))
    ours = slew_rows(np.array([slots]), np.array([target]), np.array([limit]))
    assert ours[0].tolist() == slew(slots, target, limit)


@given(
    st.lists(st.sampled_from((0.0, 1.0, 2.0, 3.0, 0.1)) | st.floats(0, 9), min_size=1, max_size=9)
)
def test_a_target_that_is_sure_is_cores(parts: list[float]) -> None:
    """Few different values, so that ties are common."""
    total = sum(parts)
    wanted = [part / total for part in parts] if total else parts
    target, sure = target_rows(256, np.array([wanted]))
    if sure[0] and total:
        assert target[0].tolist() == target_slots(256, wanted)


def empty(**changes: Any) -> dict[str, Any]:
    none, roster = np.zeros(0), Roster.of([])
    columns: dict[str, Any] = {
        "config": Config(),
        "roster": roster,
        "machines": roster,
        "resources": roster,
        "now_ms": none.astype(np.int64),
        "retry_index": none,
        "queue": none,
        "p95_ms": none,
        "error_rate": none,
        "requests": none.astype(np.int64),
        "isolated": none.astype(np.bool_),
        "age_ms": none.astype(np.int64),
        "psi": np.zeros((0, 5)),
        "limit": none,
        "used": none,
    }
    return columns | changes


def test_no_groups_are_no_work() -> None:
    """An empty fleet has an empty plan."""
    plan = tick_fleet(TrafficSnapshot(**empty()))
    assert plan.to_plans() == []


ONE = empty(
    roster=Roster.of([["a"]]),
    machines=Roster.of([[]]),
    now_ms=np.array([0]),
    retry_index=np.array([np.nan]),
    queue=np.array([1.0]),
    p95_ms=np.array([1.0]),
    error_rate=np.array([0.0]),
    requests=np.array([1]),
    isolated=np.array([False]),
    age_ms=np.array([-1]),
)


@pytest.mark.parametrize(
    ("field", "value", "path"),
    [
        ("queue", np.array([-1.0]), "queue[0]"),
        ("p95_ms", np.array([np.inf]), "p95_ms[0]"),
        ("error_rate", np.array([1.5]), "error_rate[0]"),
        ("requests", np.array([-2]), "requests[0]"),
        ("requests", np.array([1.0]), "requests"),
        ("isolated", np.array([0]), "isolated"),
        ("queue", np.array([1.0, 2.0]), "queue"),
        ("now_ms", np.array([-1]), "now_ms[0]"),
        ("machines", Roster.of([]), "machines"),
        ("config", Config(w_rtt=1), "config"),
    ],
)
def test_rubbish_is_refused_by_name(field: str, value: Any, path: str) -> None:
    """As core refuses it; the optional layers have no columns."""
    TrafficSnapshot(**ONE)
    with pytest.raises(OutOfRange) as caught:
        TrafficSnapshot(**(ONE | {field: value}))
    assert caught.value.field == path


def test_a_state_of_another_fleet_is_refused() -> None:
    """One row per group."""
    state = tick_fleet(TrafficSnapshot(**empty())).state
    with pytest.raises(OutOfRange):
        TrafficSnapshot(**(ONE | {"state": state}))
