"""The shell and its views on a real server: live, linkable, by keyboard, readable by everybody."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from tests.api.servers import Running, budget, manifest, node, run, serving, short_folder
from tests.web.browser import Visits, assert_accessible, assert_narrow, table

pytestmark = pytest.mark.component("chromium")

HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture
def lab() -> Iterator[Running]:
    with short_folder() as folder, serving(folder, resolver="enforce") as running:
        running.apply(
            node(devices=4),
            budget("team-a", 4, maxGPUHours=100),
            manifest(
                "Budget",
                "odd",
                owner=HOSTILE,
                envelopes=[{"name": HOSTILE, "flavor": "H100", "concurrency": 2}],
            ),
            run("first", gpus=2, duration="1h"),
            run("wish", gpus=9),
            run("later-on", gpus=1),
            manifest("Reservation", "monday", run="later-on", earliestStart="2999-01-01T00:00:00Z"),
        )
        running.until("running", lambda: running.status("Run", "first")["phase"] == "Running")
        running.until("refused", lambda: running.status("Run", "wish")["refusal"])
        yield running


def test_the_views_of_the_gpu_governor(lab: Running, visits: Visits) -> None:
    """Budgets with bars, runs with why, leases; news without a reload; a name is a name."""
    page = visits.open(lab, "/gpu")
    expect(page.locator("#state")).to_have_text("Live")
    bar = page.get_by_role("meter", name="GPUs of team-a/main: 2 of 4 GPUs")
    expect(bar).to_have_attribute("value", "2")
    mine, odd = table(page, "budget-rows")[::-1]
    assert mine[1].endswith("team-a")
    assert odd[1].endswith(HOSTILE), "a name is a name, whatever is in it"
    assert page.locator("img").count() == 0
    shown = {row[0]: row for row in table(page, "run-rows")}
    assert shown["first"][3] == "Running"
    assert "too many GPUs at once" in shown["wish"][4]
    assert (
        "it would be funded if envelope team-a/main allowed 11 GPUs at once (now 4)"
        in shown["wish"][4]
    )
    leased = page.get_by_role("link", name="box, devices 0 to 1: run first of team-a")
    expect(leased).to_have_attribute("href", "/runs/first")
    (row,) = table(page, "reservation-rows")
    assert (row[:2], row[3:5]) == (["monday", "later-on"], ["Pending", "not due yet"])
    lab.apply(run("later", gpus=1, duration="1h"))
    expect(page.locator("#run-rows")).to_contain_text("later")
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        assert_accessible(page)


def test_one_view_after_the_other(lab: Running, visits: Visits) -> None:
    """Links, the browser's way back, and what happens while a view is open."""
    page = visits.open(lab, "/preemption")
    expect(page.locator("main")).to_contain_text("No run was ever preempted.")
    number = lab.ok("POST", "/v1/resolve", {"flavor": "H100", "gpus": 1})["outcome"]
    expect(page.locator("#outcome-rows")).to_contain_text("applied")
    assert table(page, "outcome-rows")[0][:5] == [
        f"#{number}",
        "applied",
        "1 H100",
        "an operator",
        "operator-trusted",
    ]
    follow(page, "Overview", "/")
    lab.apply(run("later", gpus=1, duration="1h"))
    expect(page.locator("#event-list")).to_contain_text("run/later")
    follow(page, "Ledger", "/ledger")
    expect(page.locator("#head")).to_contain_text(lab.ok("GET", "/v1/head")["ledger"])
    page.go_back()
    expect(page).to_have_title("Overview · Fairlead")


def follow(page: Page, name: str, path: str) -> None:
    page.get_by_role("navigation").get_by_role("link", name=name).click()
    page.wait_for_url(f"**{path}")
    expect(page.locator("h1")).to_have_count(1)


def test_by_keyboard(lab: Running, visits: Visits) -> None:
    """Skip link first, then every view, with a visible focus; Enter opens one."""
    page = visits.open(lab, "/gpu")
    expect(page.locator("#state")).to_have_text("Live")
    order = []
    for _ in range(8):
        page.keyboard.press("Tab")
        order.append(page.evaluate("document.activeElement.textContent.trim()"))
    wanted = ["Fairlead", "Overview", "GPU", "Preemption", "CPU", "Traffic", "Ledger"]
    assert order == ["Skip to the content", *wanted]
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.keyboard.press("Enter")
    expect(page).to_have_title("Ledger · Fairlead")
    page.locator("#filter-since").focus()
    style = "getComputedStyle(document.activeElement).outlineStyle"
    assert page.evaluate(style) == "solid", "a date, too"
    page.reload()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "view", "the skip link skips"


