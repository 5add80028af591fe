"""Runs that lack funding because others use the envelopes: a promise over the ends of charges."""

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.core.gpu import (
    Backfiller,
    BackfillPolicy,
    BackfillRequest,
    Book,
    HeadCap,
    HeadFunding,
    LeaseCharge,
    Outlook,
    Payment,
    Pool,
    QueueHead,
    Release,
    backfill,
    cover,
    envelope_key,
    head_funding,
)
from fairlead.core.gpu.cover import Plan, find_route
from fairlead.core.gpu.model import AggregateCap, Budget, Envelope, Lease, Lending, Request
from fairlead.core.gpu.place import Gang
from fairlead.core.gpu.usage import tally
from fairlead.core.reasons import BackfillReason
from fairlead.schema.border import BadInput
from fairlead.schema.gpu import STYLE, from_backfill
from tests.core.gpu.test_backfill import MINUTE, NOW_MS, REQUEST, decide

OWNERS = "abc"


@dataclass(frozen=True)
class Work:
    """A run: whose, how wide, how long by its estimate and in truth, and when it comes."""

    owner: str
    gpus: int
    estimate: int
    truth: int
    at: int

    @property
    def request(self) -> Request:
        others = tuple(sorted(set(OWNERS) - {self.owner}))
        terms = {"allow_borrow": True, "max_borrow_gpus": 3, "sponsors": others}
        return Request(self.owner, "H100", self.gpus, duration_ms=self.estimate * MINUTE, **terms)


