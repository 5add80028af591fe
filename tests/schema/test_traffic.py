"""The border of `traffic.tick`: exact paths, null signals, states that are ours and those that are
not.
"""

import copy
import json
import random
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from fairlead.core.canonical import canonical
from fairlead.core.traffic import Backend, Config, Node, Psi, Resource, Snapshot, tick
from fairlead.core.traffic.config import DEFAULT_CONFIG, INTEGER_RANGES, NAMES, NUMBER_RANGES, Theta
from fairlead.schema.border import BadInput, read_document
from fairlead.schema.kinds import KINDS
from fairlead.schema.replay import Replayer, Verdict
from fairlead.schema.traffic import (
    TICK,
    AgentTickDocument,
    ConfigDocument,
    TickDocument,
    TickResult,
    from_config,
    from_plan,
    from_snapshot,
    to_snapshot,
    version_of,
)
from tests.core.traffic.walks import walk

Document = dict[str, Any]
EXAMPLE: Document = {
    "config": {},
    "state": None,
    "now_ms": 1000,
    "group": "web",
    "backends": [
        {
            "id": name,
            "queue": 3,
            "p95_ms": 40,
            "error_rate": 0.0,
            "requests": 200,
            "isolated": False,
            "age_ms": 600_000,
        }
        for name in ("b1", "b2")
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
# What only the agent's own snapshot carries.
NOT_IN_THE_CONTRACT = {"w_debt", "t_ref_s", "debt_max"}


def decide(document: Document) -> Document:
    return KINDS["traffic.tick"].run(json.dumps(document).encode()).result


def refused(document: Document) -> BadInput:
    with pytest.raises(BadInput) as caught:
        decide(document)
    return caught.value


def changed(path: str, value: Any, document: Document = EXAMPLE) -> Document:
    """The example with one value changed, by a path like `backends[1].p95_ms`."""
    result = copy.deepcopy(document)
    *way, last = path.replace("[", ".").replace("]", "").split(".")
    place: Any = result
    for step in way:
        place = place[int(step)] if isinstance(place, list) else place[step]
    place[int(last) if isinstance(place, list) else last] = value
    return result


def test_the_contracts_example() -> None:
    """As the page prints it, canonical, and inside the documented shape."""
    one = changed("backends", EXAMPLE["backends"][:1])
    result = decide(one)
    state = result.pop("state")
    assert json.loads(canonical(result)) == {
        "slots": {"b1": 256},
        "weights": {"b1": 1},
        "target": {"b1": 256},
        "pressure": {
            "b1": {
                "total": pytest.approx(0.43),
                "queue": 0.03,
                "latency": 0.4,
                "error": 0,
                "penalty": 0,
            }
        },
        "admission": {"mode": "normal", "rate_per_s": None, "burst": None},
        "regime": "laminar",
        "ttf_s": None,
        "stall": False,
        "skew": None,
        "conductance": pytest.approx(2.3256, abs=1e-4),
        "applied": True,
        "scale_hint": True,
        "bypass": [],
        "reasons": ["monopoly", "steady"],
    }
    msgspec.convert({**result, "state": state}, TickResult)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("now_ms", -1),
        ("now_ms", 1.5),
        ("now_ms", None),
        ("now_ms", True),
        ("now_ms", 2**53),
        ("group", 7),
        ("backends", None),
        ("backends[1]", 7),
        ("backends[1].id", None),
        ("backends[1].p95_ms", float("nan")),
        ("backends[1].p95_ms", -1),
        ("backends[1].p95_ms", float("inf")),
        ("backends[1].p95_ms", "40"),
        ("backends[1].queue", -1),
        ("backends[0].error_rate", 1.01),
        ("backends[0].error_rate", float("nan")),
        ("backends[0].requests", 1.5),
        ("backends[0].requests", -1),
        ("backends[0].isolated", 1),
        ("backends[0].isolated", None),
        ("backends[0].age_ms", -1),
        ("backends[0].p99_ms", 1),
        ("backends[0].debt", 1),
        ("backends[0].rtt_ms", float("nan")),
        ("backends[0].node", 7),
        ("nodes[0].psi.cpu_some", 1.1),
        ("nodes[0].psi.cpu_full", 0.0),
        ("nodes[0].psi", 7),
        ("nodes[0].psi.io_some", float("nan")),
        ("nodes[0].id", None),
        ("nodes[0].resources[0].used", -1),
        ("nodes[0].resources[0].limit", float("nan")),
        ("nodes[0].resources[0].name", None),
        ("nodes[0].resources[0].unit", "MB"),
        ("retry_index", -0.1),
        ("retry_index", float("nan")),
        ("config", None),
        ("config.delta_t", 200),
        ("config.s_total", 0),
        ("config.s_total", 1.5),
        ("config.alpha", 0),
        ("config.alpha", float("nan")),
        ("config.theta", 0.4),
        ("config.theta", None),
        ("config.p_min", 0),
        ("config.w_debt", 1),
        ("state", 7),
        ("state", []),
        ("surplus", 1),
    ],
)
def test_bad_values_are_named_exactly(path: str, value: Any) -> None:
    """The path of the culprit, nothing more and nothing less."""
    assert refused(changed(path, value)).path == path


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"config": {"theta": {"cpu_full": 1}}}, "config.theta.cpu_full"),
        ({"config": {"theta": {"cpu_some": -1}}}, "config.theta.cpu_some"),
        ({"config": {"t_hard_s": 120}}, "config.t_hard_s"),
        ({"config": {"t_safe_s": 20}}, "config.t_hard_s"),
        ({"config": {"retry_soft": 3}}, "config.retry_hard"),
        ({"backends": EXAMPLE["backends"][:1] * 2}, "backends[1].id"),
        ({"nodes": EXAMPLE["nodes"] * 2}, "nodes[1].id"),
        (
            {"nodes": [{"id": "n", "resources": [{"name": "m", "limit": 1, "used": 1}] * 2}]},
            "nodes[0].resources[1].name",
        ),
        (
            {"nodes": [{"id": "n", "resources": [{"name": "m", "limit": 1}]}]},
            "nodes[0].resources[0].used",
        ),
        ({"backends": [{"queue": 1}]}, "backends[0].id"),
        ({"state": {}}, "state.version"),
        ({"state": {"version": 2}}, "state.version"),
    ],
)
def test_contradictions_are_named_exactly(change: Document, path: str) -> None:
    """Repeated ids, thresholds out of order, missing fields, states that are not ours."""
    assert refused(EXAMPLE | change).path == path