def test_a_view_that_comes_late_does_not_take_the_focus(lab: Running, visits: Visits) -> None:
    """Its form is there before its entries: who types in it goes on typing."""
    page = visits.open(lab, "/gpu")
    expect(page.locator("#state")).to_have_text("Live")
    page.route("**/v1/entries*", lambda _: None)  # they wait until it is taken back
    with page.expect_request("**/v1/entries*"):
        page.get_by_role("navigation").get_by_role("link", name="Ledger").press("Enter")
    page.locator("#filter-text").focus()
    page.unroute("**/v1/entries*")
    expect(page.locator("#entry-rows tr").nth(5)).to_be_visible()
    expect(page.locator("#state")).to_have_text("Live")
    assert page.evaluate("document.activeElement.id") == "filter-text"
    page.get_by_role("navigation").get_by_role("link", name="GPU").press("Enter")
    expect(page.locator("#view")).to_be_focused()


def test_nothing_moves_by_itself(lab: Running, visits: Visits) -> None:
    """No animation and no smooth scrolling, whether or not a reader asks for less motion."""
    page = visits.open(lab, "/gpu")
    expect(page.locator("#state")).to_have_text("Live")
    moving = """[...document.styleSheets].flatMap((sheet) => [...sheet.cssRules])
        .filter((rule) => /animation|transition|scroll-behavior/.test(rule.cssText)).length"""
    assert page.evaluate(moving) == 0
    assert page.evaluate("document.getAnimations().length") == 0


def test_on_a_phone(lab: Running, visits: Visits) -> None:
    """No view scrolls sideways."""
    page = visits.open(lab, width=375)
    for path in ("/", "/gpu", "/preemption", "/ledger"):
        page.goto(path)
        expect(page.locator("#state")).to_have_text("Live")
        assert_narrow(page)
    assert_accessible(page)


def test_the_page_says_when_the_server_is_gone(browser: Browser) -> None:
    """It does not pretend: what it shows is old, and it says so."""
    visits = Visits(browser)  # its console will say that nobody answers
    with short_folder() as folder:
        with serving(folder) as running:
            page = visits.open(running, "/gpu")
            expect(page.locator("#state")).to_have_text("Live")
            expect(page.locator("main")).to_contain_text("No runs yet: fairlead submit")
        expect(page.locator("#state.lost")).to_be_visible()
    visits.close()


def test_a_view_whose_code_did_not_come_is_loaded_again(lab: Running, browser: Browser) -> None:
    """It said that it tries again, and did not: the page stayed empty."""
    visits, lost = Visits(browser), []  # its console tells of what did not come
    page = visits.open(lab, "/")
    expect(page.locator("h1")).to_have_text("Overview")

    def lose_first(route: Route) -> None:
        lost.append(route.request.url)
        route.abort() if len(lost) == 1 else route.continue_()

    page.route("**/views/ledger.js", lose_first)
    page.get_by_role("link", name="Ledger").click()
    expect(page.locator("h1")).to_have_text("Ledger")
    assert len(lost) == 2
    visits.close()


def test_an_address_without_anything_says_so(lab: Running, browser: Browser) -> None:
    """No empty headings and no JSON: a person reads what is missing, and finds the way back. What
    is missing is not asked for again until something is heard of it."""
    visits = Visits(browser)  # the console tells of each 404
    page = visits.open(lab, "/no-such-view")
    expect(page.locator("h1")).to_have_text("No such view")
    expect(page.locator("#state")).to_have_text("Live")
    page.clock.install()
    page.goto("/runs/none")
    expect(page.locator("#not-found")).to_contain_text("There is no Run 'none'.")
    expect(page.get_by_role("heading", name="Funding plan")).to_be_hidden()
    expect(page.locator("#state")).to_have_text("Live")
    assert sum(url.endswith("/v1/explain/Run/none") for url in visits.asked) == 1
    asked = len(visits.asked)
    for name in ("other", "another"):
        page.clock.fast_forward(60_000)  # a view that is there asks every five seconds
        lab.apply(run(name, gpus=1, duration="1h"))
        page.evaluate("fetch('/healthz').then(reply => reply.text())")
    assert all(url.endswith("/healthz") for url in visits.asked[asked:]), visits.asked[asked:]
    lab.apply(run("none", gpus=1, duration="1h"))
    expect(page.get_by_role("heading", name="Funding plan")).to_be_visible()
    expect(page.locator("#not-found")).to_have_count(0)
    page.goto("/no-such-view")
    page.get_by_role("link", name="Go to the overview").click()
    expect(page).to_have_title("Overview · Fairlead")
    visits.close()
