"""The runbook knows every reason, cause and metric that an operator can meet."""

import re
from pathlib import Path

from fairlead.core.reasons import TrafficReason
from fairlead.core.traffic import Cause
from fairlead.node.traffic.reports import TrafficCollector
from tests.node.traffic.test_agent import Folder

RUNBOOK = (Path(__file__).parents[3] / "docs" / "operate" / "traffic.md").read_text()


def test_every_reason_and_cause_has_its_row() -> None:
    """What it means, and what to do."""
    rows = {row.split("|")[1].strip() for row in RUNBOOK.splitlines() if row.startswith("| `")}
    for word in (*TrafficReason, *Cause):
        assert f"`{word.value}`" in rows, word


def test_every_metric_is_explained_and_nothing_else(tmp_path: Path) -> None:
    """By its full name, as a scrape shows it."""
    agent = Folder(tmp_path).agent()
    agent.start()
    agent.tick()
    found = set()
    for family in TrafficCollector(agent).collect():
        found.add(family.name + ("_total" if family.type == "counter" else ""))
    agent.close()
    assert found == set(re.findall(r"`(fairlead_traffic_\w+)", RUNBOOK))
