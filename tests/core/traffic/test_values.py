"""Config, model and state refuse what their units do not allow, by name."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fairlead.core import apportion, units
from fairlead.core.traffic import Backend, Config, Node, Psi, Resource, Snapshot, State
from fairlead.core.traffic.config import (
    DEFAULT_CONFIG,
    INTEGER_RANGES,
    NAMES,
    NUMBER_RANGES,
    SLOTS_MAX,
    Theta,
)
from fairlead.core.traffic.state import (
    AdmissionMode,
    AdmissionState,
    BackendMemory,
    Guard,
    NodeMemory,
    Regime,
    StepGate,
    Trail,
)
from fairlead.core.units import OutOfRange

NAN = float("nan")
COMPILED = Path(apportion.__file__).suffix != ".py"


def culprit(make: Any, **values: Any) -> str:
    with pytest.raises(OutOfRange) as caught:
        make(**values)
    return caught.value.field


def test_the_defaults_are_the_pages() -> None:
    """Section 15, as the page settles it."""
    c = DEFAULT_CONFIG
    assert (c.s_total, c.step, c.delta_w, c.t_hold_ms, c.t_recover_min_ms) == (
        256,
        4,
        0.02,
        1_000,
        20_000,
    )
    assert (c.w_l, c.w_e, c.w_q, c.q_ref, c.l_ref_ms, c.e_ref, c.e_max, c.eta, c.k_e) == (
        1,
        3,
        0.5,
        50,
        100,
        0.01,
        20,
        0.05,
        10,
    )
    assert (c.p_min, c.p_ref, c.g_min, c.t_safe_s, c.t_hard_s) == (0.1, 1, 0.3, 120, 20)
    assert (c.alpha, c.derivative_window_ms, c.stall_m, c.stall_p) == (0.2, 5_000, 10, 0.7)
    assert c.theta == Theta(0.40, 0.10, 0.05, 0.10)
    assert (c.warmup_ms, c.bucket_burst, c.bucket_rate) == (30_000, 100, 100)
    assert (c.retry_soft, c.retry_hard, c.skew_max, c.epsilon_skew) == (0.5, 2, 0.2, 0.02)
    assert not c.layered
    assert Config(w_io=0.1).layered


def test_every_parameter_has_a_range() -> None:
    """None is unchecked."""
    assert set(NAMES) == {*INTEGER_RANGES, *NUMBER_RANGES, "theta"}


@pytest.mark.parametrize("name", sorted({*INTEGER_RANGES, *NUMBER_RANGES}))
def test_every_parameter_is_refused_outside_its_range(name: str) -> None:
    """NaN, negatives, infinities, texts and booleans, by name."""
    for bad in (NAN, -1, float("inf"), "7", True):
        assert culprit(Config, **{name: bad}) == name


def test_a_small_total_still_steps() -> None:
    """max(1, S/64)."""
    assert Config(s_total=10).step == 1
    assert Config(delta_max=7).step == 7.0


def test_parameters_that_contradict_each_other_are_refused() -> None:
    """T_hard below T_safe; retry thresholds in order; stall thresholds by path."""
    assert culprit(Config, t_hard_s=120) == "t_hard_s"
    assert culprit(Config, retry_soft=3) == "retry_hard"
    assert culprit(Theta, mem_full=NAN) == "theta.mem_full"


@pytest.mark.parametrize(
    ("field", "bad"),
    [
        ("id", 7),
        ("queue", -1),
        ("queue", NAN),
        ("p95_ms", float("inf")),
        ("error_rate", 1.5),
        ("error_rate", NAN),
        ("requests", 1.5),
        ("requests", -1),
        ("isolated", 1),
        ("age_ms", -1),
        ("rtt_ms", "3"),
        ("retrans_rate", -1),
        ("jitter_ms", NAN),
        ("node", 7),
        ("debt", -1),
        ("drain_per_s", NAN),
    ],
)
def test_a_backend_refuses_rubbish(field: str, bad: Any) -> None:
    """By field."""
    assert culprit(Backend, **({"id": "a"} | {field: bad})) == field


def test_integers_become_doubles_where_doubles_are_meant() -> None:
    """So that one value has one form."""
    assert repr(Backend("a", queue=3, p95_ms=40, error_rate=0, node="n")) == repr(
        Backend("a", queue=3.0, p95_ms=40.0, error_rate=0.0, node="n")
    )


def test_nodes_and_snapshots_refuse_rubbish() -> None:
    """By field, repeated names included."""
    assert culprit(Psi, cpu_some=1.1) == "cpu_some"
    assert culprit(Resource, name="m", limit=-1, used=0) == "limit"
    assert culprit(Node, id="n", stall_score=NAN) == "stall_score"
    assert culprit(Node, id="n", iowait_ratio=2) == "iowait_ratio"
    twice = (Resource("m", 1, 1), Resource("m", 2, 2))
    assert culprit(Node, id="n", resources=twice) == "resources[1].name"
    usual: dict[str, Any] = {"now_ms": 0, "group": "g", "backends": ()}
    assert culprit(Snapshot, **(usual | {"now_ms": -1})) == "now_ms"
    assert culprit(Snapshot, **(usual | {"retry_index": NAN})) == "retry_index"
    assert culprit(Snapshot, **(usual | {"backends": [Backend("a")] * 2})) == "backends[1].id"
    assert culprit(Snapshot, **(usual | {"nodes": [Node("n")] * 2})) == "nodes[1].id"


GOOD = State(
    now_ms=5,
    clock_ms=1_000,
    samples=9,
    s_total=256,
    parked=False,
    backends=(BackendMemory("a", 200, 0.8, 0.1, 900), BackendMemory("b", 56, 0.2)),
    nodes=(NodeMemory("n", (3, 9), (Trail("memory", 5.0, ((0, 4.0), (200, 5.0))),)),),
    gate=StepGate(800, stepping=True),
    guard=Guard(2, 500),
    admission=AdmissionState(AdmissionMode.SOFT, Regime.RECOVERY, 400, 10.0),
)
A, B = GOOD.backends
TRAIL = GOOD.nodes[0].trails[0]


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"now_ms": -1}, "now_ms"),
        ({"clock_ms": 1.5}, "clock_ms"),
        ({"samples": 0}, "samples"),
        ({"s_total": 0}, "s_total"),
        ({"backends": (B, A)}, "backends[1].id"),
        ({"backends": (A,)}, "backends"),
        ({"backends": (replace(A, slots=-1), B)}, "backends[0].slots"),
        ({"backends": (replace(A, weight=1.1), B)}, "backends[0].weight"),
        ({"backends": (replace(A, error_rate=2.0), B)}, "backends[0].error_rate"),
        ({"backends": (replace(A, error_ms=None), B)}, "backends[0].error_ms"),
        ({"backends": (replace(A, error_ms=1_001), B)}, "backends[0].error_ms"),
        ({"backends": (A, replace(B, error_ms=5))}, "backends[1].error_ms"),
        ({"nodes": (NodeMemory("n"), NodeMemory("n"))}, "nodes[1].id"),
        ({"nodes": (NodeMemory("n", (3, 3)),)}, "nodes[0].stalled"),
        ({"nodes": (NodeMemory("n", (10,)),)}, "nodes[0].stalled[0]"),
        ({"nodes": (NodeMemory("n", (), (TRAIL, TRAIL)),)}, "nodes[0].trails[1].name"),
        ({"nodes": (NodeMemory("n", (), (replace(TRAIL, ewma=NAN),)),)}, "nodes[0].trails[0].ewma"),
        (
            {"nodes": (NodeMemory("n", (), (replace(TRAIL, history=()),)),)},
            "nodes[0].trails[0].history",
        ),
        (
            {"nodes": (NodeMemory("n", (), (replace(TRAIL, history=((1_001, 1.0),)),)),)},
            "nodes[0].trails[0].history.1001",
        ),
        (
            {"nodes": (NodeMemory("n", (), (replace(TRAIL, history=((1, NAN),)),)),)},
            "nodes[0].trails[0].history.1",
        ),
        ({"gate": StepGate(1_001)}, "gate.since_ms"),
        ({"gate": StepGate(None, stepping=True)}, "gate.since_ms"),
        ({"guard": Guard(9)}, "guard.halvings"),
        ({"guard": Guard(1, 1_001)}, "guard.since_ms"),
        ({"admission": AdmissionState(AdmissionMode.HARD, Regime.LAMINAR)}, "admission.regime"),
        ({"backends": ()}, "parked"),
        (
            {"admission": AdmissionState(AdmissionMode.SOFT, Regime.TRANSITION, 1_001)},
            "admission.calm_since_ms",
        ),
        (
            {"admission": AdmissionState(AdmissionMode.NORMAL, Regime.LAMINAR, 5)},
            "admission.calm_since_ms",
        ),
        ({"admission": AdmissionState(AdmissionMode.SOFT, Regime.RECOVERY)}, "admission.rate_base"),
        (
            {"admission": AdmissionState(AdmissionMode.SOFT, Regime.TRANSITION, None, 1.0)},
            "admission.rate_base",
        ),
        (
            {"admission": AdmissionState(AdmissionMode.SOFT, Regime.RECOVERY, None, -1.0)},
            "admission.rate_base",
        ),
    ],
)
def test_a_state_that_no_tick_leaves_behind_is_refused(change: dict[str, Any], path: str) -> None:
    """By path."""
    assert culprit(lambda: replace(GOOD, **change)) == path


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"backends": (A,)}, "backends: must hold s_total slots together, got 200"),
        ({"backends": (B, A)}, "backends[1].id: must be above the one before it"),
        ({"backends": ()}, "parked: must be true where there is no backend"),
        (
            {"backends": (A, replace(B, error_ms=5))},
            "backends[1].error_ms: must be given together with error_rate",
        ),
        (
            {"backends": (replace(A, error_ms=1_001), B)},
            "backends[0].error_ms: must be an integer between 0 and 1000, got 1001",
        ),
        (
            {"nodes": (NodeMemory("n", (3, 3)),)},
            "nodes[0].stalled: must be above the one before it",
        ),
        (
            {"nodes": (NodeMemory("n", (0, 3)),)},
            "nodes[0].stalled[0]: must be an integer between 1 and 9, got 0",
        ),
        (
            {"nodes": (NodeMemory("n", (), (replace(TRAIL, history=()),)),)},
            "nodes[0].trails[0].history: must not be empty",
        ),
        (
            {"nodes": (NodeMemory("n", (), (replace(TRAIL, history=((3, 1.0), (3, 1.0))),)),)},
            "nodes[0].trails[0].history: must be above the one before it",
        ),
        (
            {"gate": StepGate(None, stepping=True)},
            "gate.since_ms: must be known while slots are stepping",
        ),
        (
            {"admission": AdmissionState(AdmissionMode.HARD, Regime.LAMINAR)},
            f"admission.regime: must fit the mode hard, got {Regime.LAMINAR!r}",
        ),
        (
            {"admission": AdmissionState(AdmissionMode.NORMAL, Regime.LAMINAR, 5)},
            "admission.calm_since_ms: must be null in normal",
        ),
        (
            {"admission": AdmissionState(AdmissionMode.SOFT, Regime.RECOVERY)},
            "admission.rate_base: must be given in recovery, and only there",
        ),
    ],
)
def test_a_refused_state_is_told_what_is_wrong(change: dict[str, Any], sentence: str) -> None:
    """The sentence that the command line prints."""
    with pytest.raises(OutOfRange) as caught:
        replace(GOOD, **change)
    assert f"{caught.value.field}: {caught.value.message}" == sentence


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"slots": 200.0}, "slots"),
        ({"slots": True}, "slots"),
        ({"weight": "1"}, "weight"),
        ({"error_rate": "0"}, "error_rate"),
        ({"error_ms": 900.0}, "error_ms"),
    ],
)
def test_a_memory_of_another_type_is_refused(change: dict[str, Any], path: str) -> None:
    """Also where the value would do. A compiled memory refuses it before it is in a state."""
    found = culprit(lambda: replace(GOOD, backends=(replace(A, **change), B)))
    assert found == (path if COMPILED else f"backends[0].{path}")


@pytest.mark.parametrize("bad", [7, "\ud800"])
def test_a_memory_of_no_name_is_refused(bad: Any) -> None:
    found = culprit(lambda: replace(GOOD, backends=(replace(A, id=bad, slots=256),)))
    assert found == ("id" if COMPILED and bad == 7 else "backends[0].id")


@pytest.mark.parametrize(
    ("history", "path"),
    [
        (((1.0, 1.0),), "history.1.0"),
        (((0, 1.0), (1, float("inf"))), "history.1"),
        (((0, 1.0), (1, -1.0)), "history.1"),
        (((0, 1.0), (1, "1")), "history.1"),
    ],
)
def test_a_history_of_rubbish_is_refused(history: Any, path: str) -> None:
    """Every sample of it, not only the first. A compiled trail takes none of another type."""

    def made() -> State:
        trail = replace(TRAIL, history=history)
        return replace(GOOD, nodes=(NodeMemory("n", (), (trail,)),))

    if COMPILED and {type(each) for sample in history for each in sample} != {int, float}:
        with pytest.raises(TypeError, match="object expected"):
            made()
    else:
        assert culprit(made) == f"nodes[0].trails[0].{path}"


def test_memories_are_doubles_where_doubles_are_meant() -> None:
    assert replace(GOOD, nodes=(NodeMemory("n", (), (replace(TRAIL, history=((0, 4),)),)),)).nodes
    whole = replace(GOOD, backends=(replace(A, weight=1, error_rate=0), B))
    plain = replace(A, weight=1.0, error_rate=0.0)
    assert whole.backends[0] == plain
    assert COMPILED or repr(whole.backends[0]) == repr(plain)


def test_what_a_tick_leaves_behind_is_looked_at_in_one_sweep(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Field by field only what is odd, for this is done in every tick; the ends of ranges are not
    odd."""
    looked: list[type] = []
    monkeypatch.setattr(units, "check", lambda value, *_: looked.append(type(value)))
    monkeypatch.setattr(units, "weight", lambda *_: looked.append(float))
    backends = (
        BackendMemory("B", SLOTS_MAX, 1.0, 0.0, 0),
        BackendMemory("b", 0, 0.0, 1.0, 1_000),
        BackendMemory("c"),
    )
    nodes = (NodeMemory("n", (), (replace(TRAIL, history=((0, 0.0), (1_000, 0.5))),)),)
    replace(GOOD, s_total=SLOTS_MAX, backends=backends, nodes=nodes)
    assert looked == [State, StepGate, Guard, AdmissionState, Trail]
    del looked[:]
    replace(GOOD, s_total=SLOTS_MAX, backends=(*backends[:2], replace(backends[2], id="\u00e4")))
    assert BackendMemory in looked


def test_contradicting_parameters_are_told_what_is_wrong() -> None:
    for values, sentence in (
        ({"t_hard_s": 120.0}, "must be below t_safe_s, got 120.0"),
        ({"retry_soft": 3.0}, "must not be below retry_soft, got 2.0"),
    ):
        with pytest.raises(OutOfRange) as caught:
            Config(**values)
        assert caught.value.message == sentence
    assert Config(retry_soft=2.0).retry_hard == 2.0
    with pytest.raises(OutOfRange) as caught:
        Snapshot(now_ms=0, group="g", backends=(Backend("a"), Backend("a")))
    assert caught.value.message == "repeats backends[0].id, 'a'"


def test_an_empty_group_has_a_state_too() -> None:
    """No backends, no slots."""
    assert replace(GOOD, backends=(), parked=True).backends == ()
