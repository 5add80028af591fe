"""An outcome step by step, and the published verifier in the browser, on true and forged files."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, Route, expect

from fairlead.core.canonical import canonical
from tests.api.servers import Running, budget, manifest, serving, short_folder
from tests.core.lottery.network import network, sign
from tests.web.browser import Visits, assert_accessible, assert_narrow, table
from verify import fairlead_verify

pytestmark = pytest.mark.component("chromium")

RUNS = {"padded": "team-b", "gang-x": "team-b", "gang-y": "team-c", "gang-z": "team-c"}


@pytest.fixture(scope="module")
def lab() -> Iterator[Running]:
    """A full node: a run with a spare, and three gangs of two owners."""
    with short_folder() as folder, serving(folder, resolver="enforce") as running:
        padding: dict[str, Any] = {"groupGPUs": 2, "sparesPerGroup": 2}
        running.apply(
            manifest("Node", "box", flavor="H100", devices=10, location={"region": "west"}),
            budget("team-b", 8),
            budget("team-c", 8),
            *(
                manifest(
                    "Run",
                    name,
                    owner=owner,
                    flavor="H100",
                    totalGPUs=2,
                    duration="9h",
                    **(padding if name == "padded" else {}),
                )
                for name, owner in RUNS.items()
            ),
        )
        for name in RUNS:
            running.until(name, lambda name=name: running.status("Run", name)["phase"] == "Running")
        yield running


@pytest.fixture(scope="module")
def outcome(lab: Running) -> int:
    """Two GPUs of the spare, two by lottery."""
    number = int(lab.ok("POST", "/v1/resolve", {"flavor": "H100", "gpus": 4})["outcome"])
    path = f"/v1/outcomes/{number}"
    lab.until("applied", lambda: lab.ok("GET", path)["stage"] == "applied")
    return number


def checks(page: Page) -> dict[str, str]:
    """Every check and whether it holds, once the verifier is done."""
    expect(page.locator(".verdict")).to_contain_text("erif")
    expect(page.locator(".check").last).to_be_visible()
    found: dict[str, str] = page.evaluate(
        "Object.fromEntries([...document.querySelectorAll('.check')]"
        ".map((each) => [each.dataset.check, each.dataset.holds]))"
    )
    return found


def test_step_by_step(lab: Running, outcome: int, visits: Visits) -> None:
    """Deficit, promise, candidates with odds, seed, draws, effects; other owners' names are not."""
    page = visits.open(lab, f"/preemption/{outcome}")
    expect(page.locator("#missing + .big")).to_have_text("4 GPUs H100")
    told = lab.ok("GET", f"/v1/outcomes/{outcome}")
    expect(page.locator("main")).to_contain_text(told["seed"])
    steps = page.locator(".step h2").all_inner_texts()
    assert steps == [
        "What was missing",
        "What was promised before",
        "Candidates for preemption",
        "Where the seed came from",
        "The draws, in order",
        "What followed",
    ]
    assert page.locator(".draw").count() == len(told["result"]["draws"]) == 1
    words = {"DropSpare": "spare dropped", "RandomPreempt": "preempted"}
    followed = [words[row["kind"]] for row in told["result"]["actions"]]
    assert [row[2] for row in table(page, "action-rows")] == followed
    candidates = page.get_by_role("group", name="Candidates, funded")
    assert candidates.locator("tbody tr").count() == len(RUNS)
    assert "1 in 4" in candidates.inner_text()
    assert "" not in candidates.get_by_role("columnheader").all_inner_texts()
    shown = page.locator("main").inner_text()
    assert "Only the operator contributed to the seed" in shown
    assert not any(name in shown for name in (*RUNS, "team-b", "team-c"))
    assert_accessible(page)
    follow = page.get_by_role("link", name=f"entry {outcome}")
    assert follow.get_attribute("href") == f"/ledger/{outcome}"


def test_an_owner_sees_its_own_names(lab: Running, outcome: int, visits: Visits) -> None:
    """And those only; its export opens them, and the verifier checks that."""
    page = visits.open(lab, f"/preemption/{outcome}", token=lab.token("carol", "team-c"))
    candidates = page.get_by_role("group", name="Candidates, funded")
    expect(candidates).to_contain_text("team-c")
    assert {"gang-y", "gang-z"} <= set(candidates.locator("tbody th").all_inner_texts())
    assert "team-b" not in page.locator("main").inner_text()
    page.click("#verify")
    assert set(checks(page).values()) == {"true"}
    expect(page.locator("[data-check=openings]")).to_contain_text("team-c is o-")


