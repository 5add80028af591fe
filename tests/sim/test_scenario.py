"""Scenarios are validated strictly, with the path of the field; those in the box all play."""

from pathlib import Path
from typing import Any

import pytest

from fairlead.core.canonical import canonical
from fairlead.schema.border import BadInput
from fairlead.schema.scenario import read_scenario, scenario_schema
from fairlead.sim import bundled_names, read_bundled
from tests.sim.scenarios import pod

ROOT = Path(__file__).parents[2]
GOOD: dict[str, Any] = {
    "name": "good",
    "duration_s": 10,
    "node": {"millicores": 1000},
    "pods": [pod("a"), pod("b")],
}


def but(**fields: Any) -> dict[str, Any]:
    return {**GOOD, **fields}


def a_pod(**fields: Any) -> dict[str, Any]:
    return but(pods=[{**pod("a"), **fields}])


def a_want(**trace: Any) -> dict[str, Any]:
    return a_pod(want=[trace])


def a_fault(point: str, **fields: Any) -> dict[str, Any]:
    return but(faults=[{"point": point, **fields}])


RANGE = "must be an integer between 1 and 604800, got"
POINTS = [{"at_s": 4, "millicores": 1}, {"at_s": 4, "millicores": 2}]


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ([], "$: must be an object, got a list"),
        ({}, "name: is required"),
        (but(colour=1), "colour: is not a known field"),
        (but(name="../etc"), "name: must be lower-case letters, digits and dashes"),
        (but(name="x" * 64), "name: must be lower-case letters, digits and dashes"),
        (but(duration_s=0), f"duration_s: {RANGE} 0"),
        (but(duration_s=1.5), f"duration_s: {RANGE} 1.5"),
        (but(duration_s="10"), f'duration_s: {RANGE} "10"'),
        (but(seed=-1), "seed: must be an integer"),
        (but(node={}), "node.millicores: is required"),
        (but(policies=[]), "policies: "),
        (but(policies=["fair"]), "policies[0]: must be one of demand-capped, market, nash"),
        (but(policies=["nash", "nash"]), "policies: must differ"),
        (but(governor={"reserve": 2}), "governor.reserve: must be between 0 and 1, got 2"),
        (but(governor={"sample_ms": 9000}), "governor.clear_ms: must be at least"),
        (but(pods=[pod("a"), pod("a")]), "pods[1].name: repeats pods[0].name, 'a'"),
        (a_pod(name=""), "pods[0].name: must be a non-empty string"),
        (a_pod(request_millicores=-1), "pods[0].request_millicores: must be"),
        (a_pod(arrive_s=5, leave_s=5), "pods[0].leave_s: must be after arrive_s"),
        (a_pod(want=[]), "pods[0].want: "),
        (a_pod(want={"kind": "constant"}), "pods[0].want: must be a list"),
        (a_want(millicores=1), "pods[0].want[0].kind: is required; must be one of constant,"),
        (a_want(kind="saw"), "pods[0].want[0].kind: must be one of constant, steps,"),
        (a_want(kind=["x"]), "pods[0].want[0].kind: must be one of constant,"),
        (a_want(kind="constant"), "pods[0].want[0].millicores: is required"),
        (a_want(kind="constant", millicores=-5), "pods[0].want[0].millicores: must be an integer"),
        (a_want(kind="constant", millicores=1, up=2), "pods[0].want[0].up: is not a known field"),
        (
            a_want(kind="constant", millicores=1, from_s=5, until_s=5),
            "pods[0].want[0].until_s: must be after from_s",
        ),
        (
            a_want(kind="sine", low_millicores=9, high_millicores=1, period_s=5),
            "pods[0].want[0].low_millicores: must not be above",
        ),
        (a_want(kind="points", points=POINTS), "pods[0].want[0].points: must be in the order"),
        (a_fault("sensor.fire"), "faults[0].point: must be one of sensor.missing, sensor.reset"),
        (a_fault("agent.crash"), "faults[0]: must have a probability or at_s"),
        (a_fault("agent.crash", probability=1.1), "faults[0].probability: must be between"),
        (a_fault("sensor.reset", at_s=[1], pods=["b", "z"]), "faults[0].pods[1]: no pod is called"),
        (but(acts=[{"at_s": 0, "title": ""}]), "acts[0].title: must be a non-empty string"),
    ],
)
def test_bad_scenarios_are_refused_by_path(document: Any, message: str) -> None:
    """One wrong thing each."""
    with pytest.raises(BadInput) as refused:
        read_scenario(canonical(document))
    assert str(refused.value).startswith(message)


def test_the_scenarios_at_the_root_come_with_the_package() -> None:
    """Each file in scenarios/ is linked into the package under its own name, and is valid."""
    names = sorted(path.stem for path in (ROOT / "scenarios").glob("*.yaml"))
    assert names == bundled_names()
    assert {"quiet", "bursty-mix", "overload", "faults"} <= set(names)
    for name in names:
        scenario = read_scenario(read_bundled(name))
        assert scenario.name == name
        assert scenario.about


def test_the_schema_names_every_trace() -> None:
    """For editors; the kinds are a tagged union."""
    schema = scenario_schema()
    assert {"Constant", "Steps", "Sine", "Bursty", "Ramp", "Points", "Spikes"} <= set(
        schema["$defs"]
    )
