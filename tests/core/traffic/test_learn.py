"""What the agent learns of a group where the operator set nothing: its budget, what is usual."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from fairlead.core.traffic import (
    AdmissionMode,
    Config,
    GroupMemory,
    GroupRules,
    Liveness,
    Sighting,
    rested,
)
from fairlead.core.traffic.alone import UNLEARNED_EACH
from fairlead.core.traffic.learn import (
    CHANGE_MS,
    CUT,
    FORMER_PART,
    HELPLESS_MS,
    QUEUE_LEAST,
    USUAL_SAMPLES_MIN,
    AdmissionBudget,
    InsideBound,
    Rates,
    Usual,
    is_buried,
    latency_reference,
    queue_reference,
    stay_of,
)
from fairlead.core.traffic.sighting import BackendSeen, GroupSeen
from tests.core.traffic.lives import GroupLife


class Served:
    """A group that serves so many a second, and its budget."""

    def __init__(self) -> None:
        self.clock_ms, self.served = 0, 0
        self.budget = AdmissionBudget()

    def go(
        self,
        seconds: float,
        per_s: int,
        mode: AdmissionMode = AdmissionMode.NORMAL,
        *,
        triggered: bool = False,
    ) -> float:
        for _ in range(round(seconds * 5)):
            self.clock_ms += 200
            self.served += per_s // 5
            self.advance(self.served, mode, triggered=triggered)
        return self.rate

    def advance(self, served: int | None, mode: AdmissionMode, *, triggered: bool) -> None:
        self.budget = self.budget.advance(
            self.clock_ms, served, mode=mode, triggered=triggered, config=Config(), window_ms=5_000
        )

    @property
    def rate(self) -> float:
        assert self.budget.rate is not None
        return self.budget.rate


def test_before_anything_was_served_the_default_holds() -> None:
    """Nothing is known: nothing is changed."""
    group = Served()
    assert group.go(20, 0) == Config().bucket_rate
    group.clock_ms += 200
    group.advance(None, AdmissionMode.NORMAL, triggered=False)
    assert group.rate == Config().bucket_rate


def test_soft_starts_below_what_was_served_and_is_cut_once_per_window() -> None:
    """85 %, then 85 % of that every 5 s while the trigger lasts; calm grows it again."""
    group = Served()
    assert group.go(10, 400) == pytest.approx(400)
    assert group.go(0.2, 400, AdmissionMode.SOFT, triggered=True) == pytest.approx(400 * CUT)
    assert group.go(4, 400, AdmissionMode.SOFT, triggered=True) == pytest.approx(400 * CUT)
    assert group.go(1.2, 400, AdmissionMode.SOFT, triggered=True) == pytest.approx(400 * CUT**2)
    low = group.rate
    assert low * 1.3 < group.go(5, 300, AdmissionMode.SOFT) < low * 1.5
    assert group.go(10, 500) == pytest.approx(500, rel=0.1)  # in steps


def test_the_budget_has_a_floor() -> None:
    """A quarter of what was served when admission was open: of what it admits now there would be no
    end. If less does not help either, it is not the load.
    """
    group = Served()
    group.go(10, 400)
    for _ in range(3_600):
        group.go(1, round(group.rate), AdmissionMode.SOFT, triggered=True)
    assert group.rate == pytest.approx(100)


def test_hard_leaves_the_budget_alone() -> None:
    """What a drip serves says nothing about what can be served."""
    group = Served()
    group.go(10, 400)
    assert group.go(120, 0, AdmissionMode.HARD, triggered=True) == pytest.approx(400)
    assert group.go(0.2, 0, AdmissionMode.SOFT) == pytest.approx(400 * CUT)


def test_a_quiet_hour_does_not_make_a_small_group() -> None:
    """Little came, which is not the same as little can; ten minutes later it is forgotten."""
    group = Served()
    group.go(10, 400)
    assert group.go(120, 5) == pytest.approx(400)
    assert group.go(600, 5) == pytest.approx(5)
    assert group.go(10, 200) == pytest.approx(200)


def test_counters_that_begin_again_are_no_negative_budget() -> None:
    """A plane was restarted."""
    group = Served()
    group.go(10, 400)
    group.served = 0
    assert group.go(5, 400) == pytest.approx(400)


def test_small_changes_of_what_is_served_change_nothing() -> None:
    """A steady group keeps its table."""
    group = Served()
    group.go(10, 400)
    assert group.go(20, 430) == pytest.approx(400)
    assert group.go(20, 370) == pytest.approx(400)


def test_the_parameters_stay_in_their_ranges() -> None:
    """A budget of nothing is still a parameter that the tick takes."""
    assert AdmissionBudget(rate=0.0).changes(Config()) == {"bucket_rate": 0.1, "bucket_burst": 1.0}
    assert AdmissionBudget().changes(Config()) == {"bucket_rate": 100.0, "bucket_burst": 10.0}


def looked(before: AdmissionBudget, served: int | None) -> AdmissionBudget:
    """After a look at 90 s; under hard that is all."""
    return before.advance(
        90_000, served, mode=AdmissionMode.HARD, triggered=True, config=Config(), window_ms=5_000
    )


OLD, KEPT = (80_000, 900.0), (80_001, 300.0)


@pytest.mark.parametrize(
    ("since_ms", "served", "window", "recent", "stretches"),
    [
        pytest.param(
            89_000, 1_400, ((89_000, 1_000), (90_000, 1_400)), (400.0,), (400.0,), id="400 a second"
        ),
        pytest.param(
            89_000, 1_000, ((89_000, 1_000), (90_000, 1_000)), (0.0,), (0.0,), id="nothing came"
        ),
        pytest.param(
            89_001, 1_400, ((89_001, 1_000), (90_000, 1_400)), (), (), id="not a second yet"
        ),
        pytest.param(89_000, 999, ((90_000, 999),), (), (), id="another process counts"),
        pytest.param(89_000, None, (), (), (), id="nobody counts"),
    ],
)
def test_a_look_at_what_is_served(
    since_ms: int,
    served: int | None,
    window: tuple[tuple[int, int], ...],
    recent: tuple[float, ...],
    stretches: tuple[float, ...],
) -> None:
    """Each second is remembered for ten; the most of them, with its stretch, for ten minutes."""
    long: Rates = ((8, 500.0),)
    before = AdmissionBudget(
        served=((since_ms, 1_000),), recent=(OLD, KEPT), long=long, at_ms=89_800
    )
    assert looked(before, served) == replace(
        before,
        served=window,
        recent=(KEPT, *((90_000, per_s) for per_s in recent)),
        long=(*long, *((9, per_s) for per_s in stretches)),
        at_ms=90_000,
    )


def unseen(
    before: AdmissionBudget, clock_ms: int, mode: AdmissionMode, **changes: bool
) -> AdmissionBudget:
    """After a tick in which nothing was counted."""
    told: dict[str, Any] = {"triggered": False, **changes}
    return before.advance(clock_ms, None, mode=mode, config=Config(), window_ms=5_000, **told)


def test_open_admission_takes_what_was_served_in_steps_of_more_than_a_tenth() -> None:
    """And ends what was begun in soft; what was never seen is nothing to return to."""
    begun = AdmissionBudget(rate=100.0, recent=((9_800, 110.0),), soft=True, before=7.0)
    open_ = replace(begun, soft=False, at_ms=10_000)
    assert unseen(begun, 10_000, AdmissionMode.NORMAL) == replace(open_, before=110.0)
    more: Rates = ((9_800, 110.5),)
    expected = replace(open_, rate=110.5, recent=more, before=110.5)
    assert unseen(replace(begun, recent=more), 10_000, AdmissionMode.NORMAL) == expected
    unknown = replace(begun, recent=())
    expected = replace(open_, recent=(), before=0.0)
    assert unseen(unknown, 10_000, AdmissionMode.NORMAL) == expected


def test_a_budget_is_cut_once_a_window_and_not_below_the_drip() -> None:
    soft = AdmissionBudget(rate=1.0, soft=True, cut_ms=3_000)
    early = unseen(soft, 7_999, AdmissionMode.SOFT, triggered=True)
    assert early == replace(soft, at_ms=7_999)
    due = unseen(soft, 8_000, AdmissionMode.SOFT, triggered=True)
    assert due == replace(soft, cut_ms=8_000, at_ms=8_000)
    large = unseen(replace(soft, rate=200.0), 8_000, AdmissionMode.SOFT, triggered=True)
    assert large.rate == 200.0 * CUT


def test_a_calm_budget_grows_by_the_second() -> None:
    """By 7 %; a bounded group's doubles, up to four times what was served before."""
    soft = AdmissionBudget(rate=100.0, soft=True, at_ms=1_000)
    assert unseen(soft, 2_000, AdmissionMode.SOFT).rate == pytest.approx(107.0, rel=1e-9)
    rates = [
        unseen(replace(soft, before=before), 2_000, AdmissionMode.SOFT, bounded=True).rate
        for before in (100.0, 40.0, 10.0)
    ]
    assert rates == [200.0, 160.0, 100.0]


