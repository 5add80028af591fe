"""The page's lines about admission: triggers, calm, regimes, budgets, reasons; and the border."""

import json
from typing import Any

import pytest

from fairlead.schema.border import BadInput
from fairlead.schema.kinds import KINDS
from tests.core.traffic.play import Decide, Group, group_of, node


def mode(out: dict[str, Any]) -> str:
    """The admission mode."""
    found: str = out["admission"]["mode"]
    return found


@pytest.mark.parametrize(
    ("retry_index", "expected"),
    [(None, "normal"), (0.49, "normal"), (0.5, "soft"), (1.99, "soft"), (2, "hard")],
)
def test_retry_index(decide: Decide, retry_index: float | None, expected: str) -> None:
    """From 0.5 soft, from 2 hard, when known; at once, on the first tick too."""
    group = group_of(decide, 2)
    group.retry_index = retry_index
    assert mode(group.tick()) == expected
    assert ("retry_storm" in group.last["reasons"]) == (expected != "normal")


def test_conductance_is_the_slots_over_their_pressures(decide: Decide) -> None:
    """Σ(s/S)/P on the slots after the step; below 0.3 soft."""
    group = group_of(decide, 2)
    group.set("b2", p95_ms=400)
    out = group.tick()
    assert out["conductance"] == pytest.approx(231 / 256 / 0.43 + 25 / 256 / 4.03)
    group = group_of(decide, 2)
    group.set("b1", "b2", p95_ms=400)
    out = group.tick()
    assert (mode(out), out["reasons"]) == ("soft", ["conductance"])


def test_time_to_failure_thresholds(decide: Decide) -> None:
    """Below 120 s soft, below 20 s hard."""
    group = group_of(decide, 2)
    modes = {}
    for index in range(250):
        group.nodes = [node(used=100 + index * 4)]
        out = group.tick()
        if out["ttf_s"] is not None and index > 40:
            modes.setdefault(mode(out), out["ttf_s"])
    assert modes["soft"] < 120
    assert 19 < modes["hard"] < 20


def test_errors_alone_do_not_restrict_admission(decide: Decide) -> None:
    """A routable backend with the penalty is a reason; the others still conduct."""
    group = group_of(decide, 2)
    group.set("b1", error_rate=0.5)
    out = group.tick()
    assert (mode(out), out["reasons"]) == ("normal", ["errors", "skew"])
    group = group_of(decide, 2)
    group.set("b1", error_rate=0.5, isolated=True)
    assert "errors" not in group.tick()["reasons"]


def storm(group: Group, retry_index: float, ticks: int = 1) -> dict[str, Any]:
    """A retry storm of so many ticks, then none."""
    group.retry_index = retry_index
    for _ in range(ticks):
        group.tick()
    group.retry_index = None
    return group.last


def test_relaxing_goes_one_level_at_a_time_after_twenty_calm_seconds(decide: Decide) -> None:
    """Calm starts when the trigger ends and counts afresh for each level."""
    group = group_of(decide, 2)
    storm(group, 2)
    assert group.last["regime"] == "crisis"
    assert mode(group.run(20_000)) == "hard"
    assert (mode(group.tick()), group.last["regime"]) == ("soft", "recovery")
    assert mode(group.run(19_800)) == "soft"
    assert (mode(group.tick()), group.last["regime"]) == ("normal", "laminar")


def test_normal_to_soft_is_a_transition(decide: Decide) -> None:
    """Soft that was never hard."""
    group = group_of(decide, 2)
    assert storm(group, 1)["regime"] == "transition"


def test_a_new_trigger_restarts_calm(decide: Decide) -> None:
    """19 calm seconds, one bad tick, and the 20 s begin again."""
    group = group_of(decide, 2)
    storm(group, 1)
    group.run(19_000)
    storm(group, 1)
    assert mode(group.run(20_000)) == "soft"
    assert mode(group.tick()) == "normal"


def test_calm_means_no_trigger_of_the_current_level(decide: Decide) -> None:
    """A soft trigger does not keep hard hard, but keeps soft soft."""
    group = group_of(decide, 2)
    storm(group, 2)
    group.retry_index = 1
    assert mode(group.run(20_200)) == "soft"
    assert mode(group.run(60_000)) == "soft"


def test_slots_and_admission_never_reopen_in_the_same_tick(decide: Decide) -> None:
    """The tick that relaxes moves nothing, the ticks around it do."""
    group = group_of(decide, 4, s_total=100_000, delta_max=1, t_recover_min_ms=2_000)
    storm(group, 2)
    group.set("b1", p95_ms=400)
    relaxed = 0
    was, slots = mode(group.last), group.last["slots"]
    for _ in range(40):
        out = group.tick()
        if mode(out) != was:
            relaxed += 1
            assert out["slots"] == slots
            assert out["applied"] is False
        was, slots = mode(out), out["slots"]
    assert relaxed == 2
    assert slots["b1"] < 25_000 - 20


