"""The ledger, its entries and decisions in a browser that believes nothing; true and tampered."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, Route, expect

from fairlead.schema.audit import read_head
from tests.api.servers import Running, budget, node, run, serving, short_folder
from tests.web.browser import Visits, assert_accessible, assert_narrow, table

pytestmark = pytest.mark.component("chromium")

NO_ED25519 = """
const real = SubtleCrypto.prototype.importKey;
SubtleCrypto.prototype.importKey = function (format, key, algorithm, ...more) {
  if (algorithm === "Ed25519") return Promise.reject(new DOMException("no", "NotSupportedError"));
  return real.call(this, format, key, algorithm, ...more);
};
"""


@pytest.fixture(scope="module")
def lab() -> Iterator[Running]:
    with short_folder() as folder, serving(folder, resolver="enforce") as running:
        running.apply(node(devices=4), budget("team-a", 4), run("first", duration="9h"))
        running.until("running", lambda: running.status("Run", "first")["phase"] == "Running")
        number = running.ok("POST", "/v1/resolve", {"flavor": "H100", "gpus": 1})["outcome"]
        path = f"/v1/outcomes/{number}"
        running.until("applied", lambda: running.ok("GET", path)["stage"] == "applied")
        yield running


def entry(lab: Running, kind: str) -> int:
    """The newest entry of a kind."""
    return int(lab.ok("GET", f"/v1/entries?kind={kind}&limit=1")["items"][0]["seq"])


def kept(page: Page, lab: Running) -> dict[str, Any]:
    """What the browser kept of the ledger."""
    ledger = lab.ok("GET", "/v1/head")["ledger"]
    found: dict[str, Any] = json.loads(
        page.evaluate(f"localStorage.getItem('fairlead.checkpoint.{ledger}')")
    )
    return found


def put(page: Page, lab: Running, **changes: Any) -> None:
    """Let it have kept another checkpoint."""
    now = kept(page, lab)
    told = json.dumps({**now, "head": {**now["head"], **changes}})
    name = f"fairlead.checkpoint.{now['head']['ledger']}"
    page.evaluate("([name, told]) => localStorage.setItem(name, told)", [name, told])


def test_the_checkpoint_is_checked_and_kept(lab: Running, visits: Visits, tmp_path: Path) -> None:
    """First it is kept; later it continues what was kept; the file is one for `audit verify`."""
    page = visits.open(lab, "/ledger")
    expect(page.locator("#standing.good")).to_contain_text("keeps the checkpoint from now on")
    with page.expect_download() as saved:
        page.click("#keep")
    saved.value.save_as(tmp_path / "head.json")
    assert read_head((tmp_path / "head.json").read_bytes()).head.size > 1
    size = kept(page, lab)["head"]["size"]
    lab.apply(budget("later"))
    page.reload()
    expect(page.locator("#standing.good")).to_contain_text("it continues what you saw on")
    lab.until("kept", lambda: kept(page, lab)["head"]["size"] > size)
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        assert_accessible(page)
    page.set_viewport_size({"width": 375, "height": 800})
    assert_narrow(page)


def test_a_search_on_the_server(lab: Running, visits: Visits) -> None:
    """By an address that can be linked to; new entries come by themselves; older ones on demand."""
    page = visits.open(lab, "/ledger?kind=object.applied")
    expect(page.locator("#filter-kind")).to_have_value("object.applied")
    expect(page.locator("#entry-rows")).to_contain_text("run/first")
    assert {row[2] for row in table(page, "entry-rows")} == {"object.applied"}
    lab.apply(budget("news"), *(budget(f"team-{i}") for i in range(10)))
    expect(page.locator("#entry-rows")).to_contain_text("budget/news")
    page.fill("#filter-text", "no such words")
    page.keyboard.press("Enter")
    page.wait_for_url("**/ledger?kind=object.applied&text=no+such+words")
    expect(page.locator("#entry-rows")).to_have_text("No such entry.")
    page.get_by_role("link", name="Clear").click()
    expect(page.locator("#entry-rows tr")).to_have_count(50)
    while page.locator("#older").count():
        loaded = page.locator("#entry-rows tr").count()
        page.click("#older")
        expect(page.locator("#entry-rows tr").nth(loaded)).to_be_visible()
    seqs = [int(row[0].removeprefix("#")) for row in table(page, "entry-rows")]
    assert seqs == list(range(seqs[0], 0, -1)), "none twice, none left out"
    expect(page.locator("#more")).to_contain_text("These are all.")


def _after(page: Page, lab: Running, **changes: Any) -> None:
    page.goto("/ledger")
    expect(page.locator("#standing.good")).to_be_visible()
    put(page, lab, **changes)
    page.reload()
    expect(page.locator("#standing.alarm")).to_contain_text("cannot be trusted")


def test_a_ledger_that_stays_open_does_not_grow(lab: Running, visits: Visits) -> None:
    """It shows a page of the newest entries, and as many older ones as the reader asked for."""
    lab.apply(*(budget(f"many-{number}") for number in range(25)))
    page = visits.open(lab, "/ledger")
    rows, newest = page.locator("#entry-rows tr"), page.locator("#entry-rows tr th").first
    expect(rows).to_have_count(50)
    for shown in (50, 100):
        for number in range(3):
            lab.apply(*(budget(f"more-{shown}-{number}-{each}") for each in range(5)))
            lab.until(
                "it is seen", lambda: newest.inner_text() == f"#{lab.ok('GET', '/v1/head')['size']}"
            )
        expect(rows).to_have_count(shown)
        numbers = [
            int(text.removeprefix("#")) for text in page.locator("#entry-rows th").all_inner_texts()
        ]
        assert numbers == list(range(numbers[0], numbers[0] - shown, -1)), "none is left out"
        if shown == 50:
            page.click("#older")
            expect(rows).to_have_count(100)


def test_another_past_is_an_alarm(lab: Running, visits: Visits) -> None:
    """Rewritten, shortened, of another ledger; until the reader says that it was meant."""
    page = visits.open(lab, "/ledger")
    _after(page, lab, root="ab" * 32)
    alarm = page.locator("#standing.alarm")
    assert "does not continue the one of" in alarm.inner_text()
    assert "ab" * 32 in alarm.inner_text(), "the evidence is shown"
    assert_accessible(page)
    assert kept(page, lab)["head"]["root"] == "ab" * 32, "and it is not overwritten"
    page.get_by_role("button", name="Forget what this browser kept").click()
    expect(page.locator("#standing.good")).to_be_visible()
    _after(page, lab, size=10**9)
    assert "and had 1000000000" in alarm.inner_text()
    page.get_by_role("button", name="Forget what this browser kept").click()
    expect(page.locator("#standing.good")).to_be_visible()
    page.evaluate("localStorage.setItem('fairlead.ledger', 'another')")
    page.reload()
    expect(alarm).to_contain_text("this browser saw ledger another at this address")


@pytest.mark.parametrize("field", ["root", "signature", "size"])
def test_a_forged_checkpoint_is_an_alarm(lab: Running, visits: Visits, field: str) -> None:
    def answer(route: Route) -> None:
        reply = route.fetch()
        head = reply.json()
        value = head[field]
        forged = value - 1 if isinstance(value, int) else ("0" if value[0] != "0" else "1")
        head[field] = forged if isinstance(value, int) else forged + value[1:]
        route.fulfill(response=reply, json=head)

    page = visits.open(lab, "/")
    page.route("**/v1/head", answer)
    page.get_by_role("navigation").get_by_role("link", name="Ledger").click()
    expect(page.locator("#standing.alarm")).to_contain_text("cannot be trusted")


def test_a_browser_without_ed25519_says_so(lab: Running, visits: Visits) -> None:
    """Neither true nor false."""
    page = visits.open(lab, "/")
    page.add_init_script(NO_ED25519)
    page.goto("/ledger")
    expect(page.locator("#standing.warn")).to_contain_text("cannot check Ed25519 signatures")
    assert page.locator(".standing.good").count() == 0


def test_an_entry_is_proved(lab: Running, visits: Visits) -> None:
    """Byte by byte where all of it is the reader's to see, by its hash where not."""
    commit = entry(lab, "gpu.resolve.commit")
    page = visits.open(lab, f"/ledger/{commit}")
    expect(page.locator("#inclusion.good")).to_contain_text("This entry, byte by byte")
    expect(page.locator("#standing.good")).to_contain_text("Signed by the ledger’s own key")
    shown = json.loads(page.locator("#entry-document").inner_text())
    assert (shown["seq"], shown["kind"]) == (commit, "gpu.resolve.commit")
    assert page.get_by_role("link", name=f"Outcome #{commit}").is_visible()
    assert_accessible(page)
    page.set_viewport_size({"width": 375, "height": 800})
    assert_narrow(page)
    page.goto(f"/ledger/{entry(lab, 'gpu.fund')}")
    expect(page.locator("#inclusion.good")).to_contain_text("An entry with this hash")
    expect(page.locator("main")).to_contain_text("Part of this entry is not yours to see")


