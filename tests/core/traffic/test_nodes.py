"""Stall gate and time to failure: sections 6 and 7 of the equations."""

import pytest

from fairlead.core.traffic import Config, Node, Psi, Resource, Sighting, StallTotals, plausible
from fairlead.core.traffic.config import Theta
from fairlead.core.traffic.nodes import (
    Trouble,
    Watch,
    follow,
    observe_nodes,
    observe_totals,
    stalls,
    sustained,
    time_to_failure,
    watch_nodes,
)
from fairlead.core.traffic.sighting import CpuTimes, NodeReading
from fairlead.core.traffic.state import NodeMemory, State, Trail
from tests.core.traffic.groups import HEALTHY, Group, reasons

SICK = Psi(cpu_some=0.9)


@pytest.mark.parametrize(
    ("field", "threshold"),
    [("cpu_some", 0.40), ("mem_some", 0.10), ("mem_full", 0.05), ("io_full", 0.10)],
)
def test_a_stall_is_strictly_above_its_threshold(field: str, threshold: float) -> None:
    """6.1."""
    assert not stalls(Psi(**{field: threshold}), Theta())
    assert stalls(Psi(**{field: threshold + 1e-9}), Theta())


def test_io_some_never_stalls_and_absence_is_no_stall() -> None:
    """Waiting for a disk is no sickness; unknown is not sick."""
    assert not stalls(Psi(io_some=1.0), Theta())
    assert not stalls(None, Theta())
    assert not stalls(Psi(), Theta())


def test_seven_of_the_last_ten_samples_are_sustained() -> None:
    """6.2: the current one included."""
    assert sustained(range(7), Config())
    assert not sustained(range(6), Config())
    assert sustained(range(7), Config(stall_m=100, stall_p=0.07))


@pytest.mark.parametrize("samples", [1, 1000])
def test_the_smallest_share_of_samples_still_takes_one_stall(samples: int) -> None:
    """Rounding must not make a stall of nothing."""
    config = Config(stall_m=samples, stall_p=1e-9)
    assert not sustained((), config)
    assert sustained((1,), config)
    assert not sustained(range(7), Config(stall_m=10, stall_p=0.7 + 1e-9))


def test_samples_fall_out_of_the_window() -> None:
    """Only the last m, and only where a sample was taken."""
    config = Config(stall_m=3)

    def stalled(psi: Psi, samples: int, *, advanced: bool) -> list[tuple[int, ...]]:
        before = State(
            now_ms=0,
            clock_ms=0,
            samples=samples,
            s_total=256,
            parked=True,
            nodes=(NodeMemory("n", (3, 4)),),
        )
        watch = watch_nodes(
            [Node("n", psi)], before, clock_ms=200, advanced=advanced, config=config
        )
        return [memory.stalled for memory in watch.nodes]

    assert stalled(SICK, 5, advanced=True) == [(4, 6)]
    assert stalled(SICK, 5, advanced=False) == [(3, 4)]
    assert stalled(Psi(), 6, advanced=True) == []


def test_a_sustained_stall_is_hard_and_says_so() -> None:
    """Seven sick ticks, no sooner; per node, then any."""
    group = Group("a", "b")
    group.node("n0", HEALTHY)
    group.node("n1", SICK)
    for _ in range(6):
        assert not group.step().stall
    plan = group.step()
    assert (plan.stall, plan.admission.mode, plan.regime) == (True, "hard", "crisis")
    assert reasons(plan) == ["psi_stall"]


def test_stalls_of_different_nodes_are_not_added_up() -> None:
    """Seven of ten of one node, not of all together."""
    group = Group("a", "b")
    for turn in range(20):
        group.node("n0", SICK if turn % 2 else HEALTHY)
        group.node("n1", HEALTHY if turn % 2 else SICK)
        assert not group.step().stall


def test_repeated_times_are_not_distinct_samples() -> None:
    """Asking ten times within a millisecond proves nothing."""
    group = Group("a", "b")
    group.node("n1", SICK)
    group.step()
    for _ in range(20):
        assert not group.step(0).stall
    for _ in range(6):
        assert not group.step(-100).stall


