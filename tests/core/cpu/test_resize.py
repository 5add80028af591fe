"""Which resizes may be sent now: a kubelet that takes its time never has Σ limits above C."""

import random
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.cpu import (
    PodLimits,
    ResizePod,
    ResizeState,
    ResizeWait,
    held_limits,
    newest_capacities,
    next_resizes,
    wanted_limits,
)

C = 1000
CONTAINERS = ("app", "sidecar")


def pod(uid: str, wanted: int, now: int, **more: object) -> ResizePod:
    spec = {"app": now}
    return ResizePod(uid, {"app": wanted}, spec, spec, **more)  # type: ignore[arg-type]


def test_an_increase_waits_until_a_decrease_was_seen_in_force() -> None:
    """The decrease goes at once; its room is free when the kubelet says so, not when it is sent."""
    plan = next_resizes(C, [pod("idle", 200, 600), pod("busy", 800, 400)])
    assert (plan.send, plan.wait) == (("idle",), {"busy": ResizeWait.ROOM})
    sent = ResizePod("idle", {"app": 200}, {"app": 200}, {"app": 600}, ResizeState.MOVING)
    assert next_resizes(C, [sent, pod("busy", 800, 400)]).send == ()
    assert next_resizes(C, [pod("idle", 200, 200), pod("busy", 800, 400)]).send == ("busy",)


def test_an_increase_into_free_room_does_not_wait() -> None:
    plan = next_resizes(C, [pod("a", 100, 300), pod("b", 600, 500)])
    assert plan.send == ("a", "b")


def test_room_is_handed_out_once() -> None:
    plan = next_resizes(C, [pod("a", 500, 400), pod("b", 600, 500)])
    assert (plan.send, plan.wait) == (("a",), {"b": ResizeWait.ROOM})


def test_a_pod_that_is_as_decided_is_sent_for_its_marks_and_counts_all_the_same() -> None:
    """Where requests are governed: the user's own count from the first."""
    plan = next_resizes(C, [pod("a", 600, 600, marked=False), pod("b", 500, 400)])
    assert (plan.send, plan.wait) == (("a",), {"b": ResizeWait.ROOM})
    leaves = pod("c", 100, 100, marked=False, leaves=True)
    assert next_resizes(C, [pod("a", 600, 600), leaves]).send == ()


def test_an_increase_that_just_fits_is_sent() -> None:
    rest = pod("b", 300, 300)
    assert next_resizes(C, [pod("a", 700, 600), rest]).send == ("a",)
    assert next_resizes(C, [pod("a", 701, 600), rest]).wait == {"a": ResizeWait.ROOM}


def test_decreases_go_first_then_newcomers_then_increases() -> None:
    """Of one kind by name, in whatever order they come; what is as decided is not sent."""
    rows = [
        pod("a", 250, 200),
        pod("b", 100, 5000, adopted=False),
        pod("d", 100, 150),
        pod("c", 100, 150),
        pod("e", 50, 50),
    ]
    for order in (rows, rows[::-1]):
        assert next_resizes(C, order).send == ("c", "d", "b", "a")
        assert next_resizes(650, order).wait == {"a": ResizeWait.ROOM}


def test_an_increase_by_the_least_needs_room_too() -> None:
    """It comes after the decreases and the newcomers, and waits where there is none."""
    rest = pod("b", 400, 400)
    assert next_resizes(C, [pod("a", 601, 600), rest]).wait == {"a": ResizeWait.ROOM}
    rows = [pod("a", 401, 400), pod("b", 100, 150), pod("c", 100, 500, adopted=False)]
    assert next_resizes(C, rows).send == ("b", "c", "a")


def test_a_pod_that_takes_no_more_waits_for_no_room() -> None:
    """The limits in force may be above the capacity: what changes no sum is sent all the same."""
    moves = ResizePod("a", {"app": 700}, {"app": 600}, {"app": 700})
    assert next_resizes(C, [moves, pod("b", 900, 900)]).send == ("a",)


def test_a_pod_that_goes_from_one_container_to_another_needs_room_for_both() -> None:
    """Either limit may be in force first."""
    spec = {"app": 600, "log": 200}
    moves = ResizePod("a", {"app": 200, "log": 600}, spec, spec)
    assert next_resizes(1200, [moves]).send == ("a",)
    assert next_resizes(1199, [moves]).wait == {"a": ResizeWait.ROOM}