def test_missing_fields_are_named() -> None:
    """Time, group and backends have no default."""
    for name in ("now_ms", "group", "backends"):
        document = {key: value for key, value in EXAMPLE.items() if key != name}
        assert refused(document).path == name


def test_signals_may_be_null_or_left_out() -> None:
    """Both mean missing; config, state, nodes and retries have defaults."""
    bare = {"now_ms": 1, "group": "g", "backends": [{"id": "a"}, {"id": "b", "queue": None}]}
    assert decide(bare)["reasons"] == ["signal_missing.queue", "signal_missing.both"]


STATE = decide(EXAMPLE)["state"]
SPOILT = [
    ("version", 2),
    ("version", None),
    ("now_ms", -1),
    ("clock_ms", 1.5),
    ("samples", 0),
    ("s_total", 0),
    ("parked", None),
    ("backends", None),
    ("backends", []),
    ("backends[0].slots", 129),
    ("backends[0].slots", "128"),
    ("backends[0].weight", float("nan")),
    ("backends[0].error_ms", 5),
    ("backends[1].id", "a"),
    ("backends[0].surplus", 1),
    ("nodes[0].stalled", [2]),
    ("nodes[0].trails[0].ewma", -1),
    ("nodes[0].trails[0].history", {}),
    ("nodes[0].trails[0].history", 7),
    ("gate.since_ms", 9),
    ("gate.stepping", True),
    ("guard.halvings", 9),
    ("door.mode", "open"),
    ("door.regime", "crisis"),
    ("door.calm_since_ms", 0),
    ("door.rate_base", 1),
    ("surplus", 1),
]
NAMED_OTHERWISE = {
    ("backends[0].slots", 129): "backends",
    ("backends", "[]"): "parked",
    ("nodes[0].stalled", "[2]"): "nodes[0].stalled[0]",
    ("gate.stepping", True): "gate.since_ms",
}