def test_a_node_that_is_no_longer_reported_stops_stalling() -> None:
    """Absent samples count as unstalled; then it is forgotten."""
    group = Group("a", "b")
    group.node("n1", SICK)
    assert group.run(2_000).stall
    group.nodes.clear()
    assert [group.step().stall for _ in range(4)] == [True, True, True, False]
    assert group.run(2_000).state.nodes == ()


def samples(*values: float, every_ms: int = 200, config: Config = Config()) -> Trail:  # noqa: B008
    trail = None
    for turn, used in enumerate(values):
        resource = Resource("memory", 1000, used)
        trail = follow(trail, resource, clock_ms=turn * every_ms, advanced=True, config=config)
    assert trail is not None
    return trail


def test_less_than_a_window_of_history_is_unknown() -> None:
    """7: 5 s of samples first."""
    resource, trail = Resource("memory", 1000, 500), samples(*[500.0] * 25)
    assert time_to_failure(resource, trail, 4_800, Config()) is None
    trail = samples(*[500.0] * 26)
    assert time_to_failure(resource, trail, 5_000, Config()) == 86_400


def test_the_velocity_is_of_the_smoothed_use_and_the_rest_of_the_raw() -> None:
    """R/V with V over the window."""
    config = Config(alpha=1.0)
    trail = samples(*[10.0 * turn for turn in range(27)], config=config)
    assert trail.history[0][0] == 200
    resource = Resource("memory", 1000, 260)
    assert time_to_failure(resource, trail, 5_200, config) == pytest.approx(740 / 50)


def test_a_falling_use_never_fails() -> None:
    """Capped at a day."""
    trail = samples(*[1000.0 - turn for turn in range(30)])
    assert time_to_failure(Resource("m", 2000, 971), trail, 5_800, Config()) == 86_400


@pytest.mark.parametrize("used", [1000.0, 1001.0])
def test_what_is_used_up_needs_no_history(used: float) -> None:
    """R <= 0: 0 at once."""
    resource = Resource("memory", 1000, used)
    assert time_to_failure(resource, samples(used), 0, Config()) == 0.0


def test_unknown_use_or_limit_is_unknown() -> None:
    """And takes no sample; the trail stays for later."""
    trail = samples(*[500.0] * 26)
    blind = Resource("memory", 1000, None)
    assert follow(trail, blind, clock_ms=5_000, advanced=True, config=Config()) == trail
    assert follow(None, blind, clock_ms=0, advanced=True, config=Config()) is None
    assert time_to_failure(blind, trail, 5_000, Config()) is None
    assert time_to_failure(Resource("memory", None, 5), trail, 5_000, Config()) is None
    assert time_to_failure(Resource("memory", 10, 5), None, 5_000, Config()) is None


def test_no_time_no_sample() -> None:
    """A second reading of the same moment is not a second sample."""
    trail = samples(500.0)
    resource = Resource("memory", 1000, 900)
    assert follow(trail, resource, clock_ms=0, advanced=False, config=Config()) == trail


def test_a_gap_in_the_readings_moves_the_window_all_the_same() -> None:
    """Time went on without a sample: what is compared with is still one window old, not older."""
    config = Config(alpha=1.0)
    trail = samples(100.0, 100.0, *[200.0] * 25, config=config)  # up to 5 200 ms
    blind, seen = Resource("memory", 1000, None), Resource("memory", 1000, 200)
    later = follow(trail, blind, clock_ms=5_400, advanced=True, config=config)
    now = follow(later, seen, clock_ms=5_400, advanced=False, config=config)
    assert now is not None
    assert now.history[0] == (400, 200.0)
    assert time_to_failure(seen, now, 5_400, config) == 86_400