def test_conductance_on_the_unmoved_slots_cancels_relaxing(decide: Decide) -> None:
    """Calm would end, but the flow is too thin: soft goes on, and calm starts again."""
    group = group_of(decide, 2, t_recover_min_ms=1_000)
    storm(group, 1)
    group.run(1_000)
    group.set("b1", "b2", p95_ms=1_000)
    out = group.tick()
    assert (mode(out), out["reasons"]) == ("soft", ["conductance"])
    group.set("b1", "b2", p95_ms=40)
    assert mode(group.run(1_000)) == "soft"
    assert mode(group.tick()) == "normal"


def test_budgets_of_the_modes(decide: Decide) -> None:
    """Normal has none, soft 100/s with burst 100, hard 1 % of the requests, at least 1/s."""
    group = group_of(decide, 2)
    nothing = {"mode": "normal", "rate_per_s": None, "burst": None}
    assert group.tick()["admission"] == nothing
    assert storm(group, 1)["admission"] == {"mode": "soft", "rate_per_s": 100, "burst": 100}
    assert storm(group, 3)["admission"]["rate_per_s"] == pytest.approx(4)


def test_soft_after_hard_reopens_by_aimd(decide: Decide) -> None:
    """10 % at first, 10 % more per calm second, half at a new trigger, at most all of it."""
    group = group_of(decide, 2, bucket_rate=200)
    storm(group, 2)
    assert group.run(20_200)["admission"]["rate_per_s"] == pytest.approx(20)
    assert group.run(3_000)["admission"]["rate_per_s"] == pytest.approx(80)
    assert storm(group, 1, ticks=3)["admission"]["rate_per_s"] == pytest.approx(40)
    assert group.tick()["admission"]["rate_per_s"] == pytest.approx(40)
    assert group.run(1_000)["admission"]["rate_per_s"] == pytest.approx(60)
    assert group.run(10_000)["admission"]["rate_per_s"] == pytest.approx(200)


def test_at_most_two_reasons_in_priority_order(decide: Decide) -> None:
    """Everything at once: the stall and the memory come first."""
    group = group_of(decide, 2)
    group.nodes = [node(cpu_some=0.9, used=2000)]
    group.retry_index = 5
    group.set("b1", error_rate=1.0, p95_ms=None)
    assert group.run(1_400)["reasons"] == ["psi_stall", "ttf"]
    group.nodes = []
    group.run(2_000)
    assert group.last["reasons"] == ["retry_storm", "errors"]


def test_reasons_are_not_remembered(decide: Decide) -> None:
    """Hard without a trigger any more is steady."""
    group = group_of(decide, 2)
    storm(group, 2)
    out = group.tick()
    assert (mode(out), out["reasons"]) == ("hard", ["steady"])


def test_the_example_of_the_page() -> None:
    """The contract's own document; what it shows of the result."""
    document = {
        "config": {},
        "state": None,
        "now_ms": 1000,
        "group": "web",
        "backends": [
            {
                "id": "b1",
                "queue": 3,
                "p95_ms": 40,
                "error_rate": 0.0,
                "requests": 200,
                "isolated": False,
                "age_ms": 600000,
            }
        ],
        "nodes": [
            {
                "id": "n1",
                "psi": {
                    "cpu_some": 0.1,
                    "mem_some": 0.0,
                    "mem_full": 0.0,
                    "io_some": 0.0,
                    "io_full": 0.0,
                },
                "resources": [{"name": "memory", "limit": 8e9, "used": 2e9}],
            }
        ],
        "retry_index": None,
    }
    out = KINDS["traffic.tick"].run(json.dumps(document).encode()).result
    terms = {"total": 0.43, "queue": 0.03, "latency": 0.4, "error": 0.0, "penalty": 0.0}
    assert out["pressure"]["b1"] == pytest.approx(terms)
    assert out["conductance"] == pytest.approx(1 / 0.43)
    del out["state"], out["pressure"], out["conductance"]
    assert out == {
        "slots": {"b1": 256},
        "weights": {"b1": 1.0},
        "target": {"b1": 256},
        "admission": {"mode": "normal", "rate_per_s": None, "burst": None},
        "regime": "laminar",
        "ttf_s": None,
        "stall": False,
        "skew": None,
        "applied": True,
        "reasons": ["monopoly", "steady"],
        "scale_hint": True,
        "bypass": [],
    }


@pytest.mark.parametrize(
    ("text", "path"),
    [
        (
            '{"now_ms": 1, "group": "g", "backends": [{"id": "a"}, {"id": "b", "p95_ms": NaN}]}',
            "backends[1].p95_ms",
        ),
        ('{"now_ms": 1, "now_ms": 2, "group": "g", "backends": []}', "now_ms"),
        (
            '{"now_ms": 1, "group": "g", "backends": [], "config": {"t_hard_s": 120}}',
            "config.t_hard_s",
        ),
        ('{"now_ms": 1, "group": "g", "backends": [], "state": {"x": 1}}', "state"),
    ],
)
def test_error_paths_name_the_bad_value(text: str, path: str) -> None:
    """NaN included; a state that is not ours is refused too."""
    with pytest.raises(BadInput) as refused:
        KINDS["traffic.tick"].run(text.encode())
    assert refused.value.path.startswith(path)