@dataclass
class Cluster:
    """First come, first served with backfill. Heads are found as the control plane finds them: the
    first that lacks devices, and the first that lacks envelopes which others use."""

    gpus: int
    budgets: list[Budget]
    works: list[Work]
    now: int = 0
    running: dict[int, Plan] = field(default_factory=dict)
    waiting: list[int] = field(default_factory=list)
    started: dict[int, int] = field(default_factory=dict)
    promised: dict[int, int] = field(default_factory=dict)
    """Promises of heads that were before all others."""

    @property
    def now_ms(self) -> int:
        return NOW_MS + self.now * MINUTE

    def times(self, i: int) -> tuple[int, int]:
        start_ms = NOW_MS + self.started[i] * MINUTE
        return start_ms, start_ms + self.works[i].estimate * MINUTE

    def book(self) -> Book:
        leases = [
            Lease("x", "x", row.budget, row.envelope, row.gpus, NOW_MS, borrowed=row.borrowed)
            for plan in self.running.values()
            for row in plan.lines
        ]
        return Book(self.budgets, tally(self.budgets, leases, self.now_ms))

    def asked(self, i: int, plan: Plan, heads: list[QueueHead]) -> BackfillRequest:
        releases = tuple(Release(self.works[k].gpus, *self.times(k)) for k in self.running)
        used = sum(release.gpus for release in releases)
        payments = tuple(
            Payment(envelope_key(row.budget, row.envelope), row.gpus, row.borrowed)
            for row in plan.lines
        )
        charges = tuple(
            LeaseCharge(
                envelope_key(row.budget, row.envelope), row.gpus, *self.times(k), row.borrowed
            )
            for k, paid in self.running.items()
            for row in paid.lines
        )
        work = self.works[i]
        taker = Backfiller(str(i), {"p": work.gpus}, self.now_ms + work.estimate * MINUTE, payments)
        pools = (Pool("p", {}, self.gpus - used, releases),)
        return BackfillRequest(self.now_ms, taker, tuple(heads), pools, charges=charges)

    def turn(self) -> None:
        for i in [i for i in self.running if self.started[i] + self.works[i].truth <= self.now]:
            del self.running[i]
        self.waiting += [i for i, work in enumerate(self.works) if work.at == self.now]
        heads: dict[bool, QueueHead] = {}
        for i in list(self.waiting):
            request, book = self.works[i].request, self.book()
            plan = cover(book, request, self.now_ms)
            asked = self.asked(i, plan, list(heads.values()))
            if plan.funded and request.gpus <= asked.pools[0].free_gpus:
                if backfill(asked).starts:
                    self.waiting.remove(i)
                    self.started[i], self.running[i] = self.now, plan
            elif plan.funded not in heads:
                route, _ = find_route(book, request, self.now_ms, whole=True)
                gang = Gang("H100", request.gpus)
                head = QueueHead(str(i), gang, head_funding(route, request))
                (promise,) = backfill(replace(asked, heads=(head,))).promises
                if promise.start_ms is not None:
                    if not heads:
                        self.promised.setdefault(i, (promise.start_ms - NOW_MS) // MINUTE)
                    heads[plan.funded] = head
        self.now += 1

    def could_start(self, i: int) -> bool:
        """Whether a run would start on a cluster of its own."""
        work = self.works[i]
        return work.gpus <= self.gpus and cover(Book(self.budgets, {}), work.request, 0).funded


def works(*, honest: bool) -> st.SearchStrategy[list[Work]]:
    def made(owner: str, gpus: int, estimate: int, share: int, at: int) -> Work:
        return Work(owner, gpus, estimate, max(1, estimate * share // 100), at)

    share = st.integers(1, 100 if honest else 300)
    owner, gpus = st.sampled_from(OWNERS), st.integers(1, 8)
    return st.lists(
        st.builds(made, owner, gpus, st.integers(1, 30), share, st.integers(0, 20)), max_size=12
    )


def made_budget(owner: str, kin: bool, gpus: tuple[int, int], cap: int | None) -> Budget:
    lending = Lending(True, ("*",), gpus[0])
    envelopes = (
        Envelope("one", "H100", gpus[0], lending=lending),
        Envelope("two", "H100", gpus[1]),
    )
    caps = () if cap is None else (AggregateCap("both", "H100", ("one", "two"), cap),)
    return Budget(owner, owner, ("all",) if kin else (), envelopes, caps)


sizes = st.tuples(st.integers(1, 5), st.integers(1, 3))
budgets = st.tuples(
    *(
        st.builds(made_budget, st.just(owner), st.booleans(), sizes, st.none() | st.integers(1, 6))
        for owner in OWNERS
    )
).map(list)


@settings(deadline=None)
@given(st.integers(4, 16), budgets, works(honest=True))
def test_a_promise_over_devices_and_charges_is_kept(
    gpus: int, budgets: list[Budget], works: list[Work]
) -> None:
    """Where estimates are upper bounds, a head that was first starts at its promise, or before."""
    cluster = Cluster(gpus, budgets, works)
    while cluster.now <= 21 or cluster.running:
        cluster.turn()
    for run, minute in cluster.promised.items():
        assert cluster.started[run] <= minute


@settings(deadline=None)
@given(st.integers(4, 16), budgets, works(honest=False))
def test_every_run_that_can_be_funded_starts_and_no_other_blocks_it(
    gpus: int, budgets: list[Budget], works: list[Work]
) -> None:
    """However wrong the estimates are, and whatever waits that can never start."""
    cluster = Cluster(gpus, budgets, works)
    due = {i for i in range(len(works)) if cluster.could_start(i)}
    bound = 21 + sum(works[i].truth for i in due) + 1
    while cluster.started.keys() < due:
        cluster.turn()
        assert cluster.now <= bound, "one after the other would have been as quick"
    assert cluster.started.keys() == due


# -- one head --------------------------------------------------------------------------------------


def funding_of(request: Request, *budgets: Budget, leases: tuple[Lease, ...] = ()) -> HeadFunding:
    book = Book(budgets, tally(budgets, leases, NOW_MS))
    return head_funding(find_route(book, request, NOW_MS, whole=True)[0], request)


def test_what_stands_in_the_way_of_a_head() -> None:
    """Own envelopes, the cap over both, then a sponsor's with its sub-cap, ACL and hours."""
    own = made_budget("a", False, (4, 2), 5)
    lender = replace(own, name="s", owner="s", aggregate_caps=())
    hours = replace(lender.envelopes[0], max_hours_ms=8 * 60 * MINUTE)
    lender = replace(lender, envelopes=(hours, lender.envelopes[1]))
    request = Work("a", 8, 60, 60, 0).request
    request = replace(request, gpus=8, min_gpus=6, step_gpus=2, sponsors=("s",))
    lease = Lease("x", "x", "s", "one", 6, NOW_MS, NOW_MS + MINUTE, borrowed=True)
    found = funding_of(request, own, lender, leases=(lease,))
    assert found == HeadFunding(
        6,
        (
            HeadCap(4, ("a/one",)),
            HeadCap(5, ("a/one", "a/two")),
            HeadCap(2, ("a/two",)),
            HeadCap(-2, ("s/one",)),
            HeadCap(8),
            HeadCap(-2, ("s/one",), loans=True),
            HeadCap(3),
            HeadCap(2, ("s/two",)),
            HeadCap(0),
        ),
        ((0, 1), (2, 1), (3, 4, 5, 6), (7, 8, 6)),
    )


def outlook(*charges: LeaseCharge) -> Outlook:
    return Outlook([Pool("p", {}, 99)], NOW_MS, BackfillPolicy(), charges)


def test_the_first_time_at_which_a_head_is_paid() -> None:
    """Now, at an end, at a later end that gives the devices too, or never."""
    head = HeadFunding(4, (HeadCap(1, ("a/one",)), HeadCap(1, ("a/two",))), ((0,), (1,)))
    ends = [NOW_MS + minutes * MINUTE for minutes in (2, 3, 3, 4)]
    rows = zip(("a/one", "a/two", "b/one", "a/one"), ends, strict=True)
    charges = outlook(*(LeaseCharge(name, 1, NOW_MS, end_ms) for name, end_ms in rows)).charges
    assert charges.start_ms(head, NOW_MS) == ends[1]
    assert charges.start_ms(head, ends[0] + 1) == ends[1]
    assert charges.start_ms(head, ends[2] + 1) == ends[2] + 1
    assert charges.start_ms(head, ends[3] + 1) == ends[3] + 1
    assert charges.start_ms(replace(head, gpus=2), NOW_MS) == NOW_MS
    assert charges.start_ms(replace(head, gpus=6), NOW_MS) is None
    assert charges.could_pay(replace(head, gpus=5))
    assert not charges.could_pay(replace(head, gpus=6))
    assert outlook().charges.start_ms(replace(head, gpus=2), NOW_MS) == NOW_MS
    strange = (LeaseCharge("z/one", 1, NOW_MS, NOW_MS + minutes * MINUTE) for minutes in (1, 2))
    assert outlook(*strange).charges.start_ms(head, NOW_MS) is None, "others' ends change nothing"
    assert outlook().charges.start_ms(head, NOW_MS) is None


def test_a_loan_that_ends_gives_room_to_loans_and_own_use_only_to_its_envelope() -> None:
    head = HeadFunding(2, (HeadCap(0, ("s/one",)), HeadCap(1, ("s/one",), loans=True)), ((0, 1),))
    own, lent = (
        LeaseCharge("s/one", 2, NOW_MS, NOW_MS + MINUTE, borrowed) for borrowed in (False, True)
    )
    assert outlook(own).promise_ms(QueueHead("h", Gang("H100", 2), head)) is None
    assert outlook(lent).promise_ms(QueueHead("h", Gang("H100", 2), head)) == NOW_MS + MINUTE


FUNDED = replace(
    REQUEST,
    run=Backfiller("small", {"a": 1}, None, (Payment("t/x", 1),)),
    heads=(QueueHead("wide", Gang("H100", 2), HeadFunding(2, (HeadCap(0, ("t/x",)),), ((0,),))),),
    charges=(
        LeaseCharge("t/x", 2, NOW_MS, NOW_MS + 2 * MINUTE),
        LeaseCharge("t/x", 1, NOW_MS, NOW_MS + 9 * MINUTE),
    ),
)


def test_runs_beside_a_head_that_lacks_funding() -> None:
    """Devices are free; a run that takes the envelope for longer waits, and no other one."""
    assert backfill(FUNDED).reason is BackfillReason.DELAYS
    assert backfill(FUNDED).promises[0].start_ms == NOW_MS + 2 * MINUTE
    other = replace(FUNDED.run, payments=(Payment("u/x", 1),))
    assert backfill(replace(FUNDED, run=other)).reason is BackfillReason.LEAVES_ROOM
    short = replace(FUNDED.run, end_ms=NOW_MS + 2 * MINUTE)
    assert backfill(replace(FUNDED, run=short)).reason is BackfillReason.ENDS_BEFORE
    needed = replace(FUNDED, charges=FUNDED.charges[:1])
    assert backfill(needed) == backfill(FUNDED), "what ends after the promise changes nothing"
    assert decide(STYLE.from_core(FUNDED)) == from_backfill(FUNDED, backfill(FUNDED))


def test_a_payer_behind_an_unknown_cap_is_refused() -> None:
    document = STYLE.from_core(FUNDED)
    document["heads"][0]["funding"]["payers"] = [[0], [1]]
    with pytest.raises(BadInput, match=r"payers\[1\]: names a cap beyond the 1 given"):
        decide(document)


def test_a_head_is_not_paid_where_an_end_leaves_it_less() -> None:
    """Caps on wz, wx and wy: what z gives back goes to w, which takes it from x and from y. All
    that ends by a time has ended then."""

    def when(room: int, ends: dict[str, int], since: int = 0) -> int | None:
        caps = (("w", "z"), 0), (("w", "x"), room), (("w", "y"), 2)
        found = [HeadCap(gpus, tuple(f"a/{name}" for name in names)) for names, gpus in caps]
        head = HeadFunding(4, tuple(found), ((0, 1, 2), (1,), (2,)))
        rows = [
            LeaseCharge(f"a/{name}", 2 if name == "z" else 1, NOW_MS, NOW_MS + minute * MINUTE)
            for name, minute in ends.items()
        ]
        start_ms = outlook(*rows).charges.start_ms(head, NOW_MS + since * MINUTE)
        return None if start_ms is None else (start_ms - NOW_MS) // MINUTE

    assert when(2, {"z": 3}, since=2) == 2
    assert when(2, {"z": 3}, since=3) is None
    assert when(1, {"x": 2, "z": 3}) == 2
    assert when(1, {"x": 2, "z": 3}, since=3) is None
    assert when(1, {"x": 3, "z": 3}) is None
