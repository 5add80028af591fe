"""Decisions that node and traffic agents reported: shown, and decided again by the server."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.api import reporting
from tests.api.servers import Running, serving, short_folder
from tests.web.browser import Visits, assert_accessible

pytestmark = pytest.mark.component("chromium")

GOLDEN = Path(__file__).parents[1] / "golden"


def recorded(kind: str) -> dict[str, Any]:
    """A decision of a kind, as its golden file has it."""
    with (GOLDEN / f"{kind}.jsonl").open() as lines:
        row = json.loads(next(lines))
    return reporting.decision(7, kind, input=row["input"], output=row["output"])


@pytest.fixture(scope="module")
def lab() -> Iterator[Running]:
    """A node agent and a traffic agent that reported; one decision was not made like this."""
    with short_folder() as folder, serving(folder) as running:
        node = {**reporting.node_moment(7), "decision": recorded("cpu.allocate")}
        group = {**reporting.group_moment(7), "decision": recorded("traffic.tick")}
        other = {**recorded("cpu.allocate"), "output": {"mode": "quiet"}}
        false = {**reporting.node_moment(7), "decision": other}
        parts = {"nodes": {"box": [node], "odd": [false]}, "groups": {"web": [group]}}
        running.ok("POST", "/v1/reports", reporting.report("agent-1", **parts))
        yield running


@pytest.mark.parametrize(
    ("path", "kind", "back"),
    [
        ("/decision/node/box/7", "cpu.allocate", "Node box"),
        ("/decision/group/web/7", "traffic.tick", "Route group web"),
    ],
)
def test_an_agents_decision_is_replayed(
    lab: Running, visits: Visits, path: str, kind: str, back: str
) -> None:
    page = visits.open(lab, path)
    expect(page.locator("main")).to_contain_text(f"{kind}, version 1")
    assert json.loads(page.locator("#input-document").inner_text()) == recorded(kind)["input"]
    assert json.loads(page.locator("#output-document").inner_text()) == recorded(kind)["output"]
    assert page.get_by_role("link", name=back).is_visible()
    page.click("#replay")
    expect(page.locator(".verdict.good")).to_have_text("✓ The same, byte for byte.")
    assert_accessible(page)


def test_a_decision_that_was_not_made_like_this(lab: Running, visits: Visits) -> None:
    page = visits.open(lab, "/decision/node/odd/7")
    expect(page.locator("#output-document")).to_contain_text("quiet")
    page.click("#replay")
    expect(page.locator(".verdict.bad")).to_contain_text("✗ Another decision")
    expect(page.locator("#replay-title ~ div pre")).to_be_visible()