def test_a_changed_entry_is_found(lab: Running, visits: Visits) -> None:
    def answer(route: Route) -> None:
        reply = route.fetch()
        found = reply.json()
        found["entry"] = found["entry"].replace('"deficit_gpus":1', '"deficit_gpus":2')
        route.fulfill(response=reply, json=found)

    page = visits.open(lab, "/")
    page.route("**/v1/entries/*", answer)
    page.goto(f"/ledger/{entry(lab, 'gpu.resolve.commit')}")
    expect(page.locator("#inclusion.bad")).to_contain_text("not in the log")


def test_a_decision_is_replayed(lab: Running, visits: Visits) -> None:
    """The server decides again; both hashes are shown; the input is an admin's."""
    page = visits.open(lab, f"/ledger/{entry(lab, 'gpu.fund')}")
    page.get_by_role("link", name="The decision").click()
    expect(page.locator("#output-document")).to_contain_text('"funded": true')
    expect(page.locator("main")).to_contain_text("it is shown to admins")
    page.click("#replay")
    expect(page.locator(".verdict.good")).to_have_text("✓ The same, byte for byte.")
    hashes = [text for text in page.locator("dd").all_inner_texts() if len(text) == 64]
    assert len(hashes) == 3, "of the input, then and now"
    assert hashes[1] == hashes[2]
    assert_accessible(page)
    page.set_viewport_size({"width": 375, "height": 800})
    assert_narrow(page)
    token = lab.token("root", admin=True)
    page = visits.open(lab, f"/decision/ledger/{entry(lab, 'gpu.fund')}", token=token)
    expect(page.locator("#input-document")).to_contain_text("envelopes")
    page = visits.open(lab, f"/decision/ledger/{entry(lab, 'gpu.resolve.draw')}")
    expect(page.locator("#input-document")).to_contain_text("deficit_gpus")


