"""The page's lines about signals: errors, missing signals, PSI, time to failure, time itself."""

import math
from typing import Any

import pytest

from tests.core.traffic.play import Decide, Group, backend, group_of, node

UNSTALLED, STALLED = {"cpu_some": 0.40}, {"cpu_some": 0.41}


def terms(decide: Decide, **signals: Any) -> dict[str, float]:
    """The pressure of a single backend with these signals."""
    pressure: dict[str, float] = Group(decide, backend("b1", **signals)).tick()["pressure"]["b1"]
    return pressure


def test_the_terms_of_the_example(decide: Decide) -> None:
    """Queue 3 and p95 40 ms: 0.03 + 0.4, each with its label."""
    expected = {"total": 0.43, "queue": 0.03, "latency": 0.4, "error": 0.0, "penalty": 0.0}
    assert terms(decide) == pytest.approx(expected)


def test_pressure_is_floored(decide: Decide) -> None:
    """An idle backend does not take everything: P is at least P_min 0.1."""
    assert terms(decide, queue=0, p95_ms=1)["total"] == pytest.approx(0.1)


def test_error_term_is_clipped_and_the_penalty_is_above_eta_only(decide: Decide) -> None:
    """E/E_ref at most 20; K_E from above 5 %, not at 5 %."""
    assert terms(decide, error_rate=0.05)["error"] == pytest.approx(15)
    assert terms(decide, error_rate=0.05)["penalty"] == 0
    assert terms(decide, error_rate=0.051)["penalty"] == 10
    assert terms(decide, error_rate=1.0)["error"] == 60


def test_error_rate_is_raw_from_20_requests_and_wilsons_lower_bound_below(decide: Decide) -> None:
    """One error in two requests is hardly evidence; five in twenty is."""
    assert terms(decide, error_rate=0.01, requests=20)["error"] == pytest.approx(3)
    z, n, p = 1.96, 19, 0.1
    spread = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    low = (p + z * z / (2 * n) - spread) / (1 + z * z / n)
    assert terms(decide, error_rate=p, requests=n)["error"] == pytest.approx(3 * low / 0.01)


@pytest.mark.parametrize("rate", [0.0, None])
def test_zero_requests_keep_the_last_counted_rate_for_five_seconds(
    decide: Decide, rate: float | None
) -> None:
    """Silence is no recovery, and no eternal blame either; nothing of nothing is often null."""
    group = group_of(decide, 2)
    group.set("b1", error_rate=0.02)
    group.tick()
    group.set("b1", error_rate=rate, requests=0)
    assert group.run(4_800)["pressure"]["b1"]["error"] == pytest.approx(6)
    assert "signal_missing.errors" not in group.last["reasons"]
    assert group.run(600)["pressure"]["b1"]["error"] == 0
    assert ("signal_missing.errors" in group.last["reasons"]) == (rate is None)


def test_a_kept_rate_does_not_end_blindness(decide: Decide) -> None:
    """What a drained backend did before says nothing about now."""
    group = group_of(decide, 2)
    group.tick()
    group.set("b1", "b2", p95_ms=None, error_rate=None)
    group.set("b1", requests=0)
    assert group.tick()["reasons"][-1] == "signal_missing.both"


def test_one_missing_latency_is_the_groups_worst(decide: Decide) -> None:
    """Missing is never zero: a blind backend counts as the slowest, and the tick says so."""
    group = group_of(decide, 3)
    group.set("b1", p95_ms=None)
    group.set("b2", p95_ms=90)
    out = group.tick()
    assert out["pressure"]["b1"]["latency"] == pytest.approx(0.9)
    assert out["reasons"] == ["signal_missing.latency"]


def test_latency_missing_for_all_has_no_weight(decide: Decide) -> None:
    """W_L = 0 group-wide, the same reason, and the rest decides."""
    group = group_of(decide, 2)
    group.set("b1", "b2", p95_ms=None, requests=20)  # too few to judge the skew
    group.set("b2", queue=100)
    out = group.tick()
    assert [out["pressure"][name]["latency"] for name in ("b1", "b2")] == [0, 0]
    assert out["weights"]["b1"] > out["weights"]["b2"]
    assert out["reasons"] == ["signal_missing.latency"]


