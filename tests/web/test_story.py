"""The story of `make up` in a real browser: every act in order, and the page after a restart."""

from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from fairlead.api.story_acts import TITLES, Act
from fairlead.host.process import free_port
from tests.e2e.demos import PATIENCE_S, Demo
from tests.web.browser import Visits, assert_accessible, assert_narrow

pytestmark = pytest.mark.component("chromium")
WAITED_S = 45
CAPTIONS = """
() => {
  window.captions = [];
  const caption = document.querySelector("#story .caption");
  const note = () => {
    const said = caption.innerText;
    if (said && window.captions.at(-1) !== said) window.captions.push(said);
  };
  new MutationObserver(note).observe(caption, {childList: true, subtree: true});
  note();
}
"""


def test_the_story_is_seen_from_beginning_to_end(browser: Browser, tmp_path: Path) -> None:
    """Seven acts in order, each with a caption and a link; late visitors see them all; a restart
    of the server is survived."""
    visits, port = Visits(browser), free_port()
    demo = Demo(tmp_path, "--data", str(tmp_path / "state"), port=port)
    try:
        page = visits.open(demo)  # type: ignore[arg-type]  # it has a port
        expect(page.locator("#story .caption")).to_contain_text(TITLES[Act.SHARE])
        page.evaluate(CAPTIONS)
        last = page.locator("#story .caption").get_by_text(TITLES[Act.SLOW])
        last.wait_for(timeout=PATIENCE_S * 1000)
        _check_acts(demo, page.evaluate("window.captions"))
        _check_late_visitor(visits, demo)
        visits.assert_quiet()
    finally:
        demo.stop()
    expect(page.locator("#state.lost")).to_be_visible()
    again = Demo(tmp_path, "--data", str(tmp_path / "state"), port=port)
    try:
        expect(page.locator("#state")).to_have_text("Live")
        expect(page.locator("#story .headline")).to_contain_text("round 1, 1 of 7 acts")
    finally:
        again.stop()
        visits.close()


def _check_acts(demo: Demo, seen: list[str]) -> None:
    acts = [act for act in demo.acts() if act["round"] == 1]
    assert [act["act"] for act in acts] == [act.value for act in Act]
    titles = [caption.partition(".")[0] for caption in seen]
    assert titles[: len(acts)] == [act["title"] for act in acts], "a browser saw each of them"
    for act in acts:
        assert act["simulated"] is (act["act"] in (Act.CONGESTED, Act.SLOW))
        assert act["links"]
        _check_decision(demo, act["links"][0]["path"])
    # By the story's own clock: what it waits on purpose leaves the machine a quarter of the minute.
    # How long it takes on the wall is measured by bench.page where a machine is idle.
    assert acts[-1]["waited_s"] <= WAITED_S
    lottery = next(act for act in acts if act["act"] == Act.LOTTERY)
    outcome = demo.ask(f"/v1/outcomes/{lottery['links'][0]['path'].rpartition('/')[2]}")
    assert (outcome["stage"], outcome["cause"]) == ("applied", "reservation")
    assert len(outcome["tokens"]) == 3


def _check_decision(demo: Demo, path: str) -> None:
    """A caption links to what was decided; what agents decided is decided again alike."""
    _, view, kind, *rest = path.split("/")
    if view == "preemption":
        return
    if kind == "ledger":
        events = demo.ask(f"/v1/events?after={int(rest[0]) - 1}&limit=1")["items"]
        assert events[0]["kind"] in ("gpu.fund", "gpu.reserve")
        return
    number, _, at = rest[1].partition("?")
    found = demo.ask(f"/v1/{kind}s/{rest[0]}/decisions/{number}/replay?{at}")
    assert found["verdict"] == "same", found


def _check_late_visitor(visits: Visits, demo: Demo) -> None:
    """A reader who comes late sees all acts with their times, on any view and any screen."""
    page = visits.open(demo, "/gpu", width=375)  # type: ignore[arg-type]  # it has a port
    page.get_by_text("What happened so far").click()
    expect(page.locator("#story .acts li")).to_have_count(len(Act))
    expect(page.locator("#story .acts time")).to_have_count(len(Act))
    assert_narrow(page)
    assert_accessible(page)
    _fold(page)


def _fold(page: Page) -> None:
    page.get_by_role("button", name="Hide").press("Enter")
    expect(page.locator("#story-body")).to_be_hidden()
    page.reload()
    expect(page.get_by_role("button", name="Show the story")).to_be_visible()