def test_the_soonest_counts() -> None:
    """7.2, 7.3: the least over resources and nodes; unknown ones do not count."""
    memory, full = Resource("memory", 100, 50), Resource("fds", 10, 10)

    def ttf_s(*nodes: Node) -> float | None:
        return watch_nodes(nodes, None, clock_ms=0, advanced=True, config=Config()).ttf_s

    assert ttf_s(Node("a", resources=(memory,)), Node("b", resources=(memory, full))) == 0.0
    assert ttf_s(Node("a", resources=(memory,))) is None
    assert ttf_s() is None


def test_running_out_is_soft_below_120_and_hard_below_20_seconds() -> None:
    """A ramp of 5 units per second towards a limit of 1000."""
    group, modes = Group("a", "b"), {}
    for turn in range(1_000):
        used = 300.0 + turn
        group.node(memory=used)
        plan = group.step()
        if plan.ttf_s is not None:
            modes.setdefault(plan.admission.mode.value, plan)
        if plan.admission.mode == "hard":
            break
    assert 115 < (modes["soft"].ttf_s or 0) < 120
    assert reasons(modes["soft"]) == ["ttf"]
    assert 15 < (modes["hard"].ttf_s or 0) < 20
    assert modes["normal"].ttf_s is not None


def test_used_up_is_hard_at_once_even_without_a_hard_threshold() -> None:
    """R < 0 in the very first tick."""
    group = Group("a", "b", t_hard_s=0)
    group.node(memory=1_001.0)
    plan = group.step()
    assert (plan.ttf_s, plan.admission.mode) == (0.0, "hard")


def test_cpu_never_runs_out() -> None:
    """Full CPU is fine until it stalls."""
    group = Group("a", "b")
    group.node(cpu=5_000.0)
    assert group.run(6_000).ttf_s is None


def counters(time_s: float, cpu_us: int, **others: int) -> StallTotals:
    return StallTotals(int(time_s * 1e6), {"cpu_some": cpu_us, **others})


def test_stall_shares_are_differences_of_counters_over_ten_seconds() -> None:
    """Every tick, although the kernel's averages move every 2 s only."""
    window, psi = observe_totals((), counters(0, 0))
    assert psi is None
    window, psi = observe_totals(window, counters(2, 1_000_000))
    assert psi is not None
    assert psi.cpu_some == 0.5
    for second in range(4, 22, 2):
        window, psi = observe_totals(window, counters(second, 1_000_000))
    assert psi is not None
    assert psi.cpu_some == 0.0
    assert len(window) == 6


def test_a_counter_or_a_clock_that_goes_back_starts_anew() -> None:
    """Another boot: nothing can be said yet. More than all of the time is all of it."""
    window, _ = observe_totals((), counters(0, 500, mem_full=7))
    assert observe_totals(window, counters(1, 400, mem_full=7))[1] is None
    assert observe_totals(window, counters(0, 600, mem_full=7))[1] is None
    assert observe_totals(window, counters(1, 600))[1] is None
    _, psi = observe_totals(window, counters(1, 9_000_000, mem_full=7, io_full=3))
    assert psi == Psi(cpu_some=1.0, mem_full=0.0)


def test_waiting_for_a_disk_is_a_share_of_the_time_that_passed() -> None:
    """Nothing is said without a reading, before time has passed, and where a counter goes back."""
    windows, shares = {}, []
    for now in (None, (0, 0, 0), (100, 50, 10), (200, 100, 5), (300, 10, 0), (400, 20, 9)):
        cpu = None if now is None else CpuTimes(*now)
        windows, (node,) = observe_nodes(windows, [NodeReading("n", cpu=cpu)])
        shares.append(node.iowait_ratio)
    assert shares == [None, None, 0.2, 0.05, None, 0.9]