def test_a_newcomer_counts_with_what_it_is_to_have() -> None:
    """Its own limit was never ours, however high; it needs room for the one that we give."""
    newcomer = pod("new", 300, 5000, adopted=False)
    assert next_resizes(C, [newcomer, pod("a", 600, 600)]).send == ("new",)
    assert next_resizes(C, [newcomer, pod("a", 800, 800)]).wait == {"new": ResizeWait.ROOM}


def test_a_resize_that_is_under_way_is_not_replaced_and_one_that_was_put_off_is() -> None:
    moving = ResizePod("a", {"app": 100}, {"app": 500}, {"app": 300}, ResizeState.MOVING)
    assert next_resizes(C, [moving]).wait == {"a": ResizeWait.IN_PROGRESS}
    deferred = ResizePod("a", {"app": 100}, {"app": 500}, {"app": 300}, ResizeState.DEFERRED)
    assert next_resizes(C, [deferred]).send == ("a",)


def test_a_resize_that_was_put_off_and_replaced_still_counts() -> None:
    """The kubelet may take it before it sees that another one is asked for."""
    replaced = ResizePod(
        "a", {"app": 100}, {"app": 100}, {"app": 300}, ResizeState.MOVING, unseen={"app": 900}
    )
    assert next_resizes(C, [replaced, pod("b", 300, 100)]).wait == {"b": ResizeWait.ROOM}


def test_a_pod_that_leaves_gets_its_own_limit_back_at_once() -> None:
    plan = next_resizes(C, [pod("a", 1000, 1000), pod("b", 4000, 100, leaves=True)])
    assert plan.send == ("b",)


@dataclass
class Kubelet:
    """A pod as a slow kubelet has it: `force` is what the kernel has, `tasks` may still be done."""

    spec: dict[str, int]
    status: dict[str, int]
    force: dict[str, int]
    tasks: list[dict[str, int]] = field(default_factory=list)
    adopted: bool = False
    newcomer: bool = False
    deferred: bool = False
    seen: bool = True
    unseen: dict[str, int] = field(default_factory=dict)

    def shown(self, uid: str, wanted: dict[str, int]) -> ResizePod:
        state = ResizeState.MOVING
        if self.deferred and self.seen:
            state = ResizeState.DEFERRED
        elif self.seen and self.spec == self.status:
            state = ResizeState.SETTLED
        unseen = {} if self.seen else self.unseen
        return ResizePod(
            uid, wanted, self.spec, self.status, state, self.adopted, self.newcomer, unseen
        )

    def resize(self, limits: dict[str, int]) -> None:
        shown = self.shown("", limits)
        self.newcomer = not self.adopted or (
            self.newcomer and shown.state is not ResizeState.SETTLED
        )
        self.unseen, self.adopted, self.deferred = shown.ceilings, True, False
        if limits != self.spec:
            self.spec, self.seen = limits, False
            self.tasks.append(limits)

    def step(self, rng: random.Random) -> None:
        """One thing that a kubelet does, one container at a time."""
        match rng.randrange(5):
            case 0 if self.tasks:  # a resize that waits is taken, an older one perhaps
                name, task = rng.choice(CONTAINERS), rng.choice(self.tasks)
                self.force = {**self.force, name: task[name]}
            case 1 if self.tasks and not self.seen:  # it sees the newest, and puts it off
                self.tasks, self.seen, self.deferred = self.tasks[-1:], True, True
                self.status = dict(self.force)
            case 2 if self.tasks:  # all done, and told
                self.force, self.tasks = self.spec, []
                self.status, self.seen, self.deferred = self.spec, True, False
            case 3 if not self.deferred and not self.tasks:
                self.seen = True


@given(st.integers(0, 2**64))
def test_whatever_the_kubelet_does_the_limits_in_force_fit(seed: int) -> None:
    """Σ over the pods whose first resize is in force, after every single write of the kernel."""
    rng = random.Random(seed)
    pods = {}
    for index in range(rng.randrange(1, 5)):
        own = {name: rng.randrange(50, 900) for name in CONTAINERS}
        pods[f"p{index}"] = Kubelet(own, own, own)
    wanted = {uid: kubelet.spec for uid, kubelet in pods.items()}
    counted: set[str] = set()
    for _ in range(120):
        if rng.random() < 0.2:  # another decision, which fits
            shares = [rng.randrange(10, 200) for _ in range(2 * len(pods))]
            scale = min(1.0, C / sum(shares))
            cut = iter([max(1, int(share * scale)) for share in shares])
            wanted = {uid: {name: next(cut) for name in CONTAINERS} for uid in pods}
        if rng.random() < 0.4:
            shown = [kubelet.shown(uid, wanted[uid]) for uid, kubelet in pods.items()]
            for uid in next_resizes(C, shown).send:
                pods[uid].resize(wanted[uid])
        else:
            rng.choice(list(pods.values())).step(rng)
        for uid, kubelet in pods.items():
            if kubelet.adopted and kubelet.shown(uid, kubelet.spec).state is ResizeState.SETTLED:
                counted.add(uid)
        total = sum(sum(pods[uid].force.values()) for uid in counted)
        assert total <= C, f"{total} of {C}"


