"""A run's own view: why, who pays, attempts, output for those who may, events and decisions."""

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from tests.api.servers import Running, budget, node, run, serving, short_folder
from tests.web.browser import Visits, assert_accessible, assert_narrow, table

pytestmark = pytest.mark.component("chromium")

LOG = ["sh", "-c", "printf 'it \\033[31mbegan\\033[0m <b>\\n'; sleep 600"]


@pytest.fixture(scope="module")
def lab() -> Iterator[Running]:
    with short_folder() as folder, serving(folder, resolver="dry-run") as running:
        running.apply(node(devices=4), budget("team-a", 4), budget("team-b", 2, sharing="none"))
        running.apply(run("first", gpus=3, duration="1h", command=LOG), run("wide", "team-b", 9))
        running.until("running", lambda: running.status("Run", "first")["phase"] == "Running")
        running.until("refused", lambda: running.status("Run", "wide")["refusal"])
        yield running
        running.ok("POST", "/v1/objects/Run/first/actions/cancel")
        running.ended("first")


def test_why_it_runs_and_who_pays(lab: Running, visits: Visits) -> None:
    """Live: a pause shows at once. Events and decisions are linked by their numbers."""
    page = visits.open(lab, "/runs/first")
    expect(page.locator("h1")).to_have_text("first")
    expect(page.locator("main")).to_contain_text("Admitted: 3 GPUs, paid by 1 envelope")
    (attempt,) = table(page, "attempt-rows")
    assert (attempt[0], attempt[4]) == ("1", "box#0, box#1, box#2")
    assert attempt[2] == "running"
    expect(page.get_by_role("region", name="Funding plan").first).to_contain_text("team-a/main")
    expect(page.get_by_role("link", name="who pays")).to_have_attribute(
        "href", re.compile(r"^/decision/ledger/\d+$")
    )
    events = table(page, "run-event-rows")
    assert events[-1][2:4] == ["applied", "submitted"]
    places = [row for row in events if row[2] == "placement decided"]
    assert (places[0][3], places[0][5]) == ("on box", "decision")
    link = page.locator("#run-event-rows a").first
    expect(link).to_have_attribute("href", re.compile(r"^/ledger/\d+$"))
    lab.ok("POST", "/v1/objects/Run/first/actions/pause")
    expect(page.locator("main")).to_contain_text("Paused")
    lab.ok("POST", "/v1/objects/Run/first/actions/resume")
    assert_accessible(page)


def test_a_deleted_run_is_told_by_the_ledger(lab: Running, visits: Visits) -> None:
    """The server is asked for it once, and no more; another run of its name is shown again."""
    lab.apply(run("gone", gpus=9))
    lab.ok("DELETE", "/v1/objects/Run/gone")
    page = visits.open(lab, "/runs/gone")
    expect(page.locator("main")).to_contain_text("What happened to it stays in the ledger")
    asked = len(visits.asked)
    lab.apply(run("other", gpus=9))
    page.wait_for_event("request", lambda request: "/v1/entries" in request.url)
    assert "/v1/explain" not in "".join(visits.asked[asked:])
    (complaint,) = visits.complaints
    assert "404" in complaint
    visits.complaints.clear()
    lab.apply(run("gone", gpus=1, duration="1h"))
    expect(page.locator("#attempt-rows")).to_contain_text("box#3")
    for name in ("gone", "other"):
        lab.ok("POST", f"/v1/objects/Run/{name}/actions/cancel")
        lab.ended(name)


def test_why_it_waits(lab: Running, visits: Visits) -> None:
    page = visits.open(lab, "/runs/wide", width=375)
    expect(page.locator("main")).to_contain_text("ConcurrencyCapExceeded")
    expect(page.locator("main")).to_contain_text("envelope team-b/main: 0 of 2")
    expect(page.locator("main")).to_contain_text("place 1 of 1")
    expect(page.locator("main")).to_contain_text("It has not started yet.")
    assert_narrow(page)
    page.emulate_media(color_scheme="dark")
    assert_accessible(page)


def test_output_is_shown_to_users_of_its_owner(lab: Running, visits: Visits) -> None:
    """Another reader is asked to sign in, and no request is refused for it."""
    page = visits.open(lab, "/runs/first")
    output = page.locator("section", has=page.locator("#output"))
    expect(output).to_contain_text("Sign in as a user of team-a to read the output.")
    page.goto("/signin")
    page.get_by_label("Token").fill(lab.token("ann", "team-a"))
    page.get_by_role("button", name="Sign in").click()
    expect(page.locator("#account")).to_contain_text("ann")
    page.goto("/runs/first")
    expect(page.get_by_role("log", name="Output of first")).to_have_text("it began <b>\n")
    page.goto("/runs/wide")
    expect(page.locator("main")).to_contain_text("Only users of team-b read the output")
