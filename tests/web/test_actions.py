"""Signing in and acting from the page, in a real browser on a real server."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from fairlead.api.browser_sessions import AGE_S, Sessions
from tests.api.servers import Running, budget, node, run, serving, short_folder
from tests.web.browser import Visits, assert_accessible, assert_narrow
from tests.web.fleet_world import group_moments, node_moments, report_of

pytestmark = pytest.mark.component("chromium")
ISO = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d")


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with short_folder() as folder, serving(folder, resolver="enforce") as running:
        running.apply(node(devices=8), budget("team-a", 6, maxGPUHours=100), budget("team-b", 4))
        yield running


@pytest.fixture
def lab(server: Running) -> Iterator[Running]:
    """With no sessions, and all guesses left; afterwards without runs, also where a test failed."""
    Sessions.__init__(server.service.sessions)
    yield server
    for row in server.ok("GET", "/v1/objects/Run")["items"]:
        if row["status"]["phase"] not in ("Completed", "Failed"):
            server.send("POST", f"/v1/objects/Run/{row['metadata']['name']}/actions/cancel")
            server.ended(row["metadata"]["name"])


def by_token(lab: Running, visits: Visits, user: str, *owners: str, **more: Any) -> Page:
    """A page on which a user has signed in with a token."""
    page = visits.open(lab, "/signin", **more)
    page.get_by_label("Token").fill(lab.token(user, *owners))
    page.get_by_role("button", name="Sign in").click()
    expect(page.locator("#account")).to_contain_text(user)
    return page


def by_link(lab: Running, visits: Visits, **more: Any) -> Page:
    """A page on which the operator has signed in with a one-time link."""
    made = lab.ok("POST", "/v1/signin/codes")
    page = visits.open(lab, made["address"].partition(str(lab.port))[2], **more)
    page.get_by_role("button", name="Sign in with this link").click()
    expect(page.locator("#account")).to_contain_text("admin")
    return page


def expect_refusal(visits: Visits, *statuses: int) -> None:
    """The browser logs answers that are refusals; nothing else was logged."""
    wanted = tuple(f"the server responded with a status of {status}" for status in statuses)
    seen = [line for line in visits.complaints if any(text in line for text in wanted)]
    assert seen, visits.complaints
    assert visits.complaints == seen
    visits.complaints.clear()


def forgive(visits: Visits) -> None:
    """A refresh that was under way when the session ended is refused."""
    visits.complaints[:] = [line for line in visits.complaints if "status of 401" not in line]


def test_sign_in_by_token_and_out(lab: Running, visits: Visits) -> None:
    """The header says who it is; the secrets are not in the address or where scripts read cookies;
    after signing out the page is an anonymous reader's."""
    page = by_token(lab, visits, "ada", "team-a")
    expect(page).to_have_url(f"http://127.0.0.1:{lab.port}/")
    expect(page.locator("#account")).to_contain_text("team-a")
    assert page.evaluate("document.cookie") == ""
    (cookie,) = page.context.cookies()
    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
    page.reload()
    expect(page.locator("#account")).to_contain_text("ada")
    (row,) = lab.ok("GET", "/v1/sessions")
    assert (row["user"], row["how"]) == ("ada", "token")
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("status").filter(has_text="You are signed out.")).to_be_visible()
    expect(page.locator("#account")).to_have_text("Sign in")
    assert lab.ok("GET", "/v1/sessions") == []
    assert page.context.cookies() == []
    assert page.evaluate("localStorage.length") == 0
    forgive(visits)


def test_a_wrong_token_is_refused_in_words(lab: Running, visits: Visits) -> None:
    page = visits.open(lab, "/signin")
    page.get_by_label("Token").fill("flt_wrong")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_contain_text("this token is unknown or was revoked")
    expect(page.get_by_label("Token")).to_have_value("")
    expect_refusal(visits, 401)