def test_another_decision_is_shown_as_another(lab: Running, visits: Visits) -> None:
    def answer(route: Route) -> None:
        reply = route.fetch()
        told = {"verdict": "different", "detail": "gpus: recorded 1, decided 2"}
        route.fulfill(response=reply, json={**reply.json(), **told, "decided": {"gpus": 2}})

    page = visits.open(lab, f"/decision/ledger/{entry(lab, 'gpu.fund')}")
    page.route("**/replay", answer)
    page.click("#replay")
    expect(page.locator(".verdict.bad")).to_contain_text("gpus: recorded 1, decided 2")
    expect(page.locator("#replay-title ~ div pre")).to_contain_text('"gpus": 2')


def test_a_demo_raises_no_alarm_after_another_ledger(lab: Running, visits: Visits) -> None:
    """Its ledger ends with it: the tab keeps its checkpoint, and says what it is not compared with.
    What the browser kept of a real ledger at this address stays."""
    other = "window.localStorage.setItem('fairlead.ledger', 'a-former-one')"
    page = visits.open(lab, "/gpu")
    page.evaluate(other)
    page.goto("/ledger")
    expect(page.locator("#standing.alarm")).to_contain_text("saw ledger a-former-one")
    story = {"began": "", "round": 1, "programme": [], "acts": [], "next": None}
    page.route("**/healthz", lambda route: route.fulfill(json={"ok": True, "demo": True}))
    page.route("**/v1/story", lambda route: route.fulfill(json=story))
    page.reload()
    expect(page.locator("#standing.good")).to_contain_text("A demo’s ledger ends with it")
    expect(page.locator("#standing")).to_contain_text("not compared with ledger a-former-one")
    page.reload()
    expect(page.locator("#standing.good")).to_contain_text("it continues what you saw on")
    assert page.evaluate("localStorage.getItem('fairlead.ledger')") == "a-former-one"
    ledger = lab.ok("GET", "/v1/head")["ledger"]
    assert page.evaluate(f"localStorage.getItem('fairlead.checkpoint.{ledger}')") is None