class Reference:
    """What follows the usual value of a signal."""

    def __init__(self, of: Callable[[float, Config], float], value: float | None = None) -> None:
        self.usual, self.of, self.value = Usual(), of, value

    def advance(self, clock_ms: int, values: list[float], mode: AdmissionMode) -> float | None:
        self.usual, usual = self.usual.advance(clock_ms, values, mode)
        if usual is not None:
            self.value = self.of(usual, Config())
        return self.value

    def learn(self, seconds: int, value: float, mode: AdmissionMode, from_s: int) -> float | None:
        """So many seconds of ticks from a time on."""
        for tick in range(seconds * 5):
            self.advance(from_s * 1_000 + tick * 200, [value], mode)
        return self.value


def test_the_reference_is_twice_the_usual_queue() -> None:
    """After ten looks, between 4 and the configured one, every ten seconds at most."""
    reference, clock_ms, seen = Reference(queue_reference, Config().q_ref), 0, []
    for _ in range(200):
        clock_ms += 200
        seen.append(reference.advance(clock_ms, [3.0, 5.0, 100.0], AdmissionMode.NORMAL))
    assert seen[0] == Config().q_ref
    assert seen[-1] == 10.0
    assert len(set(seen)) == 2


@pytest.mark.parametrize(("queue", "found"), [(0.0, QUEUE_LEAST), (1e6, Config().q_ref)])
def test_the_reference_has_its_limits(queue: float, found: float) -> None:
    """Neither a silent group nor an endless queue moves it out of reason."""
    assert Reference(queue_reference).learn(40, queue, AdmissionMode.NORMAL, 0) == found