def test_sign_in_by_link(lab: Running, visits: Visits) -> None:
    """Not before the reader says so: the link may be another's. The code leaves the address at
    once, no request has it in its address, and it works once."""
    made = lab.ok("POST", "/v1/signin/codes")
    path = made["address"].partition(str(lab.port))[2]
    page = visits.open(lab, path)
    expect(page).to_have_url(f"http://127.0.0.1:{lab.port}/signin")
    assert lab.ok("GET", "/v1/sessions") == []
    assert_accessible(page)
    page.get_by_role("button", name="Sign in with this link").click()
    expect(page.locator("#account")).to_contain_text("admin")
    assert not [address for address in visits.asked if made["code"] in address.partition("#")[0]]
    other = visits.open(lab, path)
    other.get_by_role("button", name="Sign in with this link").click()
    expect(other.get_by_role("alert")).to_contain_text("this link was used already")
    expect_refusal(visits, 401)


def test_a_session_that_expired_says_so(lab: Running, visits: Visits) -> None:
    """The next refresh says why, and the page goes on as an anonymous reader's."""
    page = by_token(lab, visits, "ada", "team-a")
    sessions = lab.service.sessions
    clock = sessions.clock
    sessions.clock = lambda: clock() + AGE_S
    said = "You were signed out: this session has ended: sign in again"
    expect(page.get_by_role("alert")).to_contain_text(said)
    expect(page.locator("#account")).to_have_text("Sign in")
    expect_refusal(visits, 401)


def test_submit_by_form(lab: Running, visits: Visits) -> None:
    """The preview names the payer; a refusal names the field; the run is the reader's."""
    page = by_token(lab, visits, "ada", "team-a")
    page.get_by_role("link", name="Submit a run").click()
    page.get_by_label("Name").fill("formed")
    expect(page.get_by_label("Owner")).to_have_value("team-a")
    page.get_by_label("Flavor").fill("H100")
    page.get_by_label("GPUs", exact=True).fill("2")
    page.get_by_label("Expected duration").fill("soon")
    page.get_by_role("button", name="Preview").click()
    expect(page.get_by_role("alert")).to_contain_text("spec.duration")
    expect(page.get_by_label("Expected duration")).to_have_attribute("aria-invalid", "true")
    page.get_by_label("Expected duration").fill("1h")
    page.get_by_role("button", name="Preview").click()
    expect(page.locator("#form .preview")).to_contain_text("run/formed would be created")
    expect(page.locator("#form .preview")).to_contain_text("team-a/main")
    expect(page.locator("#form .preview")).to_contain_text("its own")
    assert lab.send("GET", "/v1/objects/Run/formed").status == 404, "a preview changes nothing"
    assert_accessible(page)
    page.get_by_role("button", name="Submit", exact=True).click()
    expect(page).to_have_url(f"http://127.0.0.1:{lab.port}/runs/formed")
    expect(page.get_by_role("status").filter(has_text="run/formed created")).to_be_visible()
    events = lab.ok("GET", "/v1/events?limit=1000")["items"]
    (made,) = [
        row
        for row in events
        if row["kind"] == "object.applied" and row["object"]["name"] == "formed"
    ]
    assert made["author"] == "ada"
    expect_refusal(visits, 422)


def test_submit_by_yaml(lab: Running, visits: Visits) -> None:
    """What is no YAML, and what is another owner's, is refused with its place."""
    page = by_token(lab, visits, "ada", "team-a", width=375)
    page.goto("/submit?as=yaml")
    text = page.get_by_label("Manifests")
    text.fill("a: [")
    page.get_by_role("button", name="Preview").click()
    expect(page.get_by_role("alert")).to_contain_text("must be YAML")
    example = """
apiVersion: fairlead.dev/v1alpha1
kind: Run
metadata: {name: written}
spec: {owner: OWNER, flavor: H100, totalGPUs: 40, command: [sleep, "60"]}
"""
    text.fill(example.replace("OWNER", "team-b"))
    expect(page.get_by_role("button", name="Submit", exact=True)).to_have_count(0)
    page.get_by_role("button", name="Preview").click()
    expect(page.get_by_role("alert")).to_contain_text("ada may not act for owner 'team-b'")
    text.fill(example.replace("OWNER", "team-a"))
    page.get_by_role("button", name="Preview").click()
    expect(page.locator("#yaml .preview")).to_contain_text("Not funded")
    assert_narrow(page)
    page.get_by_role("button", name="Submit", exact=True).click()
    expect(page).to_have_url(f"http://127.0.0.1:{lab.port}/runs/written")
    assert lab.status("Run", "written")["phase"] == "Pending"
    expect_refusal(visits, 422, 403)