def test_counters_that_no_machine_can_have_are_missing() -> None:
    """A node without them is seen, and no stall of it is believed."""
    readings = (
        NodeReading("a", StallTotals(0, {"cpu_some": -1})),
        NodeReading("b", StallTotals(0, {"mem_some": 5, "cpu_some": 4}), (), CpuTimes(0, 1, 1)),
        NodeReading("c", cpu=CpuTimes(0, float("nan"), 1)),
    )
    sighting = Sighting(now_ms=0, members={}, nodes=readings)
    a, b, c = plausible(sighting).nodes or ()
    assert (a.totals, c.cpu) == (None, None)
    assert b.totals is not None
    assert list(b.totals.stalled_us) == ["cpu_some", "mem_some"]
    assert b.cpu == CpuTimes(0, 1.0, 1.0)
    assert plausible(Sighting(now_ms=0, members={}, nodes=None)).nodes is None


@pytest.mark.parametrize(
    ("times", "share"),
    [
        pytest.param([(0, 100, 50), (100, 200, 60)], 0.1, id="a difference of counters"),
        pytest.param([(0, 0, 0), (100, 0.5, 0.25)], 0.5, id="in any unit"),
        pytest.param([(0, 0, 0), (100, 10, 0.5)], 0.05, id="a little"),
        pytest.param([(0, 0, 0), (100, 10, 15)], 1.0, id="never more than all of it"),
        pytest.param(
            [(0, 0, 0), (100, 50, 10), (200, 50, 10), (300, 100, 30)], 0.3, id="no time between"
        ),
        pytest.param([(0, 0, 0), (100, 50, 10), (100, 60, 12)], 0.2, id="read twice at once"),
        pytest.param([(0, 0, 0), (5, 10, 10), (10_000, 110, 20)], 20 / 110, id="10 s ago"),
        pytest.param([(0, 0, 0), (5, 10, 10), (10_005, 110, 20)], 0.1, id="of the last 10 s"),
    ],
)
def test_the_share_of_waiting_is_of_ten_seconds(
    times: list[tuple[int, float, float]], share: float
) -> None:
    windows, found = {}, None
    for row in times:
        windows, (node,) = observe_nodes(windows, [NodeReading("n", cpu=CpuTimes(*row))])
        found = node.iowait_ratio
    assert found == share


def test_a_machine_that_was_not_read_again_stalls_as_before() -> None:
    """It is asked less often than there are ticks."""
    first, second = (NodeReading("n", counters(at, at * 500_000)) for at in (0, 2))
    windows, _ = observe_nodes({}, [first])
    for _ in range(3):
        windows, (node,) = observe_nodes(windows, [second])
        assert node.psi == Psi(cpu_some=0.5)


def test_a_counter_below_its_last_value_is_another_boot() -> None:
    """Although it is above the first one of the window."""
    window, _ = observe_totals((), counters(0, 100))
    window, _ = observe_totals(window, counters(1, 500))
    assert observe_totals(window, counters(2, 300)) == ((counters(2, 300),), None)


def test_half_a_unit_is_not_nothing() -> None:
    resource = Resource("memory", 1000, 999.5)
    assert time_to_failure(resource, samples(999.5), 0, Config()) is None


def test_the_word_of_a_machine_counts_unless_it_is_one_backends_alone() -> None:
    """Under two backends, under none that is known, or beside another one that says the same."""
    sick, fine = Trouble(stall=True, ttf_s=5.0), Trouble(stall=False, ttf_s=None)
    for by_node, hosts, confirmed in (
        ({"n": sick}, ["n", "n"], sick),
        ({"n": sick}, [None, None], sick),
        ({"n": sick}, ["n", None], fine),
        ({"n": sick, "m": fine}, ["n", "m"], fine),
        ({"n": sick, "m": sick}, ["n", "m"], sick),
    ):
        assert Watch(True, 5.0, 1, (), by_node).confirmed(hosts) == confirmed


def test_what_cannot_run_out_or_be_seen_hides_no_other_resource() -> None:
    """CPU comes first by name; a use that was never known leaves no trail."""
    resources = (Resource("cpu", 4, 4), Resource("disk", 9, None), Resource("memory", 9, 5))
    node = Node("n", Psi(), resources)
    watch = watch_nodes([node], None, clock_ms=0, advanced=True, config=Config())
    assert [trail.name for trail in watch.nodes[0].trails] == ["memory"]