@pytest.mark.parametrize(("path", "value"), SPOILT)
def test_a_state_that_is_not_ours_is_refused_with_its_path(path: str, value: Any) -> None:
    """Whatever was changed in it, the path begins with `state`."""
    key = (path, value if isinstance(value, int | str) else repr(value))
    expected = NAMED_OTHERWISE.get(key, path)
    document = EXAMPLE | {"now_ms": 1_200, "state": changed(path, value, STATE)}
    assert refused(document).path == f"state.{expected}"


@pytest.mark.parametrize(
    ("key", "value"), [("007", 1.0), ("-1", 1.0), ("soon", 1.0), ("5", 1.0), ("0", "1"), ("0", -1)]
)
def test_a_history_that_is_not_ours_is_refused(key: str, value: Any) -> None:
    """Times in milliseconds that have passed, and finite use."""
    path = "nodes[0].trails[0].history"
    document = EXAMPLE | {"now_ms": 1_200, "state": changed(path, {key: value}, STATE)}
    assert refused(document).path == f"state.{path}.{key}"


def test_a_history_of_thousands_of_digits_is_refused() -> None:
    """A number that no double holds."""
    path = "nodes[0].trails[0].history"
    document = EXAMPLE | {"now_ms": 1_200, "state": changed(path, {"0": 10**400}, STATE)}
    assert refused(document).path.startswith(f"state.{path}")


def test_the_state_goes_round_and_round() -> None:
    """The state of each output is the input of the next tick, as JSON."""
    document, states = copy.deepcopy(EXAMPLE), []
    for turn in range(30):
        document["now_ms"] = 1_000 + 200 * turn
        result = json.loads(canonical(decide(document)))
        document["state"] = result["state"]
        states.append(result["state"])
    assert states[-1]["clock_ms"] == 29 * 200
    assert len(states[-1]["nodes"][0]["trails"][0]["history"]) == 26


def test_io_some_is_a_threshold_that_is_accepted_and_never_used() -> None:
    """Merged over the defaults, field by field."""
    document = msgspec.convert({"theta": {"io_some": 0.0, "cpu_some": 0.9}}, ConfigDocument)
    config = TICK.to_core(Config, document)
    assert config.theta == Theta(cpu_some=0.9)


def test_the_border_states_the_same_limits_and_defaults_as_core() -> None:
    """Parameter by parameter; those of the agent's richer snapshot are not here."""
    schema = msgspec.json.schema(ConfigDocument)["$defs"]["ConfigDocument"]["properties"]
    assert set(schema) == set(NAMES) - NOT_IN_THE_CONTRACT
    for name, (low, high) in {**INTEGER_RANGES, **NUMBER_RANGES}.items():
        if name in NOT_IN_THE_CONTRACT:
            continue
        stated = schema[name]
        numbers = next((each for each in stated.get("anyOf", []) if "minimum" in each), stated)
        assert (numbers["minimum"], numbers["maximum"]) == (low, high), name
        assert stated["default"] == getattr(DEFAULT_CONFIG, name), name
    assert TICK.to_core(Config, ConfigDocument()) == DEFAULT_CONFIG


def test_a_snapshot_keeps_every_value_through_its_document() -> None:
    """What is recorded is what was decided on."""
    snapshot = Snapshot(
        now_ms=7,
        group="g",
        backends=(Backend("a", 1, 2, 0.5, 4, True, 6, 7, 8, 9, "n"), Backend("b")),
        nodes=(
            Node("n", Psi(0.1, 0.2, 0.3, 0.4, 0.5), (Resource("m", 1, None),), 2, 0.5),
            Node("o"),
        ),
        retry_index=0.25,
        config=Config(s_total=100, delta_max=3, theta=Theta(io_full=0.5), w_rtt=1),
    )
    document = canonical(from_snapshot(snapshot))
    assert to_snapshot(read_document(document, TickDocument)) == snapshot
    assert from_config(snapshot.config) == {
        "s_total": 100,
        "delta_max": 3.0,
        "theta": {"io_full": 0.5},
        "w_rtt": 1.0,
    }


