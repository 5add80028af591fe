"""CPU and traffic on the page: what agents report, over time, and each decision that is kept."""

import re
import time
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from fairlead.api import fleet_history
from fairlead.schema.reports import GroupMoment, NodeMoment
from tests.api.reporting import group_moment, node_moment, pod, report
from tests.api.servers import Running, node, serving, short_folder
from tests.web.browser import Visits, assert_accessible, assert_narrow, table
from tests.web.fleet_world import group_moments, node_moments, report_of

pytestmark = pytest.mark.component("chromium")
HIDE = """(hidden) => {
    Object.defineProperty(document, "hidden", {configurable: true, get: () => hidden});
    document.dispatchEvent(new Event("visibilitychange"));
}"""
HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def nodes() -> list[NodeMoment]:
    return node_moments()


@pytest.fixture(scope="module")
def groups() -> list[GroupMoment]:
    return group_moments("all-isolated")


@pytest.fixture
def fleet(nodes: list[NodeMoment], groups: list[GroupMoment]) -> Iterator[Running]:
    """A node that became overloaded, and a service whose backends were all ejected for a while."""
    with short_folder() as folder, serving(folder) as server:
        server.apply(node("gpu-1"))
        push(server, report_of("gpu-1", nodes=("gpu-1", 5_000, nodes)))
        push(server, report_of("gpu-1", groups=("web", 1_000, groups)))
        yield server


def push(server: Running, document: dict[str, Any]) -> None:
    server.ok("POST", "/v1/reports", document)


def scrub(page: Page, key: str) -> None:
    page.locator("#moment").focus()
    page.keyboard.press(key)


def test_nodes_over_time_and_each_decision(
    fleet: Running, visits: Visits, nodes: list[NodeMoment]
) -> None:
    """From the list to a node, to a moment in its past, to an address that others can open."""
    page = visits.open(fleet, "/cpu")
    expect(page.locator("#cpu-summary")).to_contain_text("1 node, 1 short of CPU")
    ((name, mode, *_, gpus, heard),) = table(page, "node-rows")
    assert (name, mode, gpus, heard) == ("gpu-1", "overloaded", "8 H100", "live")
    drawn = page.locator("#node-rows").get_by_role("img", name="Need of gpu-1 in the last 2 min")
    expect(drawn).to_be_visible()
    assert_accessible(page)
    page.get_by_role("link", name="gpu-1").click()
    expect(page.locator("h1")).to_have_text("gpu-1")
    newest = nodes[-1].state
    expect(page.locator("#pod-rows tr")).to_have_count(len(newest.pods))
    rows = {row[0]: row for row in table(page, "pod-rows")}
    assert rows.keys() == {pod.pod for pod in newest.pods}
    assert "the need follows its demand" in rows["encode"][-1]
    for chart in ("CPU of gpu-1, cores", "Throttled periods of the most", "Shadow price"):
        expect(page.get_by_role("img", name=chart)).to_be_visible()
    drawn = page.get_by_role("img", name="CPU of gpu-1, cores")
    read_at = page.locator("figure", has=drawn).locator(".keys .soft")
    expect(read_at).to_be_empty()
    drawn.hover(position={"x": 120, "y": 40})
    expect(read_at).to_contain_text("at ")
    drawn.click(position={"x": 60, "y": 40})
    expect(page.locator("#decision-summary")).to_contain_text("uncongested")
    expect(page).to_have_url(re.compile(r"[?&]at=\d+"))
    scrub(page, "Home")
    expect(page.locator("#decision-summary")).to_contain_text("uncongested")
    expect(page.locator("#pod-rows tr")).to_have_count(len(nodes[0].state.pods))
    first = nodes[0].decision
    assert first is not None
    link = page.get_by_role("link", name=f"Decision {first.number}:")
    expect(link).to_have_attribute(
        "href", re.compile(f"^/decision/node/gpu-1/{first.number}\\?agent=gpu-1&at=[0-9]+$")
    )
    scrub(page, "ArrowRight")
    expect(page.locator("output.moment")).to_contain_text("decision 2")
    again = visits.open(fleet, page.url.partition(str(fleet.port))[2])
    expect(again.locator("output.moment")).to_contain_text("decision 2")
    again.locator("#pod").select_option("search")
    expect(again.get_by_role("img", name="CPU of search, cores")).to_be_visible()
    again.reload()  # the address has the pod
    expect(again.get_by_role("img", name="CPU of search, cores")).to_be_visible()
    expect(again.locator("output.moment")).to_contain_text("decision 2")
    again.get_by_role("button", name="Newest").click()
    expect(again.locator("#decision-summary")).to_contain_text("overloaded")
    assert_accessible(again)