def test_references_are_rounded_to_a_tenth() -> None:
    """They change the dataplane's table: a hair more is no news."""
    assert queue_reference(2.62, Config()) == 5.2
    assert latency_reference(123.456, Config()) == 123.5
    assert AdmissionBudget(rate=123.456).changes(Config())["bucket_rate"] == 123.5


def test_once_a_second_the_median_is_a_sample() -> None:
    """A queue of nothing is usual, too."""
    usual, _ = Usual().advance(1_000, [9.0, 4.0, 3.0], AdmissionMode.NORMAL)
    assert usual == Usual((4.0,), 1_000, 0, 1_000)
    usual, _ = usual.advance(1_999, [8.0], AdmissionMode.NORMAL)
    assert usual == Usual((4.0,), 1_000, 0, 1_999)
    usual, _ = usual.advance(2_000, [0.0], AdmissionMode.NORMAL)
    assert usual == Usual((4.0, 0.0), 2_000, 0, 2_000)


@pytest.mark.parametrize(
    ("samples", "changed_ms", "after_ms", "due"),
    [
        (USUAL_SAMPLES_MIN, 0, CHANGE_MS, True),
        (USUAL_SAMPLES_MIN, 0, CHANGE_MS - 1, False),
        (USUAL_SAMPLES_MIN, 20_000, CHANGE_MS, True),
        (USUAL_SAMPLES_MIN, 20_000, CHANGE_MS - 1, False),
        (USUAL_SAMPLES_MIN - 1, 0, CHANGE_MS, False),
    ],
)
def test_ten_samples_say_what_is_usual_once_in_ten_seconds(
    samples: int, changed_ms: int, after_ms: int, due: bool
) -> None:
    before, clock_ms = Usual((4.0,) * samples, changed_ms=changed_ms), changed_ms + after_ms
    usual, found = before.advance(clock_ms, [], AdmissionMode.NORMAL)
    assert (found, usual.changed_ms) == ((4.0, clock_ms) if due else (None, changed_ms))


