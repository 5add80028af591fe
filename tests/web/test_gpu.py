"""The view of the GPU governor on a real server: devices, leases over time, budgets, runs."""

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from tests.api.servers import Running, budget, manifest, node, run, serving, short_folder
from tests.web.browser import Visits, assert_accessible, assert_narrow, table

pytestmark = pytest.mark.component("chromium")

FUNDING = {"allowBorrow": True, "sponsors": ["lender"]}
LENDING = {"allow": True, "to": ["team-a"]}


@pytest.fixture(scope="module")
def lab() -> Iterator[Running]:
    """A borrowed lease, a refused run, one with a reservation, one that has ended, a cordon."""
    with short_folder() as folder, serving(folder, resolver="dry-run") as running:
        running.apply(
            node(devices=4),
            manifest("Node", "spare", flavor="H100", devices=2, cordoned=True),
            budget("team-a", 2, maxGPUHours=100, recurrence="monthly", sharing="none"),
            budget("lender", 2, lending=LENDING, sharing="none"),
            run("done", gpus=1, command=["true"]),
        )
        running.ended("done")
        running.apply(
            run("first", gpus=3, duration="1h", funding=FUNDING),
            run("wish", gpus=9),
            run("booked", gpus=1),
            manifest("Reservation", "monday", run="booked", earliestStart="2999-01-01T00:00:00Z"),
        )
        running.until("running", lambda: running.status("Run", "first")["phase"] == "Running")
        running.until("refused", lambda: running.status("Run", "wish")["refusal"])
        yield running


def test_devices_leases_and_debts_are_drawn(lab: Running, visits: Visits) -> None:
    """Each device with its owner's letters and a link to its run; free ones too; then news."""
    page = visits.open(lab, "/gpu")
    expect(page.locator("#state")).to_have_text("Live")
    expect(page.get_by_role("button", name="Next nodes")).to_be_hidden()
    blocks = page.locator(".block")
    expect(blocks).to_have_count(4)
    assert [block.get_attribute("aria-label") for block in blocks.all()] == [
        "box, devices 0 to 1: run first of team-a",
        "box, device 2: run first of team-a, borrowed",
        "box, device 3: idle",
        "spare, devices 0 to 1: cordoned",
    ]
    assert blocks.first.get_attribute("href") == "/runs/first"
    assert "TE" in page.locator(".legend .swatch").all_inner_texts(), "letters, not only colours"
    expect(page.get_by_role("link", name=re.compile("^Run first of team-a on box"))).to_have_count(
        2
    )
    expect(page.locator(".gantt-now")).to_have_count(2)
    expect(page.locator("#budget-rows .burn svg")).to_have_count(2)
    expect(page.locator("svg.debts")).to_be_visible()
    (debt,) = table(page, "owes-rows")
    assert debt[2] == "1"
    (waiting,) = table(page, "queue-rows")
    assert waiting[:2] == ["1", "wish"]
    assert "too many GPUs at once; it would be funded if envelope" in waiting[4]
    (planned,) = table(page, "reservation-rows")
    assert (planned[:2], planned[3]) == (["monday", "booked"], "Pending")
    lab.apply(node("later", 1))
    expect(page.locator(".nodes")).to_contain_text("later")
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        assert_accessible(page)


FOCUS = "document.activeElement.getAttribute('href')"


@pytest.mark.parametrize("part", [".gantt a", "a.block", "#run-rows a", "#queue-rows a"])
def test_the_focus_stays_where_it_is(lab: Running, visits: Visits, part: str) -> None:
    """A keyboard has no other place. What is drawn anew around it, and again, does not take it."""
    page = visits.open(lab, "/gpu")
    expect(page.locator(part).first).to_be_visible()
    page.locator(part).first.focus()
    wanted = page.evaluate(FOCUS)
    assert wanted.startswith("/runs/")
    for turn in ("once", "twice"):
        new = f"focus-{re.sub('[^a-z]', '', part)}-{turn}"
        drawn = page.evaluate_handle("document.querySelector('.gantt-axis')")
        lab.apply(node(new, 1), run(new, gpus=9))
        expect(page.locator("#run-rows")).to_contain_text(new)
        expect(page.locator(".nodes")).to_contain_text(new)
        page.wait_for_function("(drawn) => !drawn.isConnected", arg=drawn)
        assert page.evaluate(FOCUS) == wanted, turn


def test_the_range_of_the_timeline(lab: Running, visits: Visits) -> None:
    """It fits what there is; another range is in the address."""
    page = visits.open(lab, "/gpu", width=375)
    fitting = page.get_by_role("button", name="What there is")
    expect(fitting).to_have_attribute("aria-pressed", "true")
    page.get_by_role("button", name="± 1 d").click()
    expect(page.get_by_role("button", name="± 1 d")).to_have_attribute("aria-pressed", "true")
    expect(page).to_have_url(re.compile(r"/gpu\?range=1d$"))
    assert_narrow(page)
    bar = page.locator("#budget-rows td[data-column='GPU-hours used and held']:has(meter)").first
    words, meter = bar.locator("span").bounding_box(), bar.locator("meter").bounding_box()
    assert words is not None
    assert meter is not None
    assert words["y"] - meter["y"] - meter["height"] < 8, "words stay with their bar"