def test_submitting_needs_a_reader_that_is_signed_in(lab: Running, visits: Visits) -> None:
    page = visits.open(lab, "/submit")
    expect(page.locator("main")).to_contain_text("Sign in to submit a run.")
    expect(page.get_by_role("button", name="Submit", exact=True)).to_have_count(0)


def test_preemption_by_hand_is_previewed_and_the_admins(lab: Running, visits: Visits) -> None:
    """Odds first; the outcome is recorded with its author. A tenant has no such button."""
    lab.apply(run("held", gpus=4, duration="1h"), run("other", "team-b", gpus=4, duration="1h"))
    lab.until("held", lambda: lab.status("Run", "held")["phase"] == "Running")
    lab.until("other", lambda: lab.status("Run", "other")["phase"] == "Running")
    tenant = by_token(lab, visits, "ada", "team-a")
    tenant.goto("/preemption")
    expect(tenant.get_by_role("heading", name="Preemption")).to_be_visible()
    expect(tenant.get_by_role("button", name="Free GPUs…")).to_have_count(0)
    page = by_link(lab, visits)
    page.goto("/preemption")
    page.get_by_role("button", name="Free GPUs…").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_label("Flavor")).to_have_value("H100")
    dialog.get_by_label("GPUs to free").fill("8")
    dialog.get_by_role("button", name="Preview").click()
    expect(dialog.get_by_role("table")).to_contain_text("is preempted")
    expect(dialog.get_by_role("table")).not_to_contain_text("100 %")
    dialog.get_by_label("GPUs to free").fill("4")
    dialog.get_by_role("button", name="Preview").click()
    expect(dialog.get_by_role("table")).to_contain_text("50 % (first draw: 1 in 2)")
    assert lab.ok("GET", "/v1/outcomes")["items"] == [], "a preview draws nothing"
    assert_accessible(page)
    dialog.get_by_label("Flavor").fill("A100")
    expect(dialog.get_by_role("table")).to_have_count(0)
    dialog.get_by_label("Flavor").fill("H100")
    dialog.get_by_role("button", name="Preempt runs").click()
    expect(page.get_by_role("status").filter(has_text="is recorded")).to_be_visible()
    (outcome,) = lab.ok("GET", "/v1/outcomes")["items"]
    events = lab.ok("GET", f"/v1/events?after={outcome['outcome']}&limit=1000")["items"]
    (case,) = [row for row in events if row["kind"] == "gpu.resolve.case"]
    assert case["author"] == lab.ok("GET", "/v1/whoami")["user"]


def test_a_budget_is_edited_with_its_difference_and_whom_it_demotes(
    lab: Running, visits: Visits
) -> None:
    """A preview with both, then the change, under the version that was read."""
    lab.apply(budget("team-c", 4), run("paid", "team-c", gpus=3, duration="1h"))
    lab.until("paid", lambda: lab.status("Run", "paid")["phase"] == "Running")
    page = by_link(lab, visits)
    page.goto("/gpu")
    page.get_by_role("group", name="Actions on team-c/main").get_by_role("button").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("Nothing is changed.")
    dialog.get_by_label("GPUs at once").fill("-1")
    dialog.get_by_label("GPUs at once").fill("2")
    dialog.get_by_role("button", name="Preview").click()
    expect(dialog.get_by_role("group", name="Changes")).to_contain_text("GPUs at once")
    assert dialog.get_by_role("group", name="Changes").locator(
        "td, tbody th"
    ).all_inner_texts() == ["GPUs at once", "4", "2"]
    expect(dialog.get_by_role("group", name="Leases that would be unfunded")).to_contain_text(
        "paid"
    )
    assert_accessible(page)
    assert lab.ok("GET", "/v1/objects/Budget/team-c")["spec"]["envelopes"][0]["concurrency"] == 4
    dialog.get_by_role("button", name="Change the budget").click()
    expect(page.get_by_role("status").filter(has_text="team-c/main is changed.")).to_be_visible()
    assert lab.ok("GET", "/v1/objects/Budget/team-c")["spec"]["envelopes"][0]["concurrency"] == 2
    lab.until("unfunded", lambda: lab.status("Run", "paid")["funded"] is False)
    page.get_by_role("group", name="Actions on team-c/main").get_by_role("button").click()
    # The dialog is there when the version has been read that it is to change.
    expect(dialog.get_by_label("GPUs at once")).to_have_value("2")
    lab.apply(budget("team-c", 3))
    dialog.get_by_label("GPUs at once").fill("1")
    dialog.get_by_role("button", name="Change the budget").click()
    expect(dialog.get_by_role("alert")).to_contain_text("is not in version")
    expect_refusal(visits, 409)


