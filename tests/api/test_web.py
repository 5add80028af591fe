"""The web page: nothing from elsewhere, nothing to write with; and what a real browser shows."""

import re
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from fairlead.api.web import POLICY
from tests.api.browser import Page, chromium
from tests.api.servers import Running, budget, manifest, node, run, serving, short_folder

NAMES = ("page.html", "page.css", "page.js")
TEXTS = {name: (files("fairlead.api.web") / name).read_text() for name in NAMES}
PATHS = ("/", "/page.css", "/page.js")
HOSTILE = "<img src=x onerror=alert(1)>"
# The relative luminance and the contrast of two colours, as WCAG 2 defines them.
CONTRAST = """
(() => {
  const light = (text) => {
    const [r, g, b] = text.match(/[\\d.]+/g).map((x) => x / 255)
      .map((x) => x <= 0.03928 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const paper = light(getComputedStyle(document.body).backgroundColor);
  const shown = ["td", "th", "a", ".soft", ".warn", ".bad", ".good", "dt", "button", "#state"]
    .flatMap((name) => [...document.querySelectorAll(name)].slice(0, 3))
    .map((each) => [each.tagName + "." + each.className, getComputedStyle(each).color]);
  return shown.map(([name, colour]) => {
    const [low, high] = [paper, light(colour)].sort((a, b) => a - b);
    return [name, (high + 0.05) / (low + 0.05)];
  });
})()
"""


def test_nothing_comes_from_elsewhere() -> None:
    """No address but our own, nothing inline, nothing that turns text into markup; and small."""
    for name, text in TEXTS.items():
        assert not re.search(r"https?:|//[a-z]|@import|url\(", text.replace("// ", "")), name
    html, script = TEXTS["page.html"], TEXTS["page.js"]
    assert not re.search(r"\son\w+=|\sstyle=|<style|javascript:", html)
    assert re.findall(r"<script[^>]*>", html) == ['<script src="/page.js" defer>']
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacent|document\.write|eval|Function", script
    )
    assert "method:" not in script, "it only reads"
    assert sum(map(len, TEXTS.values())) < 30_000


def test_the_policy_lets_nothing_else_in(server: Running) -> None:
    """Every file with the policy; no cookie, no cache, no frame; only GET."""
    for path, name in zip(PATHS, NAMES, strict=True):
        reply = server.send("GET", path, tcp=True)
        assert (reply.status, reply.data.decode()) == (200, TEXTS[name])
        assert reply.headers["content-security-policy"] == POLICY
        assert reply.headers["x-content-type-options"] == "nosniff"
        assert reply.headers["referrer-policy"] == "no-referrer"
        assert "set-cookie" not in reply.headers
        assert server.send("POST", path, tcp=True).status == 405
    rules = dict(rule.split(" ", 1) for rule in POLICY.split("; "))
    assert rules["default-src"] == rules["frame-ancestors"] == rules["form-action"] == "'none'"
    assert {rules[name] for name in ("script-src", "style-src", "connect-src")} == {"'self'"}


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


def rows(page: Page, name: str) -> list[list[str]]:
    found: Any = page.value(
        f"[...document.querySelectorAll('#{name} tr')].map(r => [...r.cells].map(c => c.innerText))"
    )
    return list(found)


def focused(page: Page) -> str:
    return str(page.value("document.activeElement.id || document.activeElement.textContent.trim()"))