def test_runs_are_filtered_by_the_address(lab: Running, visits: Visits) -> None:
    """Finished runs are folded; a phase and a text are in the address, which opens the same."""
    page = visits.open(lab, "/gpu")
    rows = page.locator("#run-rows")
    expect(rows).to_contain_text("wish")
    expect(rows).not_to_contain_text("done")
    expect(page.locator("main")).to_contain_text("1 finished run is folded")
    page.get_by_role("button", name="Completed 1").click()
    expect(rows).to_contain_text("done")
    expect(page).to_have_url(re.compile(r"\?phase=Completed$"))
    page.go_back()
    expect(page.locator("#run-rows")).to_contain_text("wish")
    page.goto("/gpu?text=WIS")
    expect(page.locator("#run-rows tr")).to_have_count(1)
    expect(page.get_by_label("Filter")).to_have_value("WIS")
    page.get_by_label("Filter").fill("nothing-at-all")
    expect(page.locator("#run-rows")).to_have_text("No run matches.")
    expect(page).to_have_url(re.compile(r"\?text=nothing-at-all$"))


def test_many_nodes_are_tiles_with_a_filter_and_pages(visits: Visits) -> None:
    """The server filters and pages; the address has both; a page of them is no tall column, and
    long names do not widen a phone's page."""
    long = f"owner-with-a-{'very-' * 8}long-name"
    run_name = f"run-with-a-{'very-' * 8}long-name"
    with short_folder() as folder, serving(folder) as running:
        running.apply(*(node(f"gpu-{number:03}") for number in range(60)), budget(long, 4))
        running.apply(run(run_name, long, 3, duration="1h"))
        running.until("runs", lambda: running.status("Run", run_name)["phase"] == "Running")
        page = visits.open(running, "/gpu")
        tiles = page.locator(".nodes .node")
        expect(tiles).to_have_count(48)
        expect(page.locator("main")).to_contain_text("48 of 60 nodes")
        assert page.locator(".nodes").evaluate("(list) => list.offsetHeight") < 1_000
        assert page.locator(".gantt").evaluate("(drawn) => drawn.offsetHeight") < 1_000
        page.get_by_role("button", name="Next nodes").click()
        expect(tiles).to_have_count(12)
        expect(page.locator(".gantt-name", has_text="gpu-048")).to_be_visible()
        expect(page).to_have_url(re.compile(r"/gpu\?after=gpu-047$"))
        page.get_by_label("Nodes", exact=True).fill("U-00")
        expect(tiles).to_have_count(10)
        expect(page).to_have_url(re.compile(r"/gpu\?node=U-00$"))
        page.reload()
        expect(tiles).to_have_count(10)
        expect(page.get_by_label("Nodes", exact=True)).to_have_value("U-00")
        page.get_by_role("button", name="Running 1").click()
        expect(page).to_have_url(re.compile(r"/gpu\?node=U-00&phase=Running$"))
        assert_accessible(page)
        for path in ("/gpu", f"/runs/{run_name}", "/ledger", "/"):
            phone = visits.open(running, path, width=390)
            expect(phone.locator("main")).to_contain_text(run_name)
            assert_narrow(phone)
        page.goto("/gpu")
        page.get_by_role("link", name="gpu-001", exact=True).click()
        expect(page.locator("h1")).to_have_text("gpu-001")


def test_many_runs_are_shown_by_the_page(visits: Visits) -> None:
    """With 2 000 runs the browser never loads all of them: what it gets and paints is bounded.

    How soon it paints is measured on a quiet machine, with 10 000 runs: `bench.page`.
    """
    with short_folder() as folder, serving(folder, quota=None) as running:
        running.apply(node(devices=4), budget("team-a", 4))
        many = [run(f"run-{number:04}", gpus=4, duration="1h") for number in range(2_000)]
        for first in range(0, len(many), 1_000):
            running.apply(*many[first : first + 1_000])
        running.until("queued", lambda: running.ok("GET", "/v1/queue?limit=1")["total"] >= 1_999)
        page = visits.open(running, "/gpu")
        expect(page.locator("#run-rows tr")).to_have_count(50)
        expect(page.locator("main")).to_contain_text("50 runs of 2,000")
        bodies = page.evaluate(
            "performance.getEntriesByType('resource').filter(e => e.name.includes('/v1/'))"
            ".map(e => e.encodedBodySize)"
        )
        assert sum(bodies[:12]) < 400_000
        page.get_by_role("button", name="Older").click()
        expect(page.locator("#run-rows tr").first).to_contain_text("run-1949")
        assert "/v1/objects/Run" not in "".join(visits.asked)
