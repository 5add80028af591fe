"""Pressure: sections 2, 3 and 12 of the equations."""

import pytest

from fairlead.core.traffic import Backend, Config, Node, Psi, Resource
from fairlead.core.traffic.nodes import stall_score
from fairlead.core.traffic.pressure import (
    Pressures,
    _fullness,
    count_errors,
    debt_term,
    layer_terms,
    measure_pressure,
    wilson_lower,
)
from fairlead.core.traffic.state import BackendMemory


def measured(*backends: Backend, **config: float) -> Pressures:
    rates = [backend.error_rate for backend in backends]
    return measure_pressure(backends, rates, {}, Config(**config))  # type: ignore[arg-type]


def test_the_contracts_example() -> None:
    """3 in the queue and 40 ms: 0.03 + 0.4."""
    (pressure,) = measured(Backend("b1", queue=3, p95_ms=40, error_rate=0.0)).values
    assert pressure == (pytest.approx(0.43), 0.03, 0.4, 0.0, 0.0, ())


def test_errors_are_clipped_and_penalised() -> None:
    """E/E_ref is capped at E_max; strictly above eta K_E is added."""
    at, above, all_of_it = measured(
        Backend("a", 0, 0, 0.05), Backend("b", 0, 0, 0.06), Backend("c", 0, 0, 1.0)
    ).values
    assert (at.error, at.penalty, at.total) == (pytest.approx(15.0), 0.0, pytest.approx(15.0))
    assert (above.error, above.penalty, above.total) == (18.0, 10.0, 28.0)
    assert (all_of_it.error, all_of_it.total) == (60.0, 70.0)


def test_an_idle_backend_is_floored() -> None:
    """P_min, so that it does not take everything."""
    assert measured(Backend("a", 0, 1.0, 0.0)).values[0].total == 0.1


def test_one_missing_signal_is_the_groups_worst() -> None:
    """Latency, errors and queue alike, isolated backends included."""
    seen = measured(Backend("a", 10, 50, 0.2, isolated=True), Backend("b", None, None, None))
    assert seen.values[1][1:] == seen.values[0][1:]
    assert (seen.missing_latency, seen.missing_errors, seen.missing_queue) == (True, True, True)
    assert not seen.blind


def test_a_signal_that_nobody_has_is_left_out() -> None:
    """Its weight is 0 for the whole group."""
    seen = measured(Backend("a", None, 40, None), Backend("b", None, 80, None))
    assert [pressure.total for pressure in seen.values] == [0.4, 0.8]
    assert (seen.missing_errors, seen.missing_queue, seen.errors) == (True, True, None)


def test_blind_is_neither_latency_nor_errors_of_anybody() -> None:
    """A queue alone is no eyesight; an empty group is not blind."""
    assert measured(Backend("a", 10), Backend("b", 20)).blind
    told = Backend("b", 20, error_rate=0.0, requests=200)
    assert not measured(Backend("a", 10), told).blind
    assert not measured().blind
    remembered = measure_pressure([Backend("a", 10, requests=0)], [0.3], {}, Config())
    assert remembered.blind
    of_unknown_volume = [Backend("a", 10, requests=0), Backend("b", 20, error_rate=0.0)]
    assert measure_pressure(of_unknown_volume, [0.3, None], {}, Config()).blind


def test_layers_are_off_by_default() -> None:
    """No weight, no term."""
    backend = Backend("a", 0, 40, 0.0, rtt_ms=1e6, retrans_rate=1, jitter_ms=1e6, node="n")
    assert layer_terms([backend], {}, Config()) == []


def test_the_path_layer_is_labelled_and_added() -> None:
    """3.2: W*x/ref of round trip, retransmissions and jitter."""
    config = Config(w_rtt=1, w_retx=2, w_jit=3)
    backend = Backend("a", 0, 0, 0.0, rtt_ms=25, retrans_rate=0.01, jitter_ms=5)
    (pressure,) = measure_pressure([backend], [0.0], {}, config).values
    assert pressure.layers == (("rtt", 0.5), ("retransmits", 2.0), ("jitter", 1.5))
    assert pressure.total == 4.0


def test_the_node_layer_is_its_nodes() -> None:
    """3.3: stall score, descriptors, conntrack and iowait of `node`."""
    config = Config(w_psi=1, w_fd=1, w_ct=1, w_io=1)
    node = Node(
        "n",
        Psi(cpu_some=0.8),
        (Resource("fds", 100, 40), Resource("conntrack", 10, 8)),
        iowait_ratio=0.05,
    )
    (terms,) = layer_terms([Backend("a", node="n")], {"n": node}, config)
    assert terms == (("stall", 2.0), ("fds", 0.5), ("conntrack", 1.0), ("iowait", 0.5))