@given(
    st.dictionaries(
        st.sampled_from("abcd"),
        st.tuples(st.integers(1, 500), st.integers(0, 400), st.integers(0, 400)),
        min_size=1,
    )
)
def test_no_limit_is_below_the_request_or_above_the_users_own(
    rows: dict[str, tuple[int, int, int]],
) -> None:
    """And the sum stays where the requests allow it."""
    limits = {name: row[0] for name, row in rows.items()}
    floors = {name: row[1] for name, row in rows.items()}
    tops = {name: row[1] + row[2] for name, row in rows.items()}
    held = held_limits(limits, floors, tops)
    assert all(floors[name] <= held[name] <= tops[name] for name in rows)
    assert sum(held.values()) <= max(sum(limits.values()), sum(floors.values()))
    if all(floors[name] <= limits[name] <= tops[name] for name in rows):
        assert held == limits


@pytest.mark.parametrize(
    ("limits", "held"),
    [({"a": 50, "b": 350}, {"a": 100, "b": 300}), ({"a": 20, "b": 30}, {"a": 100, "b": 100})],
)
def test_what_one_container_gets_the_other_gives(
    limits: dict[str, int], held: dict[str, int]
) -> None:
    floors = {"a": 100, "b": 100}
    assert held_limits(limits, floors, {"a": 1000, "b": 1000}) == held


def test_a_container_without_a_request_or_an_allocation_has_no_floor() -> None:
    """It still gets its part of what the others cannot take."""
    assert held_limits({"a": 0, "b": 100}, {}, {"a": 50, "b": 1000}) == {"a": 1, "b": 99}
    assert held_limits({"a": 0, "b": 300}, {}, {"a": 50, "b": 200}) == {"a": 50, "b": 200}
    assert held_limits({"a": 1, "b": 400}, {}, {"a": 50, "b": 1000}) == {"a": 1, "b": 400}
    tops = dict.fromkeys("abc", 50)
    assert held_limits({"a": 0, "b": 1, "c": 1}, {}, tops) == {"a": 1, "b": 1, "c": 0}
    assert held_limits({"a": 10, "b": 90}, {"b": 95}, {"a": 50, "b": 200}) == {"a": 5, "b": 95}


GOVERNED = PodLimits(
    spec={"app": 500, "sidecar": 100},
    actual={"app": 400},
    own={"app": 800, "sidecar": 100},
    floors={"app": 100, "sidecar": 100},
    allocation={"app": 300},
)


@pytest.mark.parametrize(
    ("changes", "limits", "leaves", "held"),
    [
        ({}, {"app": 300, "sidecar": 100}, False, False),
        ({"allocation": {"app": 50}}, {"app": 100, "sidecar": 100}, False, True),
        ({"allocation": {"app": 100}}, {"app": 100, "sidecar": 100}, False, False),
        ({"tops": {"app": 200, "sidecar": 150}}, {"app": 200, "sidecar": 150}, False, False),
        ({"refused": True}, {"app": 400, "sidecar": 100}, False, False),
        ({"state": ResizeState.INFEASIBLE}, {"app": 400, "sidecar": 100}, False, False),
        ({"allocation": None}, {"app": 800, "sidecar": 100}, True, False),
        ({"allocation": None, "ends": True}, {"app": 500, "sidecar": 100}, False, False),
    ],
)
def test_what_a_pod_is_to_have_follows_from_its_allocation_and_its_status(
    changes: dict[str, object], limits: dict[str, int], leaves: bool, held: bool
) -> None:
    """A refused decision is not sent again, and its own limits come back when it is governed no
    more."""
    found = wanted_limits(replace(GOVERNED, **changes))  # type: ignore[arg-type]
    assert (found.limits, found.leaves, found.held) == (limits, leaves, held)


@given(st.permutations([("n1", 7, 900), ("n1", 8, 800), ("n1", 8, 700), ("n2", 1, 400)]))
def test_a_node_has_the_capacity_of_its_newest_decision(rows: list[tuple[str, int, int]]) -> None:
    assert newest_capacities(rows) == {"n1": 800, "n2": 400}