@pytest.mark.parametrize(
    ("samples", "soft_ms", "teaches"),
    [
        (USUAL_SAMPLES_MIN - 1, HELPLESS_MS - 1, True),
        (USUAL_SAMPLES_MIN, HELPLESS_MS - 1, False),
        (USUAL_SAMPLES_MIN, HELPLESS_MS, True),
    ],
)
def test_soft_admission_teaches_where_little_is_known_or_it_did_not_help(
    samples: int, soft_ms: int, teaches: bool
) -> None:
    """Half a minute since admission was open."""
    before = Usual((4.0,) * samples, open_ms=5_000)
    usual, _ = before.advance(5_000 + soft_ms, [9.0], AdmissionMode.SOFT)
    assert (len(usual.samples) > samples) is teaches
    assert usual.open_ms == 5_000


def test_restricted_admission_teaches_nothing_unless_it_does_not_help() -> None:
    """What piles up in its first half minute is not usual. What is still there then is."""
    reference = Reference(queue_reference)
    assert reference.learn(60, 3.0, AdmissionMode.NORMAL, 0) == 6.0
    assert reference.learn(30, 20.0, AdmissionMode.SOFT, 60) == 6.0
    assert reference.learn(90, 20.0, AdmissionMode.HARD, 90) == 6.0
    assert reference.learn(60, 20.0, AdmissionMode.SOFT, 180) == 40.0


def test_a_service_that_takes_its_time_has_a_reference_of_its_own() -> None:
    """Unknown for ten looks, then what is usual; a service that is faster keeps the default."""
    reference = Reference(latency_reference)
    assert reference.learn(8, 400.0, AdmissionMode.NORMAL, 0) is None
    assert reference.learn(10, 400.0, AdmissionMode.NORMAL, 8) == 400.0
    assert reference.learn(30, 1_600.0, AdmissionMode.SOFT, 18) == 400.0
    assert reference.learn(90, 40.0, AdmissionMode.NORMAL, 48) == Config().l_ref_ms


def test_until_the_usual_latency_is_known_it_restricts_no_admission() -> None:
    """A healthy group of 400 ms, without an objective: never anything but open."""
    life = GroupLife(GroupRules(Config(), own_latency=True))
    references = set()
    for tick in range(100):
        seen = {
            id: BackendSeen(queue=1, open=1, p95_ms=400.0, successes=tick, errors=0, admitted=tick)
            for id in ("a", "b")
        }
        observed, plan = life.tick(
            Sighting(
                now_ms=1_000 + tick * 200,
                members=dict.fromkeys(seen),
                seen=GroupSeen(1, Liveness.NORMAL, AdmissionMode.NORMAL, 2 * tick, 0, 0, seen),
            )
        )
        references.add((observed.snapshot.config.g_min, observed.snapshot.config.l_ref_ms))
        assert plan.admission.mode is AdmissionMode.NORMAL
    assert references == {(0.0, 100.0), (0.3, 400.0)}
    assert life.memory.l_ref_ms == 400.0


# --- the bound of what is inside


def bounded(before: InsideBound, **changes: Any) -> InsideBound:
    """After a look at 10 s: four backends that serve 1000 a second and hold nothing, for 100 ms."""
    usual = {"inside": 0, "idle": 0, "best": 1_000.0, "per_s": None, "l_ref_ms": 100.0}
    told: dict[str, Any] = {**usual, "serving": 4, **changes}
    return before.advance(10_000, **told)


def test_a_bound_is_not_learned_in_two_seconds() -> None:
    """What is seen is remembered: what is inside and served, and for 5 s what is idle."""
    before = InsideBound(58, (20,), (400.0,), 8_001, ((5_000, 9), (5_001, 7)), 29.0)
    after = InsideBound(58, (20, 29), (400.0, 480.0), 8_001, ((5_001, 7), (10_000, 3)), 29.0)
    assert bounded(before, inside=29, idle=3, per_s=480.0) == after
    assert bounded(before, inside=29, idle=3) == replace(after, per_s=(400.0, 0.0))
    busy = replace(after, inside=(20,), per_s=(400.0,))
    assert bounded(before, inside=30, idle=3, per_s=480.0) == busy


LOOKED = InsideBound(since_ms=8_000)


