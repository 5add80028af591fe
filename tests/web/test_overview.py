"""The first view: the governors at a glance, what needs attention, and the last events."""

import re
import time

import pytest
from playwright.sync_api import expect

from tests.api.reporting import node_moment, report
from tests.api.servers import budget, node, run, serving, short_folder
from tests.web.browser import Visits, assert_accessible, assert_narrow

pytestmark = pytest.mark.component("chromium")


def test_the_overview_is_live_and_each_line_is_a_link(visits: Visits) -> None:
    with short_folder() as folder, serving(folder) as lab:
        lab.apply(node(devices=4), budget("team-a", 4))
        page = visits.open(lab)
        expect(page.locator("#attention")).to_contain_text("Nothing needs attention.")
        expect(page.get_by_role("img", name="Devices: 0 used")).to_be_visible()
        expect(page.locator("#story")).to_be_empty()
        lab.apply(run("first", gpus=3, duration="1h"), run("wish", gpus=9))
        expect(
            page.get_by_role("img", name="Devices: 3 used, 0 held as spares, 1 free")
        ).to_be_visible()
        line = page.locator("#attention").get_by_role("link", name="Run wish is not funded")
        expect(line).to_be_visible()
        expect(page.locator("#event-list")).to_contain_text("run/first")
        for scheme, width in (("light", 1200), ("dark", 375)):
            page.emulate_media(color_scheme=scheme)
            page.set_viewport_size({"width": width, "height": 900})
            assert_narrow(page)
            assert_accessible(page)
        page.add_init_script("window.setInterval = () => 0")  # by events, not by a timer
        page.reload()
        expect(line).to_be_visible()
        now = node_moment(1, time_ms=int(time.time() * 1000))
        lab.ok("POST", "/v1/reports", report("n1", nodes={"n1": [now]}))
        expect(page.locator("#state")).to_have_text("Live")
        expect(page.get_by_role("img", name=re.compile("^Nodes: "))).to_be_visible()
        line.click()
        page.wait_for_url("**/runs/wish")
