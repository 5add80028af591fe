"""Backfill: a head's promised start is never delayed by a run that starts beside it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.core.gpu import (
    Backfiller,
    BackfillPolicy,
    BackfillRequest,
    FreeDevices,
    Outlook,
    Overrun,
    Pool,
    QueueHead,
    Release,
    backfill,
)
from fairlead.core.gpu.place import Gang, Node
from fairlead.core.reasons import BackfillReason
from fairlead.schema.border import BadInput
from fairlead.schema.gpu import STYLE, from_backfill
from fairlead.schema.kinds import KINDS
from tests.core.gpu.test_deficit import shuffled

MINUTE = 60_000
NOW_MS = 10**12
LABELS: list[Mapping[str, str]] = [
    {},
    {"region": "w", "cluster": "a", "domain": "1"},
    {"region": "w", "cluster": "a", "domain": "2"},
    {"region": "e"},
]
gangs = st.builds(
    Gang,
    st.just("H100"),
    st.integers(1, 24),
    st.none() | st.integers(1, 6),
    st.integers(0, 2),
    st.sampled_from([{}, {"region": "w"}, {"region": "*"}]),
    st.booleans(),
)
nodes = st.lists(st.tuples(st.sampled_from(LABELS), st.integers(0, 8)), min_size=1, max_size=6).map(
    lambda rows: [
        Node(f"n{i}", "H100", labels, tuple(range(free))) for i, (labels, free) in enumerate(rows)
    ]
)


@given(nodes, gangs)
def test_what_fits_by_count_is_placed_and_nothing_else(nodes: list[Node], gang: Gang) -> None:
    """The outlook counts devices by domain; `place` finds the devices themselves."""
    pools = [Pool(node.name, node.location, len(node.free)) for node in nodes]
    found = Outlook(pools, NOW_MS, BackfillPolicy()).start_ms(gang)
    assert (found == NOW_MS) == FreeDevices(nodes).place(gang).placed


@pytest.mark.parametrize(
    ("end", "late", "expected"),
    [(5, -5, 5), (0, 0, 1), (0, 1, 2), (0, 2, 4), (0, 3, 4), (0, 60, 64)],
)
def test_a_lease_that_outstays_its_end_is_believed_a_step_longer(
    end: int, late: int, expected: int
) -> None:
    """In minutes; a promise moves when a step is over, and not every second."""
    release = Release(1, NOW_MS - 10**9, NOW_MS + end * MINUTE)
    now_ms = NOW_MS + (end + late) * MINUTE
    assert BackfillPolicy().end_ms(release, now_ms) == NOW_MS + expected * MINUTE


def test_a_lease_without_an_end_is_taken_to_last_a_day() -> None:
    policy = BackfillPolicy()
    assert policy.end_ms(Release(1, NOW_MS), NOW_MS) == NOW_MS + 24 * 60 * MINUTE
    far = Release(1, 0, 0)
    assert policy.end_ms(far, 253_370_764_000_000) == 253_370_764_800_000, "times can be written"


# -- a small cluster in virtual time ---------------------------------------------------------------


@dataclass(frozen=True)
class Work:
    """A run of a gang without groups: how wide, how long at most, and how long in truth."""

    gpus: int
    estimate: int | None
    truth: int
    at: int


@dataclass
class Cluster:
    """First come, first served with backfill, on one pool; the oldest that lacks devices is head.

    Every run's promise is kept: `promises` are those that were made, by run.
    """

    gpus: int
    works: list[Work]
    policy: BackfillPolicy = field(default_factory=BackfillPolicy)
    now: int = 0
    running: dict[int, int] = field(default_factory=dict)
    waiting: list[int] = field(default_factory=list)
    started: dict[int, int] = field(default_factory=dict)
    promised: dict[int, int] = field(default_factory=dict)

    def pool(self) -> Pool:
        used = sum(self.works[i].gpus for i in self.running)
        releases = []
        for i, began in self.running.items():
            estimate = self.works[i].estimate
            end = None if estimate is None else NOW_MS + (began + estimate) * MINUTE
            releases.append(Release(self.works[i].gpus, NOW_MS + began * MINUTE, end))
        return Pool("p", {}, self.gpus - used, tuple(releases))

    def turn(self) -> None:
        ended = [i for i, began in self.running.items() if began + self.works[i].truth <= self.now]
        for i in ended:
            del self.running[i]
        self.waiting += [i for i, work in enumerate(self.works) if work.at == self.now]
        head: int | None = None
        for i in list(self.waiting):
            work, pool = self.works[i], self.pool()
            if work.gpus > pool.free_gpus:
                head = i if head is None else head
                if head == i:
                    self.promise(i)
                continue
            if head is None or self.may(i, head):
                self.waiting.remove(i)
                self.running[i] = self.started[i] = self.now
        self.now += 1

    def promise(self, i: int) -> None:
        outlook = Outlook([self.pool()], NOW_MS + self.now * MINUTE, BackfillPolicy())
        start_ms = outlook.start_ms(Gang("H100", self.works[i].gpus))
        assert start_ms is not None, "whatever runs is taken to end"
        self.promised.setdefault(i, (start_ms - NOW_MS) // MINUTE)

    def head(self, i: int) -> QueueHead:
        work = self.works[i]
        return QueueHead(str(i), Gang("H100", work.gpus), since_ms=NOW_MS + work.at * MINUTE)

    def may(self, i: int, head: int) -> bool:
        work, now_ms = self.works[i], NOW_MS + self.now * MINUTE
        end_ms = None if work.estimate is None else now_ms + work.estimate * MINUTE
        asked = BackfillRequest(
            now_ms,
            Backfiller(str(i), {"p": work.gpus}, end_ms),
            (self.head(head),),
            (self.pool(),),
            self.policy,
        )
        return backfill(asked).starts


def works(*, honest: bool) -> st.SearchStrategy[list[Work]]:
    def made(gpus: int, estimate: int, share: int, at: int) -> Work:
        truth = max(1, estimate * share // 100)
        return Work(gpus, estimate, truth, at)

    share = st.integers(1, 100) if honest else st.integers(1, 300)
    known = st.builds(made, st.integers(1, 8), st.integers(1, 30), share, st.integers(0, 20))
    unknown = st.builds(Work, st.integers(1, 8), st.none(), st.integers(1, 60), st.integers(0, 20))
    return st.lists(known if honest else known | unknown, max_size=12)


@settings(deadline=None)
@given(works(honest=True))
def test_a_promised_start_is_kept_when_estimates_are_upper_bounds(works: list[Work]) -> None:
    """Every run that was ever a head starts at its first promise, or before."""
    cluster = Cluster(8, works)
    while len(cluster.started) < len(works):
        cluster.turn()
        assert cluster.now < 2_000
    for run, minute in cluster.promised.items():
        assert cluster.started[run] <= minute


@settings(deadline=None)
@given(works(honest=False))
def test_every_run_starts_however_wrong_the_estimates_are(works: list[Work]) -> None:
    """No run starves: what runs ends at some time, and the head is the next."""
    cluster = Cluster(8, works)
    bound = 21 + sum(work.truth for work in works) + 1
    while len(cluster.started) < len(works):
        cluster.turn()
        assert cluster.now <= bound, "one after the other would have been as quick"


# -- documents -------------------------------------------------------------------------------------

REQUEST = BackfillRequest(
    NOW_MS,
    Backfiller("small", {"a": 1, "b": 1}, NOW_MS + 5 * MINUTE),
    (QueueHead("wide", Gang("H100", 4)), QueueHead("never", Gang("H100", 99))),
    (
        Pool("a", {"region": "w"}, 2, (Release(2, NOW_MS, NOW_MS + 3 * MINUTE),)),
        Pool("b", {"region": "e"}, 1, (Release(1, NOW_MS), Release(1, NOW_MS, NOW_MS + MINUTE))),
    ),
)


def decide(document: Any) -> dict[str, Any]:
    return KINDS["gpu.backfill"].run(json.dumps(document).encode()).result


@given(st.randoms())
def test_the_document_decides_the_same_in_any_order(chance: Any) -> None:
    document = STYLE.from_core(REQUEST)
    found = decide(document)
    assert found == decide({**document, "pools": shuffled(document["pools"], chance)})
    assert found == from_backfill(REQUEST, backfill(REQUEST))
    assert (found["reason"], found["delays"]) == ("DelaysHead", "wide")
    assert [row["earliest_start"] for row in found["promises"]] == ["2001-09-09T01:47:40Z", None]


def test_runs_beside_a_head() -> None:
    """By time, by room, and a run that never ends."""
    soon = replace(REQUEST, run=replace(REQUEST.run, end_ms=NOW_MS + MINUTE))
    assert backfill(soon).reason is BackfillReason.ENDS_BEFORE
    narrow = replace(REQUEST, heads=(QueueHead("head", Gang("H100", 4, 4)),))
    assert backfill(narrow).reason is BackfillReason.DELAYS
    elsewhere = replace(narrow, run=Backfiller("x", {"b": 1}))
    assert backfill(elsewhere).reason is BackfillReason.LEAVES_ROOM
    west = replace(REQUEST, heads=(QueueHead("west", Gang("H100", 4, location={"region": "w"})),))
    assert backfill(replace(west, run=Backfiller("x", {"b": 1}))).reason is (
        BackfillReason.LEAVES_ROOM
    ), "what is not in its location is not counted"
    assert backfill(replace(REQUEST, heads=())).starts


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"run": {"run": "x", "gpus": {"zzz": 1}}}, "run.gpus.zzz: names no pool"),
        (
            {"run": {"run": "x", "gpus": {"a": 0, "b": -1}}},
            "run.gpus.b: must be an integer between 0 and 9007199254740991, got -1",
        ),
        ({"policy": {"overtime": "0s"}}, "policy.overtime: must be more than 0"),
        (
            {"pools": STYLE.from_core(REQUEST)["pools"][:1] * 2},
            "pools[1].name: repeats another pool's name, 'a'",
        ),
        (
            {"heads": STYLE.from_core(REQUEST)["heads"][:1] * 2},
            "heads[1].run: repeats another head's run, 'wide'",
        ),
    ],
)
def test_bad_documents_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput) as refused:
        decide(STYLE.from_core(REQUEST) | change)
    assert str(refused.value).startswith(message)


def test_every_head_is_asked() -> None:
    """Also behind one that never fits, and behind one before which the run ends."""
    wide, never = REQUEST.heads
    far = QueueHead("far", Gang("H100", 7))
    late = replace(REQUEST, run=replace(REQUEST.run, end_ms=NOW_MS + 4 * MINUTE))
    for before in ((), (never,), (far,), (never, far)):
        found = backfill(replace(late, heads=(*before, wide)))
        assert (found.reason, found.delays) == (BackfillReason.DELAYS, "wide")


@pytest.mark.parametrize(
    ("gang", "minutes"),
    [
        pytest.param(Gang("H100", 12, 4), 2, id="three groups of 4: 4 are free, then 8, then 12"),
        pytest.param(Gang("H100", 6, 4), 1, id="a group of 4 and one of 2"),
        pytest.param(Gang("H100", 4, 3, 1), 1, id="a group of 3 and one of 1, each with a spare"),
        pytest.param(Gang("H100", 3, 2, 1), 1, id="a group of 2 and one of 1, each with a spare"),
        pytest.param(Gang("H100", 3, None, 1), 0, id="one group with a spare"),
    ],
)
def test_groups_start_when_the_last_of_them_has_room(gang: Gang, minutes: int) -> None:
    releases = tuple(Release(4, NOW_MS, NOW_MS + minute * MINUTE) for minute in (1, 2, 3))
    outlook = Outlook([Pool("p", {}, 4, releases)], NOW_MS, BackfillPolicy())
    assert outlook.start_ms(gang) == NOW_MS + minutes * MINUTE


def test_the_time_that_a_head_leaves_is_in_whole_milliseconds() -> None:
    """10 ms until its start, and a third of them is left."""
    head = QueueHead("h", Gang("H100", 4), since_ms=NOW_MS - 2 * HOUR)
    found = BackfillPolicy(halving_ms=HOUR).ends_by_ms(head, NOW_MS + 10, NOW_MS)
    assert (found, type(found)) == (NOW_MS + 3, int)


def test_an_estimate_does_not_count_while_one_is_overrun() -> None:
    """Of the same owner, or of a run that passed the head; only when it is ended for sure does."""
    head = QueueHead("wide", Gang("H100", 4), since_ms=NOW_MS - 10 * MINUTE)
    pool = Pool("p", free_gpus=2, releases=(Release(2, NOW_MS, NOW_MS + 9 * MINUTE),))
    taker = Backfiller("r", {"p": 1}, NOW_MS + MINUTE, owner="a")
    asked = BackfillRequest(NOW_MS, taker, (head,), (pool,))
    for owner, began, counts in (
        ("b", 11, True),
        ("b", 10, True),
        ("b", 9, False),
        ("a", 11, False),
    ):
        late = Overrun("late", owner, NOW_MS - began * MINUTE)
        found = backfill(replace(asked, overruns=(late,)))
        assert found.starts is counts, (owner, began)
        assert found.overrun == (None if counts else "late")
        assert decide(STYLE.from_core(replace(asked, overruns=(late,))))["overrun"] == found.overrun
        for most, starts in ((9, True), (10, counts)):
            ended = replace(taker, latest_ms=NOW_MS + most * MINUTE)
            assert backfill(replace(asked, run=ended, overruns=(late,))).starts is starts
    assert "overrun" not in decide(STYLE.from_core(asked)), "as it always was"
    unknown = replace(asked, heads=(replace(head, since_ms=None),))
    assert backfill(replace(unknown, overruns=(Overrun("late", "b", NOW_MS),))).starts


HOUR = 60 * MINUTE
HALVING = BackfillPolicy(halving_ms=4 * HOUR)


@pytest.mark.parametrize(
    ("waited", "ends_by"), [(0, 6), (2, 4), (4, 3), (8, 2), (20, 1), (-1, 6), (None, 6)]
)
def test_a_head_leaves_less_time_to_others_the_longer_it_waits(
    waited: int | None, ends_by: int
) -> None:
    """In hours: 6 until its start, and halves after 4. A run that leaves room starts all the same;
    a head of which it is not known since when it waits leaves all of it, as in version 1."""
    since_ms = None if waited is None else NOW_MS - waited * HOUR
    head = QueueHead("wide", Gang("H100", 4), since_ms=since_ms)
    pool = Pool("p", free_gpus=2, releases=(Release(3, NOW_MS, NOW_MS + 6 * HOUR),))
    last_ms = NOW_MS + ends_by * HOUR
    asked = BackfillRequest(
        NOW_MS, Backfiller("r", {"p": 2}, last_ms), (head,), (pool,), policy=HALVING
    )
    assert backfill(asked).reason is BackfillReason.ENDS_BEFORE
    late = replace(asked, run=Backfiller("r", {"p": 2}, last_ms + 1))
    found = backfill(late)
    assert (found.reason, found.delays) == (BackfillReason.DELAYS, "wide")
    assert found.ends_by_ms == last_ms
    narrow = replace(late, run=Backfiller("r", {"p": 1}, last_ms + 1))
    assert backfill(narrow).reason is BackfillReason.LEAVES_ROOM
    document = decide(STYLE.from_core(late))
    assert document["ends_by"] == STYLE.from_core(found)["ends_by"]
    before = replace(late, policy=BackfillPolicy(), run=Backfiller("r", {"p": 2}))
    assert "ends_by" not in decide(STYLE.from_core(before)), "as it always was"


@settings(deadline=None)
@given(works(honest=True))
def test_a_promise_is_kept_by_heads_that_leave_less(works: list[Work]) -> None:
    """What is let in under version 2 is a part of what version 1 lets in."""
    cluster = Cluster(8, works, policy=replace(HALVING, halving_ms=5 * MINUTE))
    while len(cluster.started) < len(works):
        cluster.turn()
        assert cluster.now < 2_000
    for run, minute in cluster.promised.items():
        assert cluster.started[run] <= minute


def test_a_smaller_last_group_needs_room_for_its_spares_too() -> None:
    """Groups of 3 and 2, each with a spare: 4 and 3 devices, and 6 are free."""
    pool = Pool("p", {}, 6, (Release(1, NOW_MS, NOW_MS + MINUTE),))
    outlook = Outlook([pool], NOW_MS, BackfillPolicy())
    assert outlook.start_ms(Gang("H100", 5, 3, 1)) == NOW_MS + MINUTE