def test_a_route_group_over_time_and_each_decision(
    fleet: Running, visits: Visits, groups: list[GroupMoment]
) -> None:
    """Slots, pressure by term, admission; a moment in which every backend was ejected."""
    page = visits.open(fleet, "/traffic")
    expect(page.locator("#group-rows")).to_contain_text("4 of 4")
    drawn = page.locator("#group-rows").get_by_role("img", name="p95 of web in the last")
    expect(drawn).to_be_visible()
    page.get_by_role("link", name="web").click()
    charts = ("Slots by backend", "Latency p95, ms", "Errors, %", "Requests per second")
    for chart in charts:
        expect(page.get_by_role("img", name=chart)).to_be_visible()
    page.locator("#term").select_option("latency")
    expect(page.get_by_role("img", name="Pressure by backend: latency")).to_be_visible()
    place = next(i for i, each in enumerate(groups) if "all_isolated" in each.state.reasons)
    page.locator("#moment").fill(str(place))
    expect(page.locator("#decision-summary")).to_contain_text("every backend is ejected")
    expect(page.locator("#decision-summary")).to_contain_text("Admission hard")
    expect(page.locator("#backend-rows .bad")).to_have_count(4)
    number = groups[place].decision
    assert number is not None
    page.set_viewport_size({"width": 375, "height": 800})
    assert_narrow(page)
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        assert_accessible(page)
    page.get_by_role("link", name=f"Decision {number.number}:").click()
    expect(page.locator("h1")).to_have_text(f"Decision web #{number.number}")
    page.get_by_role("button", name="Replay").click()
    expect(page.locator(".verdict")).to_have_text("✓ The same, byte for byte.")
    assert_narrow(page)
    assert_accessible(page)
    page.go_back()
    expect(page.locator("#decision-summary")).to_contain_text("every backend is ejected")
    expect(page.get_by_role("img", name="Pressure by backend: latency")).to_be_visible()


@pytest.mark.parametrize("view", ["/cpu", "/cpu/gpu-1", "/traffic", "/traffic/web"])
def test_reports_are_seen_as_they_come(fleet: Running, visits: Visits, view: str) -> None:
    """By events: nothing is asked on a timer, and a list is not read again."""
    page = visits.open(fleet, view)
    expect(page.locator("tbody tr:visible").first).to_be_visible()
    for timer in range(page.evaluate("setInterval(() => {}, 1e6)") + 1):
        page.evaluate("(timer) => clearInterval(timer)", timer)
    asked = len(visits.asked)
    if view.startswith("/cpu"):
        later = node_moment(9, time_ms=int(time.time() * 1000), need_millicores=12_345)
        push(fleet, {**report("gpu-1", nodes={"gpu-1": [later]})})
        expect(page.locator("main")).to_contain_text("12.35")
    else:
        state = {"reasons": ["retry_storm"], "mode": "soft"}
        later = group_moment(9, time_ms=int(time.time() * 1000), **state)
        push(fleet, {**report("gpu-1", groups={"web": [later]})})
        expect(page.locator("main")).to_contain_text("clients retry too often")
    if view.count("/") == 1:
        assert visits.asked[asked:] == []


