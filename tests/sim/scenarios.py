"""Small scenarios for the tests, written as a user would write them."""

from typing import Any

from fairlead.core.canonical import canonical
from fairlead.schema.scenario import ScenarioDocument, read_scenario

STEADY = {"kind": "constant", "millicores": 600}


def pod(name: str, *want: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """A pod of 200m to 2000m that wants 600m unless told otherwise."""
    return {
        "name": name,
        "request_millicores": 200,
        "limit_millicores": 2000,
        "want": list(want) or [STEADY],
        **fields,
    }


def scenario(*pods: dict[str, Any], **fields: Any) -> ScenarioDocument:
    """A minute on a node of two cores (1800m to hand out) unless told otherwise."""
    document = {
        "name": "test",
        "duration_s": 60,
        "node": {"millicores": 2000},
        "pods": list(pods),
        **fields,
    }
    return read_scenario(canonical(document))  # JSON is YAML, and goes through the same border


BUSY = (
    pod("web", {"kind": "sine", "low_millicores": 300, "high_millicores": 1500, "period_s": 30}),
    pod("api", {"kind": "bursty", "high_millicores": 1400, "on_s": 8, "off_s": 8}),
    pod("cron", {"kind": "spikes", "millicores": 900, "per_minute": 10}),
)
