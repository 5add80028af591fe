"""The alert rules by promtool; the dashboards and the page of metrics by what they promise."""

import importlib.util
import json
import re
import subprocess
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from fairlead.schema.metrics import METRICS
from tests.monitoring.prometheus import (
    ALERTS,
    DASHBOARDS,
    ROOT,
    metrics_in,
    panel_expressions,
    rules,
)

TESTS = ROOT / "deploy" / "prometheus" / "alerts.test.yaml"
KNOWN = {row.name for rows in METRICS.values() for row in rows} | {"up"}


def generator(name: str) -> ModuleType:
    """A script that writes a part of the documentation."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def promtool(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["promtool", *arguments], capture_output=True, text=True, check=False, timeout=60
    )


@pytest.mark.component("prometheus")
def test_every_alert_fires_when_it_should_and_not_before(tmp_path: Path) -> None:
    """As the unit tests beside the rules have it; a rule that never fires fails them."""
    done = promtool("test", "rules", str(TESTS))
    assert done.returncode == 0, done.stdout + done.stderr
    broken = tmp_path / "alerts.yaml"
    broken.write_text(ALERTS.read_text().replace("ledger_writable == 0", "ledger_writable == 2"))
    tests = tmp_path / "alerts.test.yaml"
    tests.write_text(
        TESTS.read_text().replace("../chart/fairlead/files/alerts.yaml", "alerts.yaml")
    )
    assert promtool("test", "rules", str(tests)).returncode != 0


@pytest.mark.component("prometheus")
def test_the_example_configuration_is_valid() -> None:
    """With the rules that it loads."""
    done = promtool("check", "config", str(ROOT / "deploy" / "prometheus" / "prometheus.yaml"))
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_its_test_an_action_and_a_page() -> None:
    """One that fires in the unit tests; a page of the documentation that exists."""
    tested = set(re.findall(r'alertname="(\w+)"}\', value: 1', TESTS.read_text()))
    assert {rule["alert"] for rule in rules()} == tested
    for rule in rules():
        assert rule["labels"]["severity"] in ("critical", "warning", "info"), rule["alert"]
        assert set(rule["annotations"]) == {"summary", "action", "runbook"}, rule["alert"]
        assert (ROOT / rule["annotations"]["runbook"]).is_file(), rule["alert"]


def test_alerts_and_panels_name_metrics_that_exist() -> None:
    """By the table in the code; a renamed metric would leave them silent for good."""
    asked = {rule["alert"]: rule["expr"] for rule in rules()} | panel_expressions()
    assert len(asked) > 60
    for where, expression in asked.items():
        found = metrics_in(expression)
        assert found, where
        assert found <= KNOWN, where


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_a_dashboard_is_well_formed(path: Path) -> None:
    """What Grafana needs to load it: ids, places, a source that the viewer chooses."""
    board = json.loads(path.read_text())
    assert board["uid"] == f"fairlead-{path.stem}"
    (variable,) = board["templating"]["list"]
    assert (variable["name"], variable["type"]) == ("datasource", "datasource")
    panels: list[dict[str, Any]] = board["panels"]
    assert len(panels) >= 10
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert len({(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}) == len(panels)
    for panel in panels:
        assert panel["type"] in ("timeseries", "stat"), panel["title"]
        assert panel["title"], panel["id"]
        assert panel["description"], panel["title"]
        for place in (panel, *panel["targets"]):
            assert place["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        references = [target["refId"] for target in panel["targets"]]
        assert len(set(references)) == len(references), panel["title"]


def test_every_governor_has_a_dashboard_that_is_current() -> None:
    """As the script would write it; `make docs` puts it right."""
    made = generator("make_dashboards")
    assert {path.stem for path in DASHBOARDS} == {"gpu", "cpu", "traffic"}
    for path in DASHBOARDS:
        assert path.read_text() == made.text(path.stem), "run `make docs` and commit the dashboards"


def test_the_page_of_metrics_is_current() -> None:
    """Every metric, label and alert; `make docs` puts it right."""
    made = generator("make_metrics")
    text = made.PAGE.read_text()
    assert text == made.page(), "run `make docs` and commit metrics.md"
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    for name in KNOWN - {"up"}:
        assert sum(line.startswith(f"| `{name}` |") for line in rows) == 1, name


def test_the_provisioning_names_what_is_there() -> None:
    """Both files are valid, and the source is the one that Prometheus listens as by default."""
    folder = ROOT / "deploy" / "grafana" / "provisioning"
    (provider,) = yaml.safe_load((folder / "dashboards" / "fairlead.yaml").read_text())["providers"]
    assert (provider["type"], provider["folder"]) == ("file", "Fairlead")
    (source,) = yaml.safe_load((folder / "datasources" / "prometheus.yaml").read_text())[
        "datasources"
    ]
    assert source["url"] == "http://127.0.0.1:9090"