def test_a_tab_that_is_not_seen_holds_no_connection(fleet: Running, visits: Visits) -> None:
    """A browser has six for a server: the seventh tab would never load. Seen again, it goes on."""
    page = visits.open(fleet, "/cpu")
    expect(page.locator("#state")).to_have_text("Live")
    streams = fleet.service.streams
    fleet.until("events and reports", lambda: streams.open == 2)
    page.evaluate(HIDE, True)
    fleet.until("none", lambda: streams.open == 0)
    fleet.apply(node("gpu-9"))
    push(fleet, report("late", nodes={"late": [node_moment(1)]}))
    page.evaluate(HIDE, False)
    expect(page.locator("#node-rows")).to_contain_text("late")
    expect(page.locator("#cpu-summary")).to_contain_text("1 node with GPUs")
    fleet.until("both again", lambda: streams.open == 2)


def test_news_silence_and_odd_names(
    fleet: Running, visits: Visits, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A report is seen without a reload; where none comes, it says since when; a name is a name."""
    page = visits.open(fleet, "/cpu")
    expect(page.locator("#node-rows tr")).to_have_count(1)
    moment = node_moment(1, pods=[pod(HOSTILE)])
    push(fleet, report(HOSTILE, nodes={HOSTILE: [moment]}))
    expect(page.locator("#node-rows tr")).to_have_count(2)
    page.get_by_role("link", name=HOSTILE).click()
    expect(page.locator("#pod-rows")).to_contain_text(HOSTILE)
    assert page.locator("main img:not(svg)").count() == 0
    monkeypatch.setattr(fleet_history, "STALE_MS", 100)
    monkeypatch.setattr(fleet_history, "STALE_PERIODS", 0)
    expect(page.locator("dl")).to_contain_text("stale since")
    page.get_by_role("link", name="CPU", exact=True).click()
    expect(page.locator("#cpu-summary")).to_contain_text("2 stale")
    page.evaluate("(() => { const now = Date.now; Date.now = () => now() + 3_600_000; })()")
    expect(page.locator("#node-rows")).to_contain_text("(1 h)")
    page.set_viewport_size({"width": 375, "height": 800})
    assert_narrow(page)
    page.goto("/cpu/gpu-1")
    why = page.locator("#pod-rows td[data-column=Why]").first
    expect(why).to_be_visible()
    assert why.evaluate("(cell) => cell.scrollWidth <= cell.clientWidth"), "nothing is cut off"


@pytest.mark.parametrize("view", ["/cpu/n1?agent=other", "/traffic/web?agent=other"])
def test_reports_of_another_agent_do_not_ask_for_one_that_is_not_there(
    fleet: Running, browser: Browser, view: str
) -> None:
    """Each would be an error in the console; the agent's own report opens the view."""
    visits = Visits(browser)  # its console tells of the 404
    push(fleet, report("gpu-1", nodes={"n1": [node_moment(1)]}))
    page = visits.open(fleet, view)
    expect(page.locator("#not-found")).to_contain_text("of agent other")
    expect(page.locator("#state")).to_have_text("Live")
    asked = len(visits.asked)
    page.evaluate("""() => {
        window.heard = 0;
        const source = new EventSource("/v1/reports");
        source.onmessage = (message) => {
            window.heard += JSON.parse(message.data).agent === "gpu-1";
        };
    }""")
    for later in range(3):
        heard = page.evaluate("window.heard")
        at = int(time.time() * 1000)
        nodes = {"n1": [node_moment(9 + later, time_ms=at)]}
        groups = {"web": [group_moment(9 + later, time_ms=at)]}
        push(fleet, report("gpu-1", nodes=nodes, groups=groups))
        page.wait_for_function("(before) => window.heard > before", arg=heard)
    assert [url for url in visits.asked[asked:] if "agent=other" in url] == []
    parts: dict[str, Any] = {"nodes": {"n1": [node_moment(1)]}}
    if view.startswith("/traffic"):
        parts = {"groups": {"web": [group_moment(1)]}}
    push(fleet, report("other", **parts))
    expect(page.locator("#not-found")).to_have_count(0)
    visits.close()


def test_one_peak_flattens_no_chart(visits: Visits) -> None:
    """The axis ends above the usual values, at a round number; the peak is marked with its own."""
    now, usual = int(time.time() * 1000), [1.4, 1.5, 1.6]
    with short_folder() as folder, serving(folder) as server:
        moments = [
            group_moment(n, now - (100 - n) * 1_000, conductance=10.0 if n == 60 else usual[n % 3])
            for n in range(100)
        ]
        # A tick that changed something is reported at once: no rate of 1000 a second.
        moments.append(group_moment(100, now - 999))
        push(server, report("web-1", groups={"web": moments}))
        page = visits.open(server, "/traffic/web")
        figure = page.locator("figure", has=page.get_by_text("Conductance", exact=True))
        expect(figure.get_by_role("img", name="Conductance, peak 10")).to_be_visible()
        marks = figure.locator(".mark").all_text_contents()
        assert marks[:6] == ["0", "0.5", "1", "1.5", "2", "▲ 10"]
        slots = page.locator("figure", has=page.get_by_text("Slots by backend", exact=True))
        assert slots.locator(".mark").all_text_contents()[:4] == ["0", "50", "100", "150"]
        expect(slots.locator(".peak")).to_have_count(0)
        rates = page.locator("figure", has=page.get_by_text("Requests per second", exact=True))
        expect(rates.locator(".keys")).to_contain_text("admitted: 2 ")
        expect(rates.locator(".peak")).to_have_count(0)


@pytest.mark.parametrize(("view", "rows"), [("/cpu", "node-rows"), ("/traffic", "group-rows")])
def test_a_long_list_begins_with_the_worst(visits: Visits, view: str, rows: str) -> None:
    """Fifty rows, a filter by name and a button for all, in the address; what is wrong comes first,
    whatever its name."""
    with short_folder() as folder, serving(folder) as server:
        for n in range(60):
            bad, stuck = n == 58, n == 59
            problems = ["web: its limit is read-only"] if stuck else []
            node = node_moment(1, mode="overloaded" if bad else "uncongested", problems=problems)
            fault = "the proxy is away" if stuck else ""
            group = group_moment(1, mode="hard" if bad else "normal", fault=fault)
            name = f"m-{n:02}"
            push(server, report(name, nodes={name: [node]}, groups={name: [group]}))
        page = visits.open(server, view)
        shown = page.locator(f"#{rows} tr")
        expect(shown).to_have_count(50)
        expect(shown.nth(0)).to_contain_text("m-58")
        expect(shown.nth(1)).to_contain_text("m-59")
        expect(page.locator("main")).to_contain_text("50 of 60")
        page.get_by_role("button", name="All 60").click()
        expect(shown).to_have_count(60)
        expect(page).to_have_url(re.compile(r"\?show=all$"))
        page.get_by_label("Filter").fill("M-5")
        expect(shown).to_have_count(10)
        expect(page).to_have_url(re.compile("text=M-5"))
        page.reload()
        expect(shown).to_have_count(10)
        assert_accessible(page)
        page.get_by_label("Filter").fill("nothing")
        expect(page.locator(f"#{rows}")).to_contain_text("matches.")


def test_a_list_draws_what_comes(visits: Visits) -> None:
    """The past of a row comes with the first answer; each report adds a point."""
    now = int(time.time() * 1000)
    with short_folder() as folder, serving(folder) as server:
        past = [node_moment(n, now - (10 - n) * 1_000) for n in range(1, 3)]
        push(server, report("n1", nodes={"n1": past}))
        page = visits.open(server, "/cpu")
        drawn = page.locator("#node-rows").get_by_role("img")
        expect(drawn.last).to_have_attribute("aria-label", re.compile("2.4 to 2.4 cores"))
        push(server, report("n1", nodes={"n1": [node_moment(3, now, need_millicores=3_600)]}))
        expect(drawn.last).to_have_attribute("aria-label", re.compile("2.4 to 3.6 cores"))
        assert server.ok("GET", "/v1/nodes")[0]["cpu"]["recent"] == []
