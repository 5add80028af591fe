"""How much may be inside a group, learnt; and backends that answer with nothing but errors."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from fairlead.core.traffic import (
    AdmissionMode,
    Backend,
    Cause,
    Config,
    GroupMemory,
    GroupRules,
    HealthRules,
    Liveness,
    OperatorCommand,
    Regime,
    Resource,
    Sighting,
    StallTotals,
    State,
    counters,
    observe,
    rested,
)
from fairlead.core.traffic.counters import (
    LOOKS,
    SPAN_MS,
    Signals,
    Streak,
    TrafficCounters,
    find_broken,
    outcomes,
)
from fairlead.core.traffic.health import BackendHealth, Tracked
from fairlead.core.traffic.learn import LEAST_EACH, AdmissionBudget, InsideBound, Usual
from fairlead.core.traffic.memory import EDITION, BackendHistory, Backoff
from fairlead.core.traffic.observe import (
    LASTED_MS,
    NORMS,
    Observed,
    _backend,
    _beyond_chance,
    _beyond_common,
    _connect_failures,
    _current,
    _failures_in_a_row,
    _follow_isolation,
    _held,
    _judged_pressures,
    _learn,
    _probed,
    _read,
    _retry_index,
    inside,
    served,
)
from fairlead.core.traffic.sighting import (
    BackendSeen,
    GroupSeen,
    Look,
    NodeReading,
    Probed,
    Reading,
)
from fairlead.core.traffic.state import AdmissionState, BackendMemory
from fairlead.core.units import SIZE_MAX
from tests.core.traffic.lives import GroupLife

L_REF_MS = 400.0


class Group:
    """A group with so much inside that serves so many a second."""

    def __init__(self) -> None:
        self.clock_ms, self.bound = 0, InsideBound()

    def go(
        self, seconds: float, inside: int | None, best: float | None, *, idle: int = 0
    ) -> int | None:
        for _ in range(round(seconds * 5)):
            self.clock_ms += 200
            self.bound = self.bound.advance(
                self.clock_ms,
                inside=inside,
                idle=idle,
                best=best,
                per_s=best,
                l_ref_ms=L_REF_MS,
                serving=4,
            )
        return self.bound.value


def test_the_bound_is_what_can_be_served_in_time() -> None:
    """Little's law: 240 a second, half of 400 ms each."""
    assert Group().go(5, 15, 240.0) == 48


@pytest.mark.parametrize(("inside", "best"), [(None, 240.0), (20, None)])
def test_where_nobody_can_tell_there_is_no_bound(inside: int | None, best: float | None) -> None:
    """A blind bound would be a guess, and a closed door."""
    assert Group().go(60, inside, best) is None


def test_nobody_is_bounded_in_the_first_moments() -> None:
    """Two seconds of looks."""
    group = Group()
    assert group.go(2, 20, 240.0) is None
    assert group.go(0.2, 20, 240.0) == 60


def test_one_busy_moment_is_not_what_is_usual() -> None:
    """Every tick counts: of a small group a look now and then would be luck."""
    bound = InsideBound()
    for number in range(12):
        inside = 9 if number % 5 == 0 else 4
        bound = bound.advance(
            200 * number, inside=inside, idle=0, best=60.0, per_s=60.0, l_ref_ms=L_REF_MS, serving=1
        )
    assert bound.value == 12


def test_a_small_or_idle_group_may_still_have_a_burst() -> None:
    """A few for each backend."""
    assert Group().go(60, 0, 1.0) == 4 * LEAST_EACH


