"""Traffic scenarios at the border: strict, with the path of whatever is wrong."""

import copy
import json
from typing import Any

import pytest

from fairlead.schema.border import BadInput
from fairlead.schema.traffic_scenario import read_traffic_scenario, traffic_scenario_schema
from fairlead.sim.traffic import bundled_names, read_bundled

GOOD: dict[str, Any] = {
    "name": "tiny",
    "duration_s": 10,
    "backends": [{"name": "a"}, {"name": "b", "joins_s": 2, "leaves_s": 5}],
    "load": {"per_s": 10},
    "events": [{"at_s": 3, "backend": "a", "latency_factor": 2}],
    "expect": [{"what": "share", "backend": "a", "most": 0.5}],
}
SCENARIOS = {
    "healthy",
    "slow",
    "fast-500s",
    "flapping",
    "double-load",
    "retry-storm",
    "agent-death",
    "monopoly",
    "all-isolated",
    "rolling",
    "latency-lost",
    "memory-ramp",
}


def test_every_scenario_of_the_specification_is_bundled() -> None:
    """And reads well."""
    assert set(bundled_names()) >= SCENARIOS
    for name in bundled_names():
        assert read_traffic_scenario(read_bundled(name)).name == name
    assert traffic_scenario_schema()


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"name": "No"}, "name: must be lower-case"),
        ({"duration_s": 0}, "duration_s: must be an integer between 1 and 3600"),
        ({"backends": []}, "backends: "),
        ({"backends": [{"name": "a"}, {"name": "a"}]}, "backends[1].name: repeats 'a'"),
        ({"backends": [{"name": "A"}]}, "backends[0].name: must be lower-case"),
        ({"backends": [{"name": "a", "joins_s": 5, "leaves_s": 5}]}, "backends[0].leaves_s: must"),
        ({"load": {}}, "load.per_s: is required"),
        ({"config": {"alpha": 3}}, "config.alpha: must be between"),
        ({"events": [{"at_s": 3, "backend": "x"}]}, "events[0].backend: no backend is called 'x'"),
        ({"events": [{"at_s": 11}]}, "events[0].at_s: must be within duration_s"),
        ({"events": [{"at_s": 1, "order": "x"}]}, "events[0].order: must be isolate"),
        ({"events": [{"at_s": 1, "blind": "x"}]}, "events[0].blind: must be one of nothing"),
        ({"expect": [{"what": "share"}]}, "expect[0].backend: is required for share"),
        ({"expect": [{"what": "mode"}]}, "expect[0].mode: is required for mode"),
        ({"expect": [{"what": "errors"}]}, "expect[0]: must have least or most"),
        ({"expect": [{"what": "isolated", "backend": "x"}]}, "expect[0].backend: no backend"),
        (
            {"expect": [{"what": "errors", "most": 0, "from_s": 4, "to_s": 4}]},
            "expect[0].to_s: must be after from_s",
        ),
        ({"surprise": 1}, "surprise: is not a known field"),
    ],
)
def test_what_is_wrong_is_refused_with_its_path(change: dict[str, Any], problem: str) -> None:
    """Before anything is played."""
    with pytest.raises(BadInput) as refused:
        read_traffic_scenario(json.dumps({**copy.deepcopy(GOOD), **change}).encode())
    assert str(refused.value).startswith(problem)