@pytest.mark.component("chromium")
def test_the_page_in_a_browser(lab: Running, tmp_path: Path) -> None:
    """Budgets with bars, runs with why, leases, the head; news without a reload; by keyboard."""
    with chromium() as browser:
        page = browser.page()
        page.scheme("light")
        page.go(f"http://127.0.0.1:{lab.port}/")
        page.until("document.querySelectorAll('#budget-rows meter').length >= 3")
        page.until("document.getElementById('state').textContent === 'Live'")
        mine, odd = rows(page, "budget-rows")[::-1]
        assert [mine[1], odd[1]] == ["team-a", HOSTILE], "a name is a name, whatever is in it"
        assert page.value("document.images.length") == 0
        bars = page.value(
            "[...document.querySelectorAll('meter')].map(m => [m.value, m.max, "
            "m.getAttribute('aria-label')])"
        )
        assert [2, 4, "GPUs of team-a/main: 2 of 4 GPUs"] in bars
        shown = {row[0]: row for row in rows(page, "run-rows")}
        assert shown["first"][3] == "Running"
        assert "ConcurrencyCapExceeded" in shown["wish"][4]
        assert "envelope-concurrency of team-a/main from 4 to 11 would do" in shown["wish"][4]
        assert rows(page, "lease-rows")[0][:4] == ["first", "team-a", "box#0, box#1", "team-a/main"]
        (row,) = rows(page, "reservation-rows")
        assert (row[:2], row[3:5]) == (["monday", "later-on"], ["Pending", "NotDue"])
        assert rows(page, "outcome-rows") == [["No run was ever preempted."]]
        head = lab.ok("GET", "/v1/head")
        page.until(f"document.getElementById('head').innerText.includes('{head['root']}')")

        lab.apply(run("later", gpus=1, duration="1h"))
        page.until("document.getElementById('run-rows').innerText.includes('later')")
        page.until("document.getElementById('event-list').innerText.includes('run/later')")

        number = lab.ok("POST", "/v1/resolve", {"flavor": "H100", "gpus": 1})["outcome"]
        page.until("document.getElementById('outcome-rows').innerText.includes('applied')")
        assert rows(page, "outcome-rows")[0][:5] == [
            f"#{number}",
            "applied",
            "1 H100",
            "scope",
            "operator-trusted",
        ]

        _by_keyboard(page, lab)
        light = page.screenshot(tmp_path / "light.png")
        low = [each for each in page.value(CONTRAST) if each[1] < 4.5]
        page.scheme("dark")
        dark = page.screenshot(tmp_path / "dark.png")
        low += [each for each in page.value(CONTRAST) if each[1] < 4.5]
        assert low == [], "text that is hard to read"
        assert light != dark
        assert len(light) > 20_000, "an empty page is small"
        assert page.complaints == []
        asked = {each.partition("?")[0] for each in page.asked if not each.startswith("data:")}
        assert asked == {
            f"http://127.0.0.1:{lab.port}{path}"
            for path in (
                *PATHS,
                "/v1/budgets",
                "/v1/objects/Run",
                "/v1/leases",
                "/v1/head",
                "/v1/objects/Reservation",
                "/v1/outcomes",
                "/v1/watch",
            )
        }


def _by_keyboard(page: Page, lab: Running) -> None:
    """Skip link first, then every section; Enter on Pause holds the events back."""
    page.value("document.activeElement.blur(); window.scrollTo(0, 0)")
    order = []
    for _ in range(12):
        page.key("Tab")
        order.append(focused(page))
    assert order[0] == "Skip to the budgets"
    assert order[1:7] == ["Budgets", "Runs", "Leases", "Reservations", "Events", "Ledger"]
    while focused(page) != "pause":
        page.key("Tab")
        order.append(focused(page))
        assert len(order) < 40, order
    assert page.value("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.key("Enter")
    assert page.value("document.activeElement.getAttribute('aria-pressed')") == "true"
    before = page.value("document.getElementById('event-list').firstChild.value")
    lab.apply(run("held", gpus=1, duration="1h"))
    page.until("document.getElementById('run-rows').innerText.includes('held')")
    assert page.value("document.getElementById('event-list').firstChild.value") == before
    page.key("Enter")
    page.until("document.getElementById('event-list').innerText.includes('run/held')")


@pytest.mark.component("chromium")
def test_the_page_says_when_the_server_is_gone() -> None:
    """It does not pretend: what it shows is old, and it says so."""
    with chromium() as browser, short_folder() as folder:
        page = browser.page()
        with serving(folder) as running:
            page.go(f"http://127.0.0.1:{running.port}/")
            page.until("document.getElementById('state').textContent === 'Live'")
            page.until("document.body.innerText.includes('No runs yet: fairlead submit')")
        page.until("document.getElementById('state').classList.contains('lost')")