def test_a_given_stall_score_wins_and_is_bounded() -> None:
    """S_max keeps one node from dominating."""
    config = Config(w_psi=1, stall_score_max=3)
    scores = [
        layer_terms([Backend("a", node="n")], {"n": node}, config)[0][0][1]
        for node in (Node("n", Psi(cpu_some=0.8), stall_score=1.5), Node("n", stall_score=99))
    ]
    assert scores == [1.5, 3.0]


def test_layer_signals_that_are_missing_are_the_worst_or_left_out() -> None:
    """Without a node, or with one that does not know, the worst of the others counts."""
    config = Config(w_psi=1, w_fd=1, w_rtt=1)
    nodes = {
        "n": Node("n", Psi(cpu_some=0.4), (Resource("fds", 100, 80),)),
        "blind": Node("blind", None, (Resource("fds", 0, 5), Resource("x", 1, 1))),
        "dark": Node("dark", Psi()),
    }
    backends = [
        Backend("a", node="n"),
        Backend("b", node="blind"),
        Backend("c"),
        Backend("d", node="gone"),
        Backend("e", node="dark"),
    ]
    terms = layer_terms(backends, nodes, config)
    assert terms == [(("rtt", 0.0), ("stall", 1.0), ("fds", 1.0))] * 5


def test_the_stall_score_is_the_worst_ratio_to_its_threshold() -> None:
    """1 at the threshold; unknown stays unknown."""
    theta = Config().theta
    assert stall_score(Psi(cpu_some=0.2, mem_full=0.1, io_some=1.0), theta) == 2.0
    assert stall_score(Psi(io_some=1.0), theta) is None
    assert stall_score(None, theta) is None


def test_debt_is_the_time_to_drain() -> None:
    """12, corrected: clip(T_drain/T_ref, 0, 10), only with real signals."""
    config = Config(w_debt=2)
    assert debt_term(Backend("a", debt=50, drain_per_s=10), config) == 1.0
    assert debt_term(Backend("a", debt=1e9, drain_per_s=0), config) == 20.0
    assert debt_term(Backend("a", debt=50), config) == 0.0
    assert debt_term(Backend("a", drain_per_s=5), config) == 0.0
    (terms,) = layer_terms([Backend("a", debt=50, drain_per_s=10)], {}, config)
    assert terms == (("debt", 1.0),)


def test_rubbish_that_is_finite_stays_finite() -> None:
    """The largest double as latency with the smallest reference."""
    seen = measured(Backend("a", 1e308, 1e308, 1.0), l_ref_ms=1e-9, q_ref=1e-9)
    assert seen.values[0].total < float("inf")
    unweighted = measured(Backend("a", 1e308, 40, 0.0), w_q=0.0, q_ref=1e-9)
    assert unweighted.values[0].total == 0.4


def test_nothing_is_missing_where_everything_is_known() -> None:
    """Nor where there is nobody; what is known of one is not taken for another's."""
    seen = measured(Backend("a", 1, 10, 0.0), Backend("b", 2, 20, 0.0))
    assert [seen.missing_latency, seen.missing_errors, seen.missing_queue] == [False] * 3
    nobody = measured()
    assert (nobody.values, nobody.errors, nobody.missing_errors) == ([], None, False)
    some = measured(Backend("a", 1, 10, 0.0), Backend("b", 2, 20, 0.0), Backend("c", None, 40, 0.0))
    assert [pressure.queue for pressure in some.values] == [0.01, 0.02, 0.02]


@pytest.mark.parametrize(
    ("rate", "after_ms", "counted"),
    [
        (None, 5_000, (0.3, 0.3, 1_000)),
        (0.0, 5_000, (0.3, 0.3, 1_000)),
        (None, 5_001, (None, None, None)),
        (0.0, 5_001, (0.0, None, None)),
    ],
)
def test_a_rate_is_remembered_for_five_seconds_without_requests(
    rate: float | None, after_ms: int, counted: tuple[float | None, ...]
) -> None:
    """Then an idle backend has the rate that its sensor says, or none that is known."""
    idle, memory = Backend("a", error_rate=rate, requests=0), BackendMemory("a", 0, 0.0, 0.3, 1_000)
    assert count_errors(idle, memory, 1_000 + after_ms, Config()) == counted


def test_no_requests_prove_no_error_rate() -> None:
    assert wilson_lower(0.5, 0, 1.96) == 0.0


@pytest.mark.parametrize(
    ("resources", "share"),
    [
        ((Resource("fds", 100, 40),), 0.4),
        ((Resource("conntrack", 10, 9), Resource("fds", 100, 40)), 0.4),
        ((Resource("conntrack", 10, 9),), None),
        ((Resource("fds", 0, 5),), None),
        ((Resource("fds", None, 5),), None),
        ((Resource("fds", 100, None),), None),
        ((), None),
    ],
)
def test_fullness_is_of_the_resource_by_that_name(
    resources: tuple[Resource, ...], share: float | None
) -> None:
    """Used over its limit, where both are known."""
    of = _fullness("fds")
    assert of(Backend("a"), Node("n", None, resources), Config()) == share
    assert of(Backend("a"), None, Config()) is None