def test_a_node_is_cordoned_and_drained_by_the_operator_only(lab: Running, visits: Visits) -> None:
    tenant = by_token(lab, visits, "ada", "team-a")
    tenant.goto("/gpu")
    expect(tenant.locator("main")).to_contain_text("8 devices")
    expect(tenant.get_by_role("button", name="Cordon")).to_have_count(0)
    expect(tenant.get_by_role("button", name="Edit…")).to_have_count(0)
    page = by_link(lab, visits)
    page.goto("/gpu")
    page.get_by_role("button", name="Cordon").click()
    expect(page.get_by_role("dialog")).to_contain_text("No run is placed on it any more")
    page.get_by_role("dialog").get_by_role("button", name="Back").click()
    expect(page.get_by_role("dialog")).to_have_count(0)
    assert not lab.ok("GET", "/v1/objects/Node/box")["spec"]["cordoned"], "nothing happened"
    page.get_by_role("button", name="Cordon").click()
    page.get_by_role("button", name="Cordon the node").click()
    expect(page.get_by_role("status").filter(has_text="box is cordoned.")).to_be_visible()
    page.get_by_role("button", name="Uncordon").click()
    page.get_by_role("button", name="Uncordon the node").click()
    expect(page.get_by_role("button", name="Cordon", exact=True)).to_be_visible()
    page.get_by_role("button", name="Drain…").click()
    expect(page.get_by_role("dialog")).to_contain_text("No run would be preempted")
    page.get_by_role("button", name="Drain the node").click()
    lab.until("drained", lambda: lab.ok("GET", "/v1/objects/Node/box")["spec"]["cordoned"])
    lab.ok("POST", "/v1/objects/Node/box/actions/uncordon")


def test_an_owner_acts_on_its_run_and_others_do_not(lab: Running, visits: Visits) -> None:
    """Nominate, pause, resume and cancel, each after it was confirmed; the ledger names the reader.
    A reader of another owner, and one who is not signed in, has no buttons."""
    lab.apply(run("acted", gpus=2, command=["sleep", "600"]))
    lab.until("acted", lambda: lab.status("Run", "acted")["phase"] == "Running")
    for page in (visits.open(lab, "/runs/acted"), by_token(lab, visits, "bob", "team-b")):
        page.goto("/runs/acted")
        expect(page.locator("#why")).to_be_visible()
        expect(page.locator("main")).to_contain_text("Running")
        expect(page.get_by_role("button", name="Cancel")).to_have_count(0)
    page = by_token(lab, visits, "ada", "team-a")
    page.goto("/runs/acted")
    said = {"Nominate": "is nominated.", "Pause": "is paused.", "Resume": "goes on."}
    for name, words in said.items():
        page.get_by_role("button", name=name, exact=True).click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_role("button", name=f"{name} the run").click()
        expect(page.get_by_role("status").filter(has_text=f"acted {words}")).to_be_visible()
    assert lab.status("Run", "acted")["nominated"]
    assert_accessible(page)
    page.get_by_role("button", name="Cancel", exact=True).click()
    expect(page.get_by_role("dialog")).to_contain_text("is asked to end")
    page.get_by_role("button", name="Cancel the run").click()
    expect(page.get_by_role("button", name="Cancel", exact=True)).to_have_count(0)
    assert lab.ended("acted")["reason"] == "Cancelled"
    events = lab.ok("GET", "/v1/events?limit=1000")["items"]
    mine = [row for row in events if (row["object"] or {}).get("name") == "acted"]
    by_hand = {row["author"] for row in mine} - {"fairlead", lab.ok("GET", "/v1/whoami")["user"]}
    assert by_hand == {"ada"}