def test_a_bound_holds_what_is_served_in_half_the_reference() -> None:
    """50 ms of 1000 a second, and what is idle besides, unless that is more than half of it."""
    learned = InsideBound(75, (0,), (0.0,), 8_000, ((10_000, 25),), 25.0)
    assert bounded(LOOKED, idle=25) == learned
    unknown = replace(learned, value=None, idle=((10_000, 26),))
    assert bounded(LOOKED, idle=26) == unknown
    assert bounded(LOOKED, part=FORMER_PART).value == 60
    assert bounded(LOOKED, best=10.0, serving=0).value == 1, "nothing is usual, and nobody serves"


@pytest.mark.parametrize(("idle", "value"), [(5, 50), (6, 56)])
def test_a_bound_changes_by_more_than_a_tenth(idle: int, value: int) -> None:
    assert bounded(replace(LOOKED, value=50), idle=idle).value == value


def test_requests_stay_half_the_reference_or_half_longer_than_is_usual() -> None:
    """20 inside, of which 40 a second leave, stay for half a second."""
    assert stay_of((), (), 100.0) == 0.05
    assert stay_of((20, 20), (40.0, 40.0), 100.0) == 0.75
    assert stay_of((20, 20), (40.0, 40.0), 2_000.0) == 1.0


# --- buried groups


def test_a_group_is_buried_when_nobody_waits_for_what_is_in_it() -> None:
    """By Little's law, against the reference; where that is unknown only if nothing is served."""
    assert not is_buried(None, 0.0, 100.0, 4)
    assert not is_buried(4 * UNLEARNED_EACH - 1, 0.0, 100.0, 4), "not many"
    assert is_buried(300, 0.0, None, 4)
    assert is_buried(300, None, 100.0, 4)
    assert not is_buried(300, 5.0, None, 4), "they may simply take a minute"
    assert is_buried(600, 480.0, 100.0, 4), "1.25 s, of a reference of 0.1 s"
    assert not is_buried(480, 480.0, 100.0, 4), "just ten times the reference"
    assert is_buried(481, 480.0, 100.0, 4)
    assert is_buried(4 * UNLEARNED_EACH, 0.0, None, 4)
    assert is_buried(UNLEARNED_EACH, 0.0, None, 1)
    assert is_buried(UNLEARNED_EACH, 0.0, None, 0)


def test_a_buried_group_is_bounded_although_it_was_never_seen_to_serve() -> None:
    """After 3 s; and what was in it then is not what is usual."""
    asked: dict[str, Any] = {"idle": 0, "per_s": 0.0, "l_ref_ms": 100.0, "serving": 4}
    bound = InsideBound()
    for clock_ms in range(0, 3_000, 200):
        bound = bound.advance(clock_ms, inside=4_000, best=None, buried=True, **asked)
        assert bound.value is None
    bound = bound.advance(3_000, inside=4_000, best=None, buried=True, **asked)
    assert bound.value == 4 * UNLEARNED_EACH
    asked["per_s"] = 480.0
    bound = bound.advance(3_200, inside=3_900, best=480.0, buried=True, **asked)
    assert bound.inside == ()
    assert bound.value == 32, "8 for each: a hundredth of what is in it"


def test_a_group_that_is_buried_again_keeps_its_bound() -> None:
    """One that has none waits for 3 s since it was first looked at."""
    assert bounded(InsideBound(58, since_ms=0), best=None, buried=True).value == 58
    for since_ms, value in ((7_000, 4 * UNLEARNED_EACH), (7_001, None)):
        before = InsideBound(since_ms=since_ms)
        assert bounded(before, best=None, buried=True) == replace(before, value=value)


def test_what_was_learned_outlives_a_long_absence() -> None:
    """The bound, the references and what was served; not the windows of the last seconds."""
    memory = GroupMemory(
        now_ms=1,
        clock_ms=90_000,
        healths=(),
        budget=AdmissionBudget(rate=400.0, recent=((89_000, 400.0),), long=((8, 480.0),)),
        bound=InsideBound(58, (20, 21), (470.0, 480.0), 1_000, ((89_800, 0),), 29.0),
        l_ref_ms=140.0,
    )
    kept = rested(memory)
    assert (kept.bound.value, kept.bound.busy, kept.l_ref_ms) == (58, 29.0, 140.0)
    assert kept.budget.best == 480.0
    assert (kept.budget.recent, kept.bound.idle, kept.refused) == ((), (), ())