def test_the_published_verifier_runs_in_the_browser(
    lab: Running, outcome: int, visits: Visits, tmp_path: Path
) -> None:
    """Every check by name; again, it compares with what the browser kept; the file is kept, too."""
    page = visits.open(lab, f"/preemption/{outcome}", width=375, scheme="dark")
    page.click("#verify")
    found = checks(page)
    assert list(found)[:3] == ["bytes", "form", "proofs"]
    assert len(found) == 15
    assert set(found.values()) == {"true"}
    expect(page.locator(".verdict")).to_contain_text("✓ Verified in this browser")
    expect(page.locator("[data-check=kept]")).to_contain_text("had kept no checkpoint")
    assert_narrow(page)
    assert_accessible(page)
    page.click("#verify")
    expect(page.locator("[data-check=kept]")).to_contain_text("This is the log that you saw")
    with page.expect_download() as saved:
        page.click("#download")
    assert saved.value.suggested_filename == f"outcome-{outcome}.json"
    saved.value.save_as(tmp_path / "outcome.json")
    assert fairlead_verify.verify((tmp_path / "outcome.json").read_bytes()).code == 0
    assert any(each.endswith("/web/verify.mjs") for each in visits.asked)


def _flip(data: bytes) -> bytes:
    """One byte of the file."""
    at = data.index(b'"seed":"') + 8
    return data[:at] + (b"1" if data[at : at + 1] == b"0" else b"0") + data[at + 1 :]


def _another_loser(data: bytes) -> bytes:
    """The result names another run, and the file is canonical again."""
    export = json.loads(data)
    (draw,) = export["result"]["draws"]
    export["result"]["draws"][0]["owner"] = next(
        owner for owner in draw["owners"] if owner != draw["owner"]
    )
    return canonical(export) + b"\n"


@pytest.mark.parametrize(
    ("forge", "failed"),
    [(_flip, "proofs"), (_another_loser, "digests"), (lambda data: data + b" ", "bytes")],
    ids=["a byte", "another loser", "a space"],
)
def test_a_forged_outcome_is_shown_as_failed(
    lab: Running, outcome: int, visits: Visits, forge: Callable[[bytes], bytes], failed: str
) -> None:
    page = visits.open(lab, f"/preemption/{outcome}")
    expect(page.locator(".step")).to_have_count(6)

    def answer(route: Route) -> None:
        reply = route.fetch()
        route.fulfill(response=reply, body=forge(reply.body()))

    page.route("**/export?*", answer)
    page.click("#verify")
    found = checks(page)
    assert found[failed] == "false"
    assert list(found.values()).count("false") == 1
    after = list(found.values())[list(found).index(failed) + 1 :]
    assert set(after) <= {"null"}, "what was not checked is not called true"
    expect(page.locator(".verdict.bad")).to_contain_text("✗ Verification failed")


def test_an_outcome_that_waits_is_shown_as_it_goes_on(visits: Visits) -> None:
    """Open while its beacon's round is to come, voided; the next one is drawn, and all of it live.
    The verifier checks the signature of the round in the browser."""
    enforced: dict[str, Any] = {"resolver": "enforce", "beacon": network(0, 60_000)}
    with short_folder() as folder, serving(folder, **enforced) as running:
        place = manifest("Node", "box", flavor="H100", devices=4)
        only = manifest("Run", "only", owner="team-b", flavor="H100", totalGPUs=4, duration="9h")
        running.apply(place, budget("team-b"), only)
        running.until("running", lambda: running.status("Run", "only")["phase"] == "Running")
        asked = {"flavor": "H100", "gpus": 4}
        first = running.ok("POST", "/v1/resolve", asked)["outcome"]
        page = visits.open(running, f"/preemption/{first}")
        expect(page.locator("#seed ~ p")).to_have_text("Not revealed yet.")
        expect(page.locator("#draws ~ p")).to_have_text("Nothing was drawn.")
        page.click("#verify")
        expect(page.locator(".verdict.good")).to_contain_text("the outcome is open")
        running.ok("POST", f"/v1/outcomes/{first}/void", {"reason": "no value"})
        expect(page.locator("#effects ~ p")).to_contain_text("voided, and no run was preempted")
        second = running.ok("POST", "/v1/resolve", asked)["outcome"]
        page.goto(f"/preemption/{second}")
        expect(page.locator("#seed ~ dl")).to_contain_text("not recorded yet")
        round_ = running.ok("GET", f"/v1/outcomes/{second}")["beacon"]["round"]
        value = {"source": "drand", "round": round_, "value": sign(round_)}
        running.ok("POST", "/v1/beacons", value)
        expect(page.locator("#seed ~ dl")).to_contain_text(value["value"])
        expect(page.locator(".draw")).to_have_count(1)
        page.click("#verify")
        expect(page.locator(".verdict.good")).to_contain_text("Everything holds")
        signed = f"Round {round_} is signed by a network that is unknown here"
        expect(page.locator("[data-check=seed]")).to_contain_text(signed)