def test_a_start_is_reserved_with_the_odds_shown(lab: Running, visits: Visits) -> None:
    """Who may lose devices is said before; the reservation can be deleted on the GPU view."""
    lab.apply(
        run("first", gpus=3, duration="9h", warnBefore={"before": "3h"}),
        run("second", "team-b", gpus=4, duration="9h"),
    )
    lab.until("first", lambda: lab.status("Run", "first")["phase"] == "Running")
    lab.until("second", lambda: lab.status("Run", "second")["phase"] == "Running")
    lab.apply(run("waits", gpus=3, duration="1h"))
    page = by_token(lab, visits, "ada", "team-a")
    page.goto("/runs/waits")
    expect(page.get_by_role("button", name="Start with preemption…")).to_have_count(0)
    admin = by_link(lab, visits)
    admin.goto("/runs/waits")
    admin.get_by_role("button", name="Start with preemption…").click()
    expect(admin.get_by_role("dialog")).to_contain_text("50 % (first draw: 1 in 2)")
    page.get_by_role("button", name="Reserve…").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_role("table")).to_contain_text("50 % (first draw: 1 in 2)")
    dialog.get_by_role("button", name="Reserve", exact=True).click()
    expect(page.get_by_role("status").filter(has_text="waits is reserved for")).to_be_visible()
    assert lab.status("Run", "waits")["reservation"] == "waits"
    for path, rows in (("/", "#event-list"), ("/runs/first", "#run-event-rows")):
        page.goto(path)
        expect(page.locator(rows)).to_contain_text(re.compile("may be preempted .* at .*[0-9]:"))
        assert ISO.search(page.locator("main").inner_text()) is None, "times are the reader's own"
    page.goto("/gpu")
    actions = page.get_by_role("group", name="Actions on reservation waits")
    actions.get_by_role("button", name="Delete").click()
    page.get_by_role("button", name="Delete the reservation").click()
    lab.until("deleted", lambda: lab.send("GET", "/v1/objects/Reservation/waits").status == 404)


def test_an_admin_ejects_and_restores_a_backend(lab: Running, visits: Visits) -> None:
    """An order is an entry with its author; the page shows it, and lifts it. A tenant has no
    buttons; a node whose GPUs are given out here can be cordoned on its page."""
    lab.ok("POST", "/v1/reports", report_of("box", groups=("web", 1_000, group_moments())))
    lab.ok("POST", "/v1/reports", report_of("box", nodes=("box", 5_000, node_moments())))
    name = lab.ok("GET", "/v1/groups/web")["state"]["backends"][0]["backend"]
    tenant = by_token(lab, visits, "ada", "team-a")
    tenant.goto("/traffic/web")
    expect(tenant.locator("#backend-rows")).to_contain_text(name)
    expect(tenant.get_by_text("Eject or restore a backend")).to_be_hidden()
    page = by_link(lab, visits)
    page.goto("/traffic/web")
    page.get_by_text("Eject or restore a backend").click()
    actions = page.get_by_role("group", name=f"Actions on backend {name}")
    actions.get_by_role("button", name="Eject").click()
    expect(page.get_by_role("dialog")).to_contain_text("It gets no traffic until it is restored.")
    page.get_by_role("button", name="Eject the backend").click()
    expect(page.get_by_role("status").filter(has_text=f"{name} is to be ejected.")).to_be_visible()
    assert lab.ok("GET", "/v1/groups/web")["orders"] == {name: "isolate"}
    expect(page.locator("details")).to_contain_text("ejected by an admin")
    assert_accessible(page)
    actions.get_by_role("button", name="Restore").click()
    page.get_by_role("button", name="Restore the backend").click()
    expect(page.locator("details")).not_to_contain_text("ejected by an admin")
    for view, row in (("/", "#event-list li"), ("/ledger?kind=traffic.order", "#entry-rows tr")):
        page.goto(view)  # what was ordered is told where operators look for it
        told = page.locator(row).filter(has_text=f"backend {name} ejected")
        expect(told.get_by_role("link", name="group/web")).to_have_attribute("href", "/traffic/web")
        expect(page.locator(row).filter(has_text=f"backend {name} restored")).to_be_visible()
    assert lab.ok("GET", "/v1/groups/web")["orders"] == {}
    events = lab.ok("GET", "/v1/events?limit=1000")["items"]
    orders = [row for row in events if row["kind"] == "traffic.order"]
    assert [row["author"] for row in orders] == [lab.ok("GET", "/v1/whoami")["user"]] * 2
    page.goto("/cpu/box")
    expect(page.get_by_role("button", name="Cordon", exact=True)).to_be_visible()