def test_errors_missing_likewise(decide: Decide) -> None:
    """One blind backend has the worst rate, penalty included; all blind, no term at all."""
    group = group_of(decide, 2)
    group.set("b1", error_rate=None)
    group.set("b2", error_rate=0.06)
    out = group.tick()
    assert out["pressure"]["b1"]["penalty"] == 10
    assert out["reasons"] == ["errors", "conductance"]
    group.set("b1", error_rate=0.0)
    group.set("b2", error_rate=None)
    assert group.tick()["reasons"] == ["signal_missing.errors"]
    group.set("b1", error_rate=None)
    assert group.tick()["pressure"]["b2"]["penalty"] == 0
    assert group.last["reasons"][0] == "signal_missing.errors"


def test_missing_errors_leave_the_stall_gate_active(decide: Decide) -> None:
    """No error rates, a stalled node: hard."""
    group = group_of(decide, 2)
    group.set("b1", "b2", error_rate=None)
    group.nodes = [node(mem_full=0.2)]
    assert group.run(1_400)["admission"]["mode"] == "hard"
    assert group.last["reasons"] == ["psi_stall", "signal_missing.errors"]


def test_a_missing_queue_is_the_groups_worst_or_nothing(decide: Decide) -> None:
    """As for latency; missing for all, W_Q = 0."""
    group = group_of(decide, 2)
    group.set("b1", queue=None)
    group.set("b2", queue=50)
    assert group.tick()["pressure"]["b1"]["queue"] == pytest.approx(0.5)
    group.set("b2", queue=None)
    out = group.tick()
    assert out["pressure"]["b1"]["queue"] == out["pressure"]["b2"]["queue"] == 0
    assert out["reasons"][0] == "signal_missing.queue"


def test_latency_and_errors_missing_freeze_the_slots(decide: Decide) -> None:
    """Mid-slew too: weights and slots hold, admission at least soft, reason `both`."""
    group = group_of(decide, 3)
    group.set(*group.backends, requests=10)  # too few to judge the skew
    group.tick()
    group.set("b1", p95_ms=400)
    moving = group.run(1_600)
    assert moving["slots"]["b1"] < 85
    group.set("b1", "b2", "b3", p95_ms=None, error_rate=None)
    blind = group.run(3_000)
    assert blind["slots"] == moving["slots"]
    assert blind["weights"] == pytest.approx(moving["weights"])
    assert blind["admission"]["mode"] == "soft"
    assert blind["reasons"] == ["signal_missing.both"]
    assert not blind["applied"]


def test_a_single_blind_backend_is_imputed_not_frozen(decide: Decide) -> None:
    """`both` needs that no backend has latency or errors."""
    group = group_of(decide, 2)
    group.set("b1", p95_ms=None, error_rate=None)
    out = group.tick()
    assert out["admission"]["mode"] == "normal"
    assert out["reasons"] == ["signal_missing.latency", "signal_missing.errors"]


@pytest.mark.parametrize(
    ("psi", "stall"),
    [
        ({"cpu_some": 0.40}, False),
        ({"cpu_some": 0.41}, True),
        ({"mem_some": 0.11}, True),
        ({"mem_full": 0.05}, False),
        ({"mem_full": 0.051}, True),
        ({"io_full": 0.11}, True),
        ({"io_some": 1.0}, False),
    ],
)
def test_a_sample_stalls_strictly_above_theta(
    decide: Decide, psi: dict[str, float], stall: bool
) -> None:
    """Cpu some, mem some and full, io full; never io some."""
    group = group_of(decide, 2)
    group.nodes = [node(**psi)]
    group.tick()
    assert group.run(2_000)["stall"] is stall


def test_seven_of_the_last_ten_samples(decide: Decide) -> None:
    """The current one included; samples that are not there yet count as unstalled."""
    group = group_of(decide, 2)
    group.nodes = [node(**STALLED)]
    assert [group.tick()["stall"] for _ in range(7)] == [False] * 6 + [True]
    group.nodes = [node(**UNSTALLED)]
    assert [group.tick()["stall"] for _ in range(4)] == [True] * 3 + [False]


def test_only_later_samples_are_distinct(decide: Decide) -> None:
    """A repeated or backward `now_ms` adds no sample, however often."""
    group = group_of(decide, 2)
    group.nodes = [node(**STALLED)]
    for _ in range(6):
        group.tick()
    for step_ms in (0, 0, -1, 0):
        assert group.tick(step_ms)["stall"] is False
    assert group.tick()["stall"] is True