class Crowd:
    """A real group behind the bound: so many workers (None: as many as come), so long a stay."""

    def __init__(self, stay_ms: int, workers: int | None = None) -> None:
        self.stay_ms, self.workers = stay_ms, workers
        self.budget, self.bound = AdmissionBudget(), InsideBound()
        self.now_ms = self.served = 0
        self.inside: list[int] = []
        """When each is done."""

    def go(self, seconds: int, per_s: int) -> float:
        """Let so many come; returns which part of them was refused."""
        came = refused = 0
        for _ in range(seconds * 5):
            self.now_ms += 200
            done = sum(end <= self.now_ms for end in self.inside)
            self.inside, self.served = self.inside[done:], self.served + done
            value = self.bound.value
            for _ in range(per_s // 5):
                came += 1
                if value is not None and len(self.inside) >= value:
                    refused += 1
                    continue
                begins = self.now_ms
                if self.workers is not None and len(self.inside) >= self.workers:
                    begins = max(begins, self.inside[-self.workers])
                self.inside.append(begins + self.stay_ms)
            self.budget = self.budget.advance(
                self.now_ms,
                self.served,
                mode=AdmissionMode.NORMAL,
                triggered=False,
                config=Config(),
                window_ms=5_000,
            )
            self.bound = self.bound.advance(
                self.now_ms,
                inside=len(self.inside),
                idle=0,
                best=self.budget.best,
                per_s=self.budget.now,
                l_ref_ms=100.0,
                serving=4,
            )
        return refused / max(1, came)


@pytest.mark.parametrize("stay_ms", [90, 500])
def test_a_healthy_group_may_grow_however_ambitious_the_reference(stay_ms: int) -> None:
    """From a quiet night to 25 times as much: within seconds nobody is refused any more."""
    crowd = Crowd(stay_ms)
    crowd.go(60, 25)
    crowd.go(20, 600)
    assert crowd.go(30, 600) == 0


def test_a_long_overload_does_not_become_what_is_usual() -> None:
    """Nor do its quieter moments, in which the queue is only shorter: half an hour later as much
    may be inside as in its first minute.
    """
    crowd = Crowd(1_000, workers=240)
    crowd.go(60, 150)
    crowd.go(60, 480)
    before = crowd.bound.value
    for _ in range(180):
        crowd.go(9, 480)
        crowd.go(1, 100)
    assert before is not None
    assert crowd.bound.value == pytest.approx(before, rel=0.12)


def test_a_reference_too_ambitious_for_the_service_refuses_nobody() -> None:
    """Usually 300 are inside: 900 may be, whatever Little would say."""
    group = Group()
    assert group.go(60, 300, 240.0) == 900


def test_an_overload_does_not_become_what_is_usual() -> None:
    """It may last: the bound stays where it is."""
    group = Group()
    group.go(60, 15, 240.0)
    assert group.go(600, 58, 240.0) == 48
    assert group.go(600, 2000, 240.0) == 48


def test_the_bound_follows_in_steps_of_a_tenth() -> None:
    """Every change is a flip."""
    group = Group()
    assert group.go(60, 15, 240.0) == 48
    assert group.go(60, 15, 250.0) == 48
    assert group.go(60, 15, 300.0) == 60
    assert group.go(60, 15, 120.0) == 45


def test_idle_connections_are_not_inside() -> None:
    """A plane counts them, so a few come on top of the bound; where there are many, none holds."""
    group = Group()
    assert group.go(60, 15, 240.0, idle=20) == 68
    assert group.go(600, 58, 240.0, idle=20) == 68
    assert group.go(60, 15, 240.0, idle=1000) is None


def test_what_looks_idle_for_a_moment_is_not() -> None:
    """The plane is asked now, the application was asked a moment ago."""
    group = Group()
    group.go(60, 15, 240.0)
    assert group.go(2, 15, 240.0, idle=80) == 48


def seen(**backends: BackendSeen) -> GroupSeen:
    return GroupSeen(1, Liveness.NORMAL, AdmissionMode.NORMAL, 100, 0, 0, backends)


def sighted(found: GroupSeen | None, **kwargs: Any) -> Sighting:
    return Sighting(now_ms=0, members={"a": None, "b": None}, seen=found, **kwargs)


def test_what_is_inside_by_a_proxy_and_by_an_application() -> None:
    """Where connections are all that a plane sees, they may be idle."""
    proxy = BackendSeen(open=7, queue=0)
    kernel = BackendSeen(open=7)
    told = {"a": Reading(queue=3.0), "b": Reading(queue=2.0)}
    assert inside(sighted(None)) == (None, 0)
    assert inside(sighted(seen(a=proxy))) == (None, 0)
    assert inside(sighted(seen(a=proxy, b=proxy))) == (14, 0)
    assert inside(sighted(seen(a=kernel, b=kernel))) == (None, 0)
    scraped = sighted(seen(a=kernel, b=kernel), readings=told, covered=("queue",))
    assert inside(scraped) == (5, 9)
    full = dict.fromkeys("ab", Reading(queue=7.0))
    assert inside(replace(scraped, readings=full)) == (14, 0)
    silent = sighted(seen(a=kernel, b=kernel), readings={"a": told["a"]}, covered=("queue",))
    assert inside(silent) == (None, 0)


def test_what_was_served_by_whoever_can_tell() -> None:
    """The application if it is asked, else the plane, else what was let in."""
    both = ("requests", "errors")
    told = {"a": Reading(requests=10, errors=1), "b": Reading(requests=5, errors=5)}
    proxy = BackendSeen(successes=40, errors=2)
    assert served(sighted(None)) is None
    assert served(sighted(seen(a=BackendSeen(), b=BackendSeen()))) == 100
    assert served(sighted(seen(a=proxy, b=proxy))) == 80
    assert served(sighted(seen(a=proxy, b=proxy), readings=told, covered=both)) == 9
    assert outcomes(proxy, Reading(), both) == (None, None)
    assert outcomes(None, Reading(), ()) == (None, None)


def test_the_last_moments_are_counted() -> None:
    """And no more; a counter that falls belongs to another process."""
    streak = Streak()
    for clock_ms, successes, errors, found in [
        (0, 5, 5, (0, 0)),
        (200, 5, 8, (3, 0)),
        (400, 6, 9, (4, 1)),
        (5_000, 9, 9, (0, 0)),
        (5_200, 9, 12, (3, 0)),
        (5_400, 0, 0, (0, 0)),
        (5_500, 0, 4, (4, 0)),
        (4_000, 0, 5, (0, 0)),
    ]:
        streak = streak.advance(clock_ms, successes, errors)
        assert (streak.failed, streak.served) == found
    streak = streak.advance(5_600, None, None)
    assert (streak.failed, streak.served) == (0, 0)


def lasts(**counted: tuple[int, int]) -> dict[str, Streak]:
    """Streaks with these failures and successes."""
    made = {}
    for name, (failed, served_) in counted.items():
        streak = Streak()
        for clock_ms, part in ((0, 0), (400, 1)):
            sent = part * (served_ + failed)
            streak = streak.advance(clock_ms, part * served_, part * failed, None, sent)
        made[name] = streak
    return made


@pytest.mark.parametrize(
    ("counted", "found"),
    [
        ({"a": (3, 0), "b": (0, 9), "c": (0, 9), "d": (0, 9)}, {"a"}),
        ({"a": (2, 0), "b": (0, 9), "c": (0, 9), "d": (0, 9)}, set()),
        ({"a": (4, 4), "b": (0, 9), "c": (0, 9), "d": (0, 9)}, set()),
        ({"a": (5, 4), "b": (0, 9), "c": (0, 9), "d": (0, 9)}, {"a"}),
        ({"a": (5, 0), "b": (1, 9), "c": (0, 9), "d": (0, 9)}, set()),
        ({"a": (6, 0), "b": (1, 9), "c": (0, 9), "d": (0, 9)}, {"a"}),
        ({"a": (9, 0), "b": (9, 0), "c": (0, 9), "d": (0, 9)}, {"a", "b"}),
        ({"a": (9, 0), "b": (9, 0), "c": (9, 0), "d": (0, 9)}, set()),
    ],
)
def test_a_streak_of_errors_is_noticed_and_a_few_are_not(
    counted: dict[str, tuple[int, int]], found: set[str]
) -> None:
    """Three, and more than successes; where others fail too, six; never more than half of all."""
    assert find_broken(lasts(**counted), {})[1] == found


def test_what_was_served_before_does_not_excuse_what_fails_now() -> None:
    """A backend that was well a moment ago is found in the same tick."""
    streaks = {name: Streak() for name in "abcd"}
    for clock_ms in range(0, 2_000, 200):
        for name, streak in streaks.items():
            streaks[name] = streak.advance(clock_ms, clock_ms // 20, 0)
    assert find_broken(streaks, {})[1] == set()
    streaks["a"] = streaks["a"].advance(2_000, 92, 4)
    assert find_broken(streaks, {})[1] == {"a"}


@pytest.mark.parametrize(
    ("inside", "failed", "served_", "found"),
    [
        (0, 4, 4, "no"),
        (1, 4, 4, "yes"),
        (4, 4, 7, "yes"),
        (9, 4, 7, "yes"),
        (9, 4, 8, "no"),
        (2, 4, 7, "no"),
        (9, 2, 0, "no"),
    ],
)
def test_what_was_inside_before_does_not_excuse_what_fails_now(
    inside: int, failed: int, served_: int, found: str
) -> None:
    """Of the answers those that began before the errors, but never more than half of them."""
    streak = Streak().advance(0, 0, 0, inside).advance(200, served_, failed, 0)
    assert streak.fails(3) is (found == "yes")


@pytest.mark.parametrize(("between", "isolated"), [((), set()), ((Look(300, 58, 0),), {"d"})])
def test_looks_between_two_ticks_count(between: tuple[Look, ...], isolated: set[str]) -> None:
    """What a backend served until the middle of a tick hides its errors from who did not look."""
    life = GroupLife(GroupRules(Config()))
    for tick, told in enumerate([Look(200, 50, 0), Look(400, 60, 6)]):
        looks = (*(between if tick else ()), told)
        reading = Reading(
            requests=told[1] + told[2], errors=told[2], looks=looks if between else ()
        )
        well = Reading(requests=told[1], errors=0)
        life.tick(
            Sighting(
                now_ms=told[0],
                members=dict.fromkeys("abcd"),
                seen=counted({}),
                readings=dict.fromkeys("abc", well) | {"d": reading},
                covered=("requests", "errors"),
            )
        )
    assert set(life.memory.isolated) == isolated


def again(streaks: dict[str, Streak], held: dict[str, int | None]) -> set[str]:
    """Who is broken, by one more look at the same."""
    for name, streak in streaks.items():
        looks = tuple(past._replace(at_ms=past.at_ms + 200) for past in streak.looks)
        streaks[name] = replace(streak, looks=looks)
    return look(streaks, held)


def look(streaks: dict[str, Streak], held: dict[str, int | None]) -> set[str]:
    """Backends that are broken, by a look at their streaks as they are."""
    judged, broken = find_broken(streaks, held)
    streaks.update(judged)
    return broken


def test_who_piles_up_and_lets_nobody_out_stalls() -> None:
    """Six times as long as with the others, and four inside, three ticks more than not."""
    streaks = lasts(a=(0, 9), b=(0, 9), c=(0, 9), d=(0, 1))
    streaks["d"] = replace(streaks["d"], sent=((0, 0), (400, 9)))
    others = {"a": 8, "b": 8, "c": 4}
    none: set[str] = set()
    for held, found in [(6, none), (6, none), (6, {"d"}), (5, none), (5, none), (6, none)]:
        assert again(streaks, {**others, "d": held}) == found
    assert again(streaks, {**others, "d": None}) == none
    few = dict.fromkeys("abc", 1)
    for held, found in [(3, none), (3, none), (4, none), (4, none), (4, {"d"})]:
        assert again(streaks, {**few, "d": held}) == found
    busy = lasts(a=(0, 9), b=(0, 9), c=(0, 9), d=(0, 9))
    for _ in range(5):
        assert again(busy, {**others, "d": 64}) == set()
        assert again(streaks, {"d": 99}) == set()  # there is nobody to compare it with


def test_who_is_passed_over_is_given_more_time() -> None:
    """It does no harm, and may only have hiccuped; but not for ever."""
    streaks = lasts(a=(0, 9), b=(0, 9), c=(0, 9), d=(0, 1))
    held = {"a": 4, "b": 4, "c": 4, "d": 6}
    assert [again(streaks, held) for _ in range(10)] == [set()] * 9 + [{"d"}]


def test_the_same_look_twice_proves_nothing_more() -> None:
    """Who is asked once a second is judged once a second, however often we tick."""
    streaks = lasts(a=(0, 9), b=(0, 9), c=(0, 9), d=(0, 1))
    streaks["d"] = replace(streaks["d"], sent=((0, 0), (400, 9)))
    held = {"a": 8, "b": 8, "c": 4, "d": 6}
    assert [look(streaks, held) for _ in range(20)] == [set()] * 20
    assert [again(streaks, held) for _ in range(2)] == [set(), {"d"}]


@pytest.mark.parametrize("every_ms", [100, 700, 1_000, 5_000])
def test_however_seldom_it_is_asked_a_backend_that_fails_or_stalls_is_found(every_ms: int) -> None:
    """Two looks at least are held against each other."""
    span_ms, names = max(SPAN_MS, LOOKS * every_ms), ("a", "b", "c")
    failing = {name: Streak(span_ms=span_ms) for name in "abcd"}
    stalling = {name: Streak(span_ms=span_ms) for name in "abcd"}
    for number in range(10):
        at_ms = number * every_ms
        for name in names:
            failing[name] = failing[name].advance(at_ms, at_ms // 10, 0, 4)
            stalling[name] = stalling[name].advance(at_ms, at_ms // 10, 0, 4)
        failing["d"] = failing["d"].advance(at_ms, 50, at_ms // 10, 0)
        stalled = stalling["d"].advance(at_ms, 50, 0, 20)
        stalling["d"] = replace(stalled, sent=((0, 0), (at_ms, 100)))
        held = {**dict.fromkeys(names, 4), "d": 20}
        found = look(stalling, held)
    assert look(failing, {}) == found == {"d"}


def test_too_little_of_the_last_moments_says_nothing() -> None:
    """A scrape that was late leaves one look, between which and itself nobody was served."""
    streaks = lasts(a=(0, 9), b=(0, 9), c=(0, 9), d=(0, 1))
    streaks["d"] = replace(streaks["d"], sent=((0, 0), (400, 9)))
    streaks["d"] = replace(streaks["d"], looks=(Look(700, 50, 0), Look(900, 50, 0)))
    for _ in range(20):
        assert look(streaks, {"a": 4, "b": 4, "c": 4, "d": 6}) == set()


def test_requests_that_were_sent_in_the_last_moments_are_counted() -> None:
    """A counter that falls, or is not there, begins anew."""
    streak = Streak()
    for clock_ms, admitted, came in [
        (0, 10, 0),
        (400, 30, 20),
        (800, 35, 5),
        (1_000, 3, 0),
        (1_200, 9, 6),
        (1_400, None, 0),
    ]:
        streak = streak.advance(clock_ms, None, None, None, admitted)
        assert (counters.counted(streak.sent) or 0) == came


def counted(errors: dict[str, int]) -> GroupSeen:
    members = ("a", "b", "c", "d")
    return seen(
        **{
            id: BackendSeen(
                admitted=50, successes=50, errors=errors.get(id, 0), open=1, queue=0, p95_ms=20.0
            )
            for id in members
        }
    )


@pytest.mark.parametrize(
    ("failing", "isolated"), [("d", {"d"}), ("cd", {"c", "d"}), ("bcd", set()), ("abcd", set())]
)
def test_who_answers_with_errors_only_is_an_outlier_at_once(
    failing: str, isolated: set[str]
) -> None:
    """Within two ticks; but when most of the group fails, it is not they who are broken."""
    life = GroupLife(GroupRules(Config(), own_bound=True))
    for tick in range(3):
        found = counted(dict.fromkeys(failing, 5 * tick))
        members = dict.fromkeys(("a", "b", "c", "d"))
        life.tick(Sighting(now_ms=tick * 200, members=members, seen=found))
    assert set(life.memory.isolated) == isolated


ASKED = ("requests", "errors", "queue")


@pytest.mark.parametrize(
    ("covered", "inside_d", "isolated"),
    [((), 0, {"d"}), (ASKED[:2], 20, set()), (ASKED, 3, set()), (ASKED, 20, {"d"})],
)
def test_who_stalls_is_seen_by_one_count_and_not_by_two(
    covered: tuple[str, ...], inside_d: int, isolated: set[str]
) -> None:
    """What is in it and what leaves it are the plane's figures, or both the application's, whose
    last word may be older: beside the plane's a late scrape looks as if nobody left.
    """
    life = GroupLife(GroupRules(Config()))
    looks: dict[str, list[Look]] = {id: [] for id in "abcd"}
    for tick in range(18):
        now_ms = tick * 200
        done = dict.fromkeys("abc", 10 * tick) | {"d": 50 if tick > 4 else 10 * tick}
        found = seen(
            **{
                id: BackendSeen(
                    admitted=20 * tick,
                    successes=n,
                    errors=0,
                    open=20 if id == "d" else 3,
                    queue=0,
                    p95_ms=20.0,
                )
                for id, n in done.items()
            }
        )
        readings = {}
        for id, n in done.items():
            looks[id] = [*looks[id][-3:], Look(now_ms, n, 0, inside_d if id == "d" else 3)]
            readings[id] = Reading(requests=n, errors=0, queue=3.0, looks=tuple(looks[id]))
        life.tick(
            Sighting(
                now_ms=now_ms,
                members=dict.fromkeys("abcd"),
                seen=found,
                readings=readings if covered else {},
                covered=covered,
            )
        )
    assert set(life.memory.isolated) == isolated


def serving(tick: int, *members: str) -> Sighting:
    """Healthy backends that serve fifty requests a second each."""
    backends = {
        id: BackendSeen(
            admitted=10 * tick, successes=10 * tick, errors=0, open=3, queue=0, p95_ms=20.0
        )
        for id in members
    }
    return Sighting(now_ms=200 * tick, members=dict.fromkeys(members), seen=seen(**backends))


def test_where_concurrency_is_bounded_requests_prove_no_skew() -> None:
    """A full backend is passed over: its requests do not show where the slots send them."""
    life = GroupLife(GroupRules(Config(), own_bound=True))
    configs = [life.tick(serving(tick, "a", "b"))[0].snapshot.config for tick in range(30)]
    assert configs[0] == Config()
    assert configs[-1].inside_max is not None
    assert configs[-1].skew_requests_min == SIZE_MAX


def test_a_plan_that_was_not_applied_leaves_the_slots_unless_members_changed() -> None:
    """Then they are unknown anyway: the whole table is sent again."""
    life = GroupLife(GroupRules(Config()))
    life.tick(serving(0, "a", "b"), applied=False)
    assert life.memory.state is None
    life.tick(serving(1, "a", "b"))
    before = life.memory.state
    life.tick(serving(2, "a", "b"), applied=False)
    assert before is not None
    assert life.memory.state is not None
    assert [b.slots for b in life.memory.state.backends] == [b.slots for b in before.backends]
    _, plan = life.tick(serving(3, "a", "b", "c"), applied=False)
    assert life.memory.state == plan.state


def isolated_by_checks(results: tuple[bool, ...], rules: GroupRules) -> list[bool]:
    """Whether `b` of four is out after each result of its health check, one a tick."""
    life, out = GroupLife(rules), []
    for number, ok in enumerate(results):
        sighting = Sighting(
            now_ms=number * 200,
            members=dict.fromkeys("abcd"),
            checked=(Probed("web", "b", ok), Probed("web", "gone", ok=False)),
        )
        observed, _ = life.tick(sighting)
        out.append(observed.isolated == {"b": "health-check"})
    return out


def test_a_check_is_believed_after_so_many_failures_in_a_row() -> None:
    """A success in between begins the count again; the number is a rule of the group."""
    results = (False, False, True, False, False, False)
    assert isolated_by_checks(results, GroupRules()) == [False] * 5 + [True]
    assert isolated_by_checks(results, GroupRules(check_failures=2)) == [False, *[True] * 5]
    assert not any(isolated_by_checks(results, GroupRules(check_failures=None)))


def test_several_results_of_one_tick_all_count() -> None:
    """A check may be more frequent than ticks."""
    life = GroupLife(GroupRules())
    checked = (Probed("web", "b", ok=False),) * 3
    observed, _ = life.tick(Sighting(now_ms=0, members=dict.fromkeys("abcd"), checked=checked))
    assert observed.isolated == {"b": "health-check"}


def queues(sighting: Sighting, rules: GroupRules) -> list[float | None]:
    observed, _ = GroupLife(rules).tick(sighting)
    return [backend.queue for backend in observed.snapshot.backends]


def test_a_report_that_is_too_old_is_missing() -> None:
    """After three rounds of the group's own pace; one without a time is of this moment."""
    rules, now_ms = GroupRules(scrape_every_ms=500), 10_000
    sighting = Sighting(
        now_ms=now_ms,
        members=dict.fromkeys("abc"),
        readings={
            "a": Reading(queue=2.0, at_ms=now_ms - 1_500),
            "b": Reading(queue=2.0, at_ms=now_ms - 1_501),
            "c": Reading(queue=2.0),
        },
        covered=("queue",),
    )
    assert queues(sighting, rules) == [2.0, None, 2.0]
    assert queues(sighting, GroupRules()) == [2.0, 2.0, 2.0]


def test_a_machine_that_was_seen_too_long_ago_is_missing() -> None:
    """Each by its own pace; this machine is read in every tick."""
    rules, memory = GroupRules(node_every_ms={"n1": 100, "n2": 1_000}), Resource("memory", 2, 1)
    nodes = tuple(NodeReading(name, None, (memory,), at_ms=9_500) for name in ("n1", "n2"))
    here = NodeReading("here", None, (memory,))
    nodes = (*nodes, here, NodeReading("unpaced", None, (memory,), at_ms=9_998))
    sighting = Sighting(now_ms=10_000, members={"a": None}, nodes=nodes)
    observed, _ = GroupLife(rules).tick(sighting)
    assert [node.id for node in observed.snapshot.nodes] == ["here", "n2"]


@pytest.mark.parametrize(
    ("asked_ms", "readings", "blind"),
    [
        (3_800, {}, False),
        (3_801, {}, True),
        (None, {}, True),
        (0, {"a": Reading(requests=1, errors=0, at_ms=0)}, True),
    ],
)
def test_applications_that_had_no_time_to_answer_are_not_silent(
    asked_ms: int | None, readings: dict[str, Reading], blind: bool
) -> None:
    """An agent that has just started goes by the dataplane until one of them has answered."""
    backends = {name: BackendSeen(successes=5, errors=0, p95_ms=20.0) for name in "ab"}
    seen = GroupSeen(1, Liveness.NORMAL, AdmissionMode.NORMAL, 10, 0, 0, backends)
    covered = ("errors", "p95_ms", "requests")
    _, plan = GroupLife(GroupRules()).tick(
        Sighting(
            now_ms=5_000,
            members=dict.fromkeys("ab"),
            seen=seen,
            readings=readings,
            covered=covered,
            asked_ms=asked_ms,
        )
    )
    assert (plan.admission.mode is AdmissionMode.SOFT) is blind


# --- what is made of signals


def rates(**told: tuple[float | None, int | None]) -> dict[str, Signals]:
    return {name: Signals(error_rate=rate, requests=sent) for name, (rate, sent) in told.items()}


TOLD = rates(a=(0.1, 100), b=(0.02, 200), c=(None, 50), out=(0.5, 50), idle=(0.3, 0))


@pytest.mark.parametrize(
    ("e_ref", "found"),
    [
        (0.01, {"a": 0.09, "b": 0.01, "out": 0.49, "idle": 0.29}),
        (1.0, {"a": 0.08, "b": 0.0, "out": 0.5 - 14 / 300, "idle": 0.3 - 14 / 300}),
    ],
)
def test_the_rate_of_the_others_is_taken_off(e_ref: float, found: dict[str, float]) -> None:
    """14 of 300 requests to a and b failed, 10 of them to a; up to the reference."""
    after = _beyond_common(TOLD, {"out"}, Config(e_ref=e_ref))
    assert {name: one.error_rate for name, one in after.items()} == pytest.approx(
        {**found, "c": None}
    )
    assert [one.requests for one in after.values()] == [100, 200, 50, 50, 0]
    well = rates(a=(0.1, 100), b=(0.0, 200))
    assert _beyond_common(well, (), Config()) == well, "nothing failed elsewhere"
    alone = {name: TOLD[name] for name in "ac"}
    assert _beyond_common(alone, (), Config()) == alone, "nothing was sent to others"


def times(sent: int | None, **p95_ms: float | None) -> dict[str, Signals]:
    return {name: Signals(p95_ms=ms, requests=sent) for name, ms in p95_ms.items()}


@pytest.mark.parametrize(
    ("sent", "band"),
    [(100, 1.1), (50, 1 + 2 / 50**0.5), (25, 1.4), (0, 3.0), (149, 1 + 0.02 / 149**0.5), (150, 1)],
)
def test_chance_explains_a_band_around_the_median(sent: int, band: float) -> None:
    """Its part of the root of so many requests, from 50 on less of it; of 150 nothing."""
    told = times(sent, a=100.0, b=500.0, c=20.0, unknown=None, out=900.0)
    found = _beyond_chance(told, {"out"})
    expected = {"a": 100.0, "b": 500.0 / band, "c": 20.0 * band, "unknown": None, "out": 900.0}
    assert {name: one.p95_ms for name, one in found.items()} == pytest.approx(expected)
    assert {one.requests for one in found.values()} == {sent}


def test_chance_makes_no_backend_better_than_the_median_or_worse() -> None:
    found = _beyond_chance(times(25, a=100.0, b=130.0, c=90.0), ())
    assert {one.p95_ms for one in found.values()} == {100.0}


def test_without_latencies_or_requests_of_serving_backends_nothing_is_chance() -> None:
    for told in (times(25, a=None, out=900.0), times(None, a=100.0, out=900.0)):
        assert _beyond_chance(told, {"out"}) == told
    told = {**times(25, a=100.0, b=100.0), "uncounted": Signals(p95_ms=280.0)}
    assert _beyond_chance(told, ())["uncounted"].p95_ms == pytest.approx(200.0)


def judged(
    pressures: dict[str, float],
    slots: dict[str, int],
    *isolated: str,
    norms: tuple[float, ...] = (),
    soft: bool = False,
) -> tuple[tuple[float, ...], dict[str, float]]:
    """By what the unhealthy are told from the busy, of a group with these slots and pressures."""
    admission = AdmissionState(AdmissionMode.SOFT, Regime.TRANSITION) if soft else AdmissionState()
    backends = tuple(BackendMemory(name, count) for name, count in slots.items())
    state = State(
        now_ms=0,
        clock_ms=0,
        samples=1,
        s_total=sum(slots.values()),
        parked=False,
        backends=backends,
        admission=admission,
    )
    memory = GroupMemory(
        state=state,
        pressures={**pressures, "gone": 50.0},
        norms=norms,
        healths=tuple(BackendHealth(name, Cause.OUTLIER) for name in isolated),
    )
    histories = {name: BackendHistory(name) for name in pressures}
    return _judged_pressures(memory, histories, GroupRules())


P = {"a": 1.0, "b": 2.0, "c": 9.0}


def test_the_pressure_of_who_carries_more_than_its_share_is_just_not_an_outliers() -> None:
    """Four times the median at the most; so is everybody's while admission is restricted."""
    even, uneven = {"a": 85, "b": 85, "c": 85}, {"a": 85, "b": 84, "c": 86}
    assert judged(P, even) == ((2.0,), P)
    assert judged(P, uneven) == ((2.0,), {**P, "c": 8.0})
    assert judged(P, {"a": 255}) == ((2.0,), P), "the others are new"
    assert judged({"a": 1.0, "b": 1.0, "c": 9.0}, {"a": 1, "b": 0})[1]["c"] == 9.0
    assert judged(P, even, soft=True, norms=(7.0,)) == ((7.0,), {**P, "c": 8.0})
    full = (7.0,) * NORMS
    assert judged(P, even, norms=full)[0] == (*full[1:], 2.0)


@pytest.mark.parametrize(
    ("norms", "raised"), [((), 9.0), ((0.5,), 18.0), ((0.25, 0.5, 3.0), 18.0), ((4.0,), 9.0)]
)
def test_an_isolated_backend_is_measured_by_the_group_without_its_absence(
    norms: tuple[float, ...], raised: float
) -> None:
    """The others are under twice the pressure that was usual; it would be as well."""
    found = judged(P, {"a": 128, "b": 128}, "c", norms=norms)
    assert found == (norms, {"a": 1.0, "b": 2.0, "c": raised})


def test_without_a_plan_or_a_backend_in_service_pressures_are_as_they_were() -> None:
    assert judged(P, {"a": 255}, "a", "b", "c", norms=(1.0,)) == ((1.0,), P)
    memory = GroupMemory(pressures=P, norms=(1.0,))
    histories = {name: BackendHistory(name) for name in "ab"}
    found = _judged_pressures(memory, histories, GroupRules())
    assert found == ((1.0,), {"a": 1.0, "b": 2.0})


@pytest.mark.parametrize(
    ("told", "refused", "confirm", "index"),
    [
        pytest.param([(8, 10), (4, 20)], 3, False, 0.3, id="9 beyond our rejections, of 30"),
        pytest.param([(8, 10), (4, 20)], 3, True, 0.05, id="without the first 1 of 20"),
        pytest.param([(8, 10)], 3, True, 0.5, id="there is no other"),
        pytest.param([(8, 10), (None, None)], 3, False, 0.5, id="one does not say"),
        pytest.param([(8, 0), (1, 0)], None, False, 9.0, id="nothing succeeded"),
        pytest.param([(2, 10)], 3, False, 0.0, id="fewer than we rejected"),
        pytest.param([(None, 10), (None, 20)], 3, False, None, id="nobody says"),
    ],
)
def test_retries_per_success(
    told: list[tuple[int | None, int | None]],
    refused: int | None,
    confirm: bool,
    index: float | None,
) -> None:
    window = () if refused is None else ((0, 100), (200, 100 + refused))
    signals = [Signals(retries=count, successes=done) for count, done in told]
    assert _retry_index(GroupMemory(refused=window), signals, confirm=confirm) == index


def test_a_queue_is_the_mean_of_the_last_moments() -> None:
    """And latency that of the last probe, as long as there is one."""
    sighting = sighted(seen(a=BackendSeen(open=3, queue=1, p95_ms=20.0)))
    before = BackendHistory("a", queues=((650, 40.0), (651, 8.0)))
    found = _read(before, sighting, 1_000, 5_000)
    assert found.queues == ((651, 8.0), (1_000, 4.0))
    assert (found.signals.queue, found.signals.p95_ms) == (6.0, 20.0)
    assert _read(replace(before, probe_ms=7.5), sighting, 1_000, 5_000).signals.p95_ms == 7.5


def test_a_backend_is_read_by_the_groups_window_and_its_streak() -> None:
    """What is in it and what it was sent are part of its last moments."""
    told = BackendSeen(50, successes=40, errors=2, open=3)
    requests = ((0, 0), (500, 10))
    before = BackendHistory("a", counters=TrafficCounters(requests=requests))
    found = _read(before, sighted(seen(a=told)), 2_000, 1_000)
    assert found.counters.requests == ((500, 10), (2_000, 50))
    assert found.streak == Streak((Look(2_000, 40, 2, 3),), sent=((2_000, 50),))


@pytest.mark.parametrize(
    ("covered", "held"),
    [
        ((), 7),
        (("queue",), 7),
        (("requests",), None),
        (("errors",), None),
        (("requests", "queue"), 5),
        (("errors", "queue"), 5),
    ],
)
def test_what_is_held_is_told_by_who_counts_what_leaves(
    covered: tuple[str, ...], held: int | None
) -> None:
    reading = Reading(looks=(Look(0, 1, 2, 4), Look(1, 2, 2, 5)))
    assert _held(BackendSeen(open=7), reading, covered) == held
    assert _held(BackendSeen(open=7), Reading(), ("requests", "queue")) is None


def test_everything_that_was_read_of_a_backend_is_in_the_snapshot() -> None:
    """A newborn that is still warm is as old as that makes it."""
    signals = Signals(4.0, 20.0, 0.25, 90, 60, 3, 1.5, 0.125, 2.5, 30.0)
    history = BackendHistory("a", still_warm_ms=25_000)
    known = ("a", 4.0, 20.0, 0.25, 90)
    for tracked, isolated, age_ms in (
        (Tracked((), {}, (), {"a": 200}), False, 25_200),
        (Tracked((), {"a": Cause.CHECK}, (), {"a": None}), True, None),
    ):
        expected = Backend(*known, isolated, age_ms, 1.5, 0.125, 2.5, "m1", 4.0, 30.0)
        assert _backend("m1", signals, history, tracked) == expected


# --- one tick of a group's memory


def test_time_that_stands_still_or_goes_back_is_no_time() -> None:
    life, clock = GroupLife(GroupRules()), []
    for now_ms in (1_000, 1_200, 1_200, 500, 700):
        life.tick(Sighting(now_ms=now_ms, members={"a": None}))
        clock.append(life.memory.clock_ms)
    assert clock == [0, 200, 200, 200, 400]


def at(number: int, **more: Any) -> Sighting:
    """Two backends after so many ticks; 3 requests were told to try again, 4 refused, in each."""
    backends = {
        name: BackendSeen(
            admitted=30 * number, successes=count * number, open=2 * number, queue=0, p95_ms=20.0
        )
        for name, count in (("a", 10), ("b", 20))
    }
    found = GroupSeen(
        1, Liveness.NORMAL, AdmissionMode.SOFT, 60 * number, 3 * number, 4 * number, backends
    )
    members = {"a": "m1", "b": None}
    return Sighting(now_ms=200 * number, members=members, seen=found, **more)


@pytest.mark.parametrize(("edition", "index"), [(1, 23 / 30), (EDITION, 3 / 10)])
def test_what_is_remembered_from_tick_to_tick(edition: int, index: float) -> None:
    """Rejections, machines, queues, what is usual. Of 30 repetitions 7 were of what we rejected;
    to confirm it, those of b and its 20 successes are left out."""
    life = GroupLife(GroupRules(edition=edition))
    for number in (1, 2):
        readings = {"a": Reading(retries=10 * number), "b": Reading(retries=20 * number)}
        totals = StallTotals(200_000 * number, {"cpu_some": 20_000 * number})
        node = NodeReading("m1", totals)
        observed, _ = life.tick(at(number, readings=readings, nodes=(node,)))
    memory, snapshot = life.memory, observed.snapshot
    assert memory.refused == ((0, 7), (200, 14))
    assert list(memory.norms) == pytest.approx([0.22])
    assert memory.nodes["m1"].psi == snapshot.nodes[0].psi
    assert [backend.queue for backend in snapshot.backends] == [3.0, 3.0]
    assert [backend.node for backend in snapshot.backends] == ["m1", None]
    assert snapshot.retry_index == pytest.approx(index)
    assert snapshot.confirm is (edition == EDITION)
    life.tick(at(3, nodes=None))
    assert life.memory.nodes == memory.nodes, "what was not read waits"


def test_a_plan_that_was_not_applied_is_not_in_force() -> None:
    """The slots are those of before, unless the table has another number of them."""
    life = GroupLife(GroupRules())
    life.tick(serving(0, "a", "b"))
    ordered = replace(serving(1, "a", "b"), commands={"a": OperatorCommand.ISOLATE})
    _, plan = life.tick(ordered, applied=False)
    assert plan.slots == {"a": 0, "b": 256}
    assert life.memory.state is not None
    assert [backend.slots for backend in life.memory.state.backends] == [128, 128]
    life.rules = GroupRules(Config(s_total=100))
    _, plan = life.tick(serving(2, "a", "b"), applied=False)
    assert life.memory.state == plan.state


def test_an_application_that_is_asked_just_now_had_no_time_to_answer() -> None:
    """However quick it is meant to be."""
    rules = GroupRules(scrape_every_ms=0, scrape_timeout_ms=0)
    asked = Sighting(now_ms=0, members={"a": None}, covered=("queue",), asked_ms=0)
    assert _current(asked, rules).covered == ()
    assert _current(replace(asked, asked_ms=1), rules).covered == ("queue",)


# --- what goes with an isolation


def out(
    cause: Cause | None, history: BackendHistory, *, streak: int = 0, **rules: Any
) -> Callable[..., tuple[GroupMemory, Observed]]:
    """Sees `a` again, which was out for this cause, beside `b`, which is well."""
    memory = GroupMemory(
        now_ms=10_000,
        clock_ms=10_000,
        healths=(BackendHealth("a", cause, streak=streak), BackendHealth("b")),
        pressures={"a": 1.0, "b": 1.0},
        backends=(history, BackendHistory("b")),
    )

    def again(*probed: Probed, **told: Any) -> tuple[GroupMemory, Observed]:
        found = seen(a=BackendSeen(**told), b=BackendSeen())
        sighting = replace(sighted(found), now_ms=10_200, probed=probed)
        return observe(memory, sighting, GroupRules(**rules), group="web")

    return again


GOOD, BAD = Probed("web", "a", ok=True, latency_ms=20.0), Probed("web", "a", ok=False)
FAILING = {"connect_failures": 9, "consecutive_failures": 5}


def test_five_connects_in_a_row_that_fail_isolate_a_backend() -> None:
    """Those that failed before it came back are forgiven; the number is a rule of the group."""
    well = BackendHistory("a")
    assert out(None, well)(**FAILING)[1].isolated == {"a": Cause.CONNECT}
    assert out(None, replace(well, failures_before=9))(**FAILING)[1].isolated == {}
    twice = out(None, well, health=HealthRules(connect_failures=2))
    assert twice(connect_failures=2, consecutive_failures=2)[1].isolated == {"a": Cause.CONNECT}


def test_connects_in_a_row_are_those_since_a_return() -> None:
    five, history = Signals(connect_failures_in_a_row=5), BackendHistory("a", failures_before=9)
    told = [seen(a=BackendSeen(connect_failures=count)) for count in (8, 9, 11, 19)]
    assert [_failures_in_a_row(each, history, five) for each in told] == [0, 0, 2, 5]
    unseen = (None, seen(b=BackendSeen(connect_failures=3)), seen(a=BackendSeen()))
    assert [_connect_failures(each, "a") for each in unseen] == [0, 0, 0]


def test_a_backend_comes_back_by_probes_alone() -> None:
    """Connects of traffic that failed in a row are none of them; one that fails begins the row
    anew."""
    again = out(Cause.CONNECT, BackendHistory("a"), streak=4)
    memory, observed = again(GOOD, **FAILING)
    assert observed.isolated == {}
    assert memory.backends[0].failures_before == 9
    assert again(GOOD, BAD)[1].isolated == {"a": Cause.CONNECT}
    assert again(replace(GOOD, backend="b"))[0].backends[1].probe_ms is None, "it is in service"


def test_an_outlier_that_comes_back_is_as_warm_as_it_was() -> None:
    """A second after it was isolated it has lost a second of its warm-up."""
    history = BackendHistory("a", backoff=Backoff(1, 9_200))
    memory, observed = out(Cause.OUTLIER, history, streak=4)(GOOD)
    assert memory.backends[0].still_warm_ms == 29_000
    assert observed.snapshot.backends[0].age_ms == 29_000


@pytest.mark.parametrize(("isolated_ms", "probes"), [(8_200, ("a",)), (8_201, ())])
def test_an_isolated_backend_is_probed_when_its_wait_is_over(
    isolated_ms: int, probes: tuple[str, ...]
) -> None:
    """The second isolation in a row waits for two seconds."""
    history = BackendHistory("a", backoff=Backoff(2, isolated_ms))
    assert out(Cause.OUTLIER, history)()[1].probes == probes


def test_the_last_probe_counts() -> None:
    """One that is not answered, one that is answered by an error, and a good one."""
    assert _probed(PROBED, BAD) == replace(PROBED, answers=False, probe_failures=4)
    error = replace(BAD, latency_ms=20.0)
    assert _probed(PROBED, error) == replace(PROBED, answers=False, probe_failures=0)
    assert _probed(PROBED, GOOD) == replace(PROBED, probe_ms=20.0, probe_failures=0)


PROBED = BackendHistory("a", probe_ms=5.0, answers=True, probe_failures=3, still_warm_ms=7)


def followed(
    history: BackendHistory, before: Cause | None, now: Cause | None, clock_ms: int
) -> BackendHistory:
    """After a tick that found it in or out; five of its connects had failed by then."""
    histories = {"a": history}
    was, is_ = ({} if cause is None else {"a": cause} for cause in (before, now))
    found = seen(a=BackendSeen(connect_failures=5))
    _follow_isolation(histories, was, is_, found, clock_ms=clock_ms, warmup_ms=30_000)
    return histories["a"]


def test_an_isolation_begins_and_ends_what_goes_with_it() -> None:
    """Probes begin anew; a short absence spares as much of the warm-up as is left of it."""
    begun = replace(PROBED, probe_ms=None, answers=False, probe_failures=0)
    out = followed(PROBED, None, Cause.OUTLIER, 1_000)
    assert out == replace(begun, backoff=Backoff(1, 1_000, None))
    assert followed(out, Cause.OUTLIER, Cause.OUTLIER, 2_000) == out
    probed = replace(out, probe_ms=5.0, answers=True)
    back = followed(probed, Cause.OUTLIER, None, 6_000)
    assert back == replace(
        out, still_warm_ms=25_000, failures_before=5, backoff=Backoff(1, 1_000, 6_000)
    )
    assert followed(probed, Cause.OUTLIER, None, 1_000).still_warm_ms == 30_000
    assert followed(probed, Cause.OUTLIER, None, 31_001).still_warm_ms == 0
    assert followed(probed, Cause.CHECK, None, 6_000).still_warm_ms == 0


@pytest.mark.parametrize(("after_ms", "times"), [(LASTED_MS - 1, 3), (LASTED_MS, 1)])
def test_a_return_that_lasts_is_forgiven(after_ms: int, times: int) -> None:
    back = replace(PROBED, backoff=Backoff(2, 1_000, 6_000))
    out = followed(back, None, Cause.CHECK, 6_000 + after_ms)
    assert out.backoff == Backoff(times, 6_000 + after_ms, 6_000)


def test_what_the_operator_isolated_is_no_worse_for_it() -> None:
    out = followed(PROBED, None, Cause.OPERATOR, 1_000)
    assert (out.backoff, out.probe_ms) == (None, None)
    back = followed(out, Cause.OPERATOR, None, 6_000)
    assert (back.backoff, back.still_warm_ms) == (Backoff(0, 0, 6_000), 0)


def test_a_backend_that_left_while_it_was_out_is_forgotten() -> None:
    histories: dict[str, BackendHistory] = {}
    _follow_isolation(histories, {"a": Cause.CHECK}, {}, None, clock_ms=9, warmup_ms=9)
    assert histories == {}


def test_after_an_absence_only_what_was_learned_and_who_is_well_is_remembered() -> None:
    usual = Usual((3.0,), 1, 2, 3)
    kept = GroupMemory(
        now_ms=1,
        clock_ms=2,
        healths=(BackendHealth("a"),),
        budget=AdmissionBudget(rate=400.0, long=((8, 480.0),), before=470.0),
        queue=usual,
        q_ref=6.0,
        latency=replace(usual, open_ms=4),
        l_ref_ms=140.0,
        bound=InsideBound(58, (20, 21), (470.0, 480.0), busy=29.0),
    )
    before = replace(
        kept,
        pressures={"a": 1.0},
        backends=(BackendHistory("a"),),
        budget=replace(kept.budget, served=((1, 2),), soft=True, cut_ms=1, at_ms=2),
        bound=replace(kept.bound, since_ms=1, idle=((1, 2),)),
        norms=(1.0,),
        refused=((1, 2),),
        refused_soft=3,
    )
    assert rested(before) == kept


# --- parameters that are learned


def learned(
    rules: GroupRules,
    signals: dict[str, Signals] | None = None,
    found: GroupSeen | None = None,
    mode: AdmissionMode = AdmissionMode.NORMAL,
    calm_since_ms: int | None = None,
    **memory: Any,
) -> tuple[GroupMemory, Config]:
    """After a tick at 10 s of a group whose admission was in this mode; `out` is isolated."""
    regimes = {"normal": Regime.LAMINAR, "soft": Regime.TRANSITION, "hard": Regime.CRISIS}
    state = State(
        now_ms=9_800,
        clock_ms=9_800,
        samples=1,
        s_total=1,
        parked=True,
        admission=AdmissionState(mode, regimes[mode.value], calm_since_ms),
    )
    before = GroupMemory(clock_ms=10_000, state=state, **memory)
    sighting = Sighting(now_ms=10_000, members={"a": None}, seen=found)
    return _learn(before, sighting, signals or {"a": Signals()}, {"out"}, rules)


def test_all_that_is_learned_reaches_the_parameters() -> None:
    """The usual queue and latency of the backends in service, and the budget."""
    nine = Usual((4.0,) * 9)
    signals = {"a": Signals(3.0, 30.0), "b": Signals(), "out": Signals(90.0, 900.0)}
    rules = GroupRules(own_reference=True, own_latency=True, own_budget=True)
    budget = AdmissionBudget(recent=((9_800, 400.0),))
    memory, config = learned(rules, signals, queue=nine, budget=budget)
    assert memory.queue == Usual((*nine.samples, 3.0), 10_000, 10_000, 10_000)
    assert memory.latency.samples == (30.0,)
    assert (memory.q_ref, config.q_ref, config.bucket_rate) == (8.0, 8.0, 400.0)
    assert config.g_min == 0.0, "the usual latency is not known yet"
    ten = Usual((300.0,) * 10)
    memory, config = learned(rules, signals, q_ref=6.0, latency=ten)
    assert (memory.q_ref, config.q_ref) == (6.0, 6.0)
    assert (memory.l_ref_ms, config.l_ref_ms, config.g_min) == (300.0, 300.0, Config().g_min)


CALM = AdmissionBudget(rate=100.0, soft=True, at_ms=9_000, before=100.0)


@pytest.mark.parametrize(
    ("rules", "bound", "rate"),
    [
        (GroupRules(Config(inside_max=60), own_flow=True), None, 200.0),
        (GroupRules(Config(inside_max=60)), None, 107.0),
        (GroupRules(own_flow=True), 58, 107.0),
        (GroupRules(own_flow=True, own_bound=True), 58, 200.0),
        (GroupRules(own_flow=True, own_bound=True), None, 107.0),
    ],
)
def test_the_budget_of_soft_admission_grows_faster_in_a_bounded_group(
    rules: GroupRules, bound: int | None, rate: float
) -> None:
    """Where conductance is no trigger; by what bounds it: the operator, or what was learned."""
    told: dict[str, Any] = {"budget": CALM, "bound": InsideBound(bound)}
    memory, _ = learned(rules, mode=AdmissionMode.SOFT, calm_since_ms=0, **told)
    assert memory.budget.rate == pytest.approx(rate)


def test_the_budget_follows_admission() -> None:
    """It is cut while the trigger lasts, ends with soft, and in hard is the configured one."""
    memory, _ = learned(GroupRules(), mode=AdmissionMode.SOFT, budget=CALM)
    assert memory.budget == replace(CALM, rate=85.0, cut_ms=10_000, at_ms=10_000)
    memory, _ = learned(GroupRules(), budget=CALM)
    assert memory.budget.soft is False
    _, config = learned(GroupRules(own_budget=True), mode=AdmissionMode.HARD)
    assert config.bucket_rate == Config().bucket_rate


BUSY = AdmissionBudget(recent=((9_800, 1_000.0),))
LOOKED = InsideBound(since_ms=0)


@pytest.mark.parametrize(("edition", "value"), [(1, 240), (EDITION, 200)])
def test_the_bound_goes_by_the_learned_latency(edition: int, value: int) -> None:
    """1000 a second, half of 400 ms each; by former records 0.6 of it."""
    rules = GroupRules(own_bound=True, own_latency=True, edition=edition)
    found = seen(a=BackendSeen(open=9, queue=0))
    memory, config = learned(rules, found=found, l_ref_ms=400.0, budget=BUSY, bound=LOOKED)
    assert (memory.bound.value, config.inside_max, config.l_ref_ms) == (value, value, 400.0)
    assert (memory.bound.inside, memory.bound.per_s) == ((9,), (1_000.0,))


@pytest.mark.parametrize(
    ("inside", "l_ref_ms", "buried"),
    [(600, 100.0, False), (2_000, 100.0, True), (2_000, None, False)],
)
def test_what_a_buried_group_holds_is_not_usual(
    inside: int, l_ref_ms: float | None, buried: bool
) -> None:
    """At 1000 a second ten times 100 ms are 1000; where that is unknown they may just take long."""
    rules = GroupRules(own_bound=True, own_latency=True, edition=EDITION)
    found = seen(a=BackendSeen(open=inside, queue=0))
    memory, _ = learned(rules, found=found, l_ref_ms=l_ref_ms, budget=BUSY, bound=LOOKED)
    assert memory.bound.inside == (() if buried else (inside,))


def test_an_operators_bound_changes_what_is_judged_as_a_learned_one_does() -> None:
    """Requests prove no skew, and conductance restricts only where all fail, if ever."""
    bounded = Config(inside_max=60)
    _, config = learned(GroupRules(bounded, own_flow=True))
    assert (config.inside_max, config.skew_requests_min, config.g_min) == (60, SIZE_MAX, 1 / 25)
    _, config = learned(GroupRules(bounded, own_flow=True, own_latency=True))
    assert config.g_min == 0.0
    assert learned(GroupRules(own_flow=True))[1] == Config()