def test_debt_is_the_agents_own_and_no_part_of_the_contract() -> None:
    """Recorded and replayed in a second version of the shape; `fairlead decide` refuses it."""
    snapshot = Snapshot(
        now_ms=7,
        group="g",
        backends=(Backend("a", debt=8.0, drain_per_s=2.0), Backend("b", debt=0.0, drain_per_s=2.0)),
        config=Config(w_debt=1.0, t_ref_s=2.0),
    )
    assert version_of(snapshot) == 2
    document = from_snapshot(snapshot)
    assert to_snapshot(read_document(canonical(document), AgentTickDocument)) == snapshot
    result = from_plan(tick(snapshot))
    assert [result["pressure"][id]["debt"] for id in "ab"] == [2.0, 0.0]
    assert Replayer().run(1, "traffic.tick", 2, document, result).verdict is Verdict.SAME
    assert Replayer().run(1, "traffic.tick", 1, document, result).verdict is Verdict.DIFFERENT
    for path, refused in (
        ("backends[0].debt", {**document, "config": {}}),
        ("config.t_ref_s", {**document, "backends": []}),
    ):
        with pytest.raises(BadInput) as caught:
            KINDS["traffic.tick"].run(canonical(refused))
        assert caught.value.path == path
    plain = replace(snapshot, config=Config())
    assert version_of(plain) == 1
    assert "debt" not in from_snapshot(plain)["backends"][0]


@pytest.mark.parametrize("seed", range(20))
def test_every_result_has_the_documented_shape(seed: int) -> None:
    """Also of hostile lives."""
    for snapshot, _ in walk(random.Random(seed), 15):
        result = KINDS["traffic.tick"].run(canonical(from_snapshot(snapshot))).result
        msgspec.convert(json.loads(canonical(result)), TickResult)


EXTREMES = (0, 5e-324, 1e-9, 1, 1e12, 1e300, 1.7976931348623157e308, None)


@pytest.mark.parametrize("seed", range(40))
def test_extreme_values_are_decided_finitely(seed: int) -> None:
    """From the smallest double to the largest, under parameters at the ends of their ranges."""
    rng = random.Random(seed)
    ranges = {**INTEGER_RANGES, **NUMBER_RANGES}
    paired = {"t_hard_s", "t_safe_s", "retry_soft", "retry_hard"}
    names = rng.sample(sorted(set(ranges) - NOT_IN_THE_CONTRACT - paired), 5)
    config = {name: rng.choice(ranges[name]) for name in names}
    state = None
    for turn in range(6):
        signals = ("queue", "p95_ms", "rtt_ms")
        backends = [
            {
                "id": name,
                **{signal: rng.choice(EXTREMES) for signal in signals},
                "error_rate": rng.choice((0, 5e-324, 1, None)),
                "requests": rng.choice((0, 1, 10**12, None)),
            }
            for name in rng.sample("abcd", rng.randint(0, 4))
        ]
        sizes = {"limit": rng.choice(EXTREMES), "used": rng.choice(EXTREMES)}
        nodes = [{"id": "n", "resources": [{"name": "memory", **sizes}]}]
        document = {
            "now_ms": turn * 2**50,
            "group": "g",
            "backends": backends,
            "nodes": nodes,
            "config": config,
            "state": state,
        }
        state = json.loads(canonical(decide(document)))["state"]


def test_the_layers_are_labelled_in_the_result() -> None:
    """Beside the five terms that are always there."""
    backends = [{"id": "a", "p95_ms": 40, "error_rate": 0, "requests": 9, "rtt_ms": 25}]
    result = decide({"now_ms": 0, "group": "g", "backends": backends, "config": {"w_rtt": 2}})
    assert result["pressure"]["a"]["rtt"] == 1.0
    assert result["pressure"]["a"]["total"] == pytest.approx(1.4)