def test_each_node_stalls_on_its_own(decide: Decide) -> None:
    """Two nodes that stall in turn: neither has seven of ten."""
    group = group_of(decide, 2)
    for index in range(12):
        psi = (STALLED, UNSTALLED) if index % 2 else (UNSTALLED, STALLED)
        group.nodes = [node("n1", **psi[0]), node("n2", **psi[1])]
        assert group.tick()["stall"] is False
    group.nodes = [node("n1", **STALLED), node("n2", **UNSTALLED)]
    assert group.run(1_400)["stall"] is True


def test_missing_psi_is_unstalled_and_theta_is_merged(decide: Decide) -> None:
    """Null PSI never stalls; an override of one threshold leaves the others."""
    group = group_of(decide, 2, theta={"cpu_some": 0.1})
    group.nodes = [{"id": "n1", "psi": None, "resources": []}, node("n2", cpu_some=None)]
    group.tick()
    assert group.run(2_000)["stall"] is False
    group.nodes = [node(cpu_some=0.2)]
    assert group.run(2_000)["stall"] is True


def ramp(group: Group, per_tick: float, ticks: int) -> list[float | None]:
    """Memory of 1000, from 100, growing; the time to failure of every tick."""
    out = []
    for index in range(ticks):
        group.nodes = [node(used=100 + per_tick * index)]
        out.append(group.tick()["ttf_s"])
    return out


def test_time_to_failure_is_unknown_before_the_window_is_full(decide: Decide) -> None:
    """25 steps of 200 ms are 5 s: the 26th tick knows."""
    known = [value is not None for value in ramp(group_of(decide, 2), 1.0, 27)]
    assert known == [False] * 25 + [True] * 2


def test_time_to_failure_of_a_steady_ramp(decide: Decide) -> None:
    """5 per second once the EWMA has settled; what remains is taken from raw usage."""
    used = 100 + 1.0 * 99
    assert ramp(group_of(decide, 2), 1.0, 100)[-1] == pytest.approx((1000 - used) / 5, rel=1e-4)


def test_constant_usage_is_capped_at_a_day(decide: Decide) -> None:
    """V = 0 is no infinity."""
    assert ramp(group_of(decide, 2), 0.0, 30)[-1] == 86_400


def test_falling_usage_never_fails(decide: Decide) -> None:
    """The velocity is positive only."""
    assert ramp(group_of(decide, 2), -2.0, 30)[-1] == 86_400


def test_overdrawn_is_hard_at_once(decide: Decide) -> None:
    """R < 0 needs no history, not even on the first tick."""
    group = group_of(decide, 2)
    group.nodes = [node(used=1000.5)]
    out = group.tick()
    assert (out["ttf_s"], out["admission"]["mode"], out["reasons"][0]) == (0, "hard", "ttf")


def test_full_with_no_velocity_is_zero(decide: Decide) -> None:
    """R = 0 and V = 0: nothing is left, so nothing is stable."""
    group = group_of(decide, 2)
    group.nodes = [node(used=1000)]
    group.tick()
    assert group.run(6_000)["ttf_s"] == 0


def test_cpu_is_no_exhaustible_resource(decide: Decide) -> None:
    """A full CPU is fine until it stalls."""
    group = group_of(decide, 2)
    full = {"name": "cpu", "limit": 4, "used": 5}
    group.nodes = [{"id": "n1", "psi": None, "resources": [full]}]
    group.tick()
    assert group.run(6_000)["ttf_s"] is None
    assert group.last["reasons"] == ["steady"]


def test_the_least_time_to_failure_of_all_nodes(decide: Decide) -> None:
    """Nodes and resources: the minimum."""
    group = group_of(decide, 2)
    for index in range(40):
        group.nodes = [node("n1", used=100), node("n2", used=500 + index)]
        group.tick()
    assert group.last["ttf_s"] < 110


def test_time_backwards_is_no_time(decide: Decide) -> None:
    """Calm, gate and history wait; the tick itself is an ordinary one."""
    group = group_of(decide, 4)
    group.tick()
    group.set("b1", p95_ms=400)
    group.tick()
    for step_ms in (-5_000, 0, -1, 0, 0):
        out = group.tick(step_ms)
        assert out["slots"] == dict.fromkeys(("b1", "b2", "b3", "b4"), 64)
        assert sum(out["target"].values()) == 256