def test_under_another_name_the_page_leads_to_its_own(lab: Running, visits: Visits) -> None:
    """Another user of the machine may answer as `localhost`: no token is asked for there."""
    page = visits.open(lab, "/")
    page.goto(f"http://localhost:{lab.port}/signin")
    own = f"http://127.0.0.1:{lab.port}/signin"
    expect(page.get_by_role("link", name=own)).to_have_attribute("href", own)
    expect(page.get_by_label("Token")).to_have_count(0)
    visits.asked[:] = [each for each in visits.asked if "//localhost:" not in each]


def test_an_open_page_without_input_signs_out(lab: Running, visits: Visits) -> None:
    """A page that is left open asks again and again; that is no use of it."""
    page = by_token(lab, visits, "ada", "team-a")
    page.clock.install()
    page.reload()
    expect(page.locator("#account")).to_contain_text("ada")
    page.clock.fast_forward(3_700_000)
    expect(page.get_by_role("status").filter(has_text="an hour without input")).to_be_visible()
    lab.until("signed out", lambda: lab.ok("GET", "/v1/sessions") == [])
    forgive(visits)


def test_a_run_that_does_not_end_is_killed_on_request(visits: Visits) -> None:
    """A cancelled run that ignores its signal has the rest of its grace, or is killed at once."""
    stubborn = ["sh", "-c", "trap '' TERM; echo here; while :; do sleep 1; done"]
    with short_folder() as folder, serving(folder, grace_ms=600_000) as lab:
        lab.apply(node(), budget("team-a", 6), run("stubborn", command=stubborn))
        lab.until("it runs", lambda: b"here" in lab.send("GET", "/v1/runs/stubborn/logs").data)
        page = by_token(lab, visits, "ada", "team-a")
        page.goto("/runs/stubborn")
        page.get_by_role("button", name="Cancel", exact=True).click()
        page.get_by_role("button", name="Cancel the run").click()
        page.get_by_role("button", name="Kill now").click()
        expect(page.get_by_role("dialog")).to_contain_text("killed without waiting for its grace")
        page.get_by_role("button", name="Kill the run").click()
        expect(page.get_by_role("status").filter(has_text="stubborn is killed.")).to_be_visible()
        assert lab.ended("stubborn")["reason"] == "Cancelled"


def test_a_dialog_by_keyboard(lab: Running, visits: Visits) -> None:
    """Enter opens it with the focus inside, Tab stays inside, Escape leaves all as it was and gives
    the focus back; Enter on the button that confirms acts."""
    lab.apply(run("typed", duration="1h"))
    lab.until("running", lambda: lab.status("Run", "typed")["phase"] == "Running")
    page = by_token(lab, visits, "ada", "team-a")
    page.goto("/runs/typed")
    pause = page.get_by_role("button", name="Pause")
    pause.press("Enter")
    dialog = page.get_by_role("dialog", name="Pause typed")
    expect(dialog).to_be_visible()
    inside = (
        "document.activeElement === document.body || !!document.activeElement.closest('dialog')"
    )
    for _ in range(6):
        assert page.evaluate(inside), "the page behind is out of reach"
        page.keyboard.press("Tab")
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    expect(pause).to_be_focused()
    assert not lab.status("Run", "typed")["paused"], "nothing happened"
    pause.press("Enter")
    dialog.get_by_role("button", name="Pause the run").press("Enter")
    expect(page.get_by_role("status").filter(has_text="typed is paused.")).to_be_visible()
    lab.ok("POST", "/v1/objects/Run/typed/actions/cancel")
