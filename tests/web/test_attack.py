"""The finished page against outsiders: tenants, agents and other sites that do their worst."""

import http.server
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from urllib.parse import quote

import pytest
from playwright.sync_api import Page, expect

from fairlead.api.web import VIEWS
from tests.api.reporting import backend, decision, group_moment, node_moment, pod, report
from tests.api.servers import Running, budget, node, run, serving, short_folder
from tests.web.browser import Visits, assert_narrow

pytestmark = pytest.mark.component("chromium")
SCRIPT = "<img src=x onerror=pwned=1><script>pwned=1<"
BREAK = "\"'><svg onload=pwned=1>"
LINK = "javascript:pwned=1"
NAMES = (SCRIPT, BREAK, LINK, "constructor", "__proto__", "%2e%2e%2f", "a?b#c", "…\u202e\n")
"""Of nodes and route groups."""
ODD = (*NAMES, "../../etc/passwd", "a/b?c#d")
PAYLOAD = " ".join((f"{SCRIPT}/script>", BREAK, LINK))


@pytest.fixture(scope="module")
def lab() -> Iterator[Running]:
    """Everything that others name or write holds markup, links or names that objects have."""
    with short_folder() as folder, serving(folder, resolver="enforce") as server:
        named = {**node("constructor"), "metadata": {"name": "constructor", "labels": {"a": "b"}}}
        server.apply(named, budget("constructor", 4), budget("valueof", 4))
        script = ["sh", "-c", 'echo "$TEXT"; exec sleep 1000', PAYLOAD]
        for name, owner in (("constructor", "constructor"), ("valueof", "valueof")):
            made = run(name, owner, 1, command=script, env={"TEXT": PAYLOAD})
            made["metadata"]["labels"] = {"note": "x" * 60}
            server.apply(made)
        server.apply(run("refused", "valueof", 99))
        _report(server)
        for name in ("constructor", "valueof"):
            server.until(f"{name} runs", partial(_is, server, name, "Running"))
        yield server
        for name in ("constructor", "valueof"):
            server.ok("POST", f"/v1/objects/Run/{name}/actions/cancel")
            server.until(f"{name} has ended", partial(_is, server, name, "Failed", "Completed"))


def _is(server: Running, name: str, *phases: str) -> bool:
    return server.status("Run", name)["phase"] in phases


def _report(server: Running) -> None:
    now = int(time.time() * 1000)
    for number, name in enumerate(NAMES):
        pods = [pod(each, reasons=list(ODD), bounds=[SCRIPT]) for each in ODD]
        of_node = node_moment(number, now, pods=pods, policy=BREAK, problems=[PAYLOAD])
        of_node["decision"] = decision(number, note=PAYLOAD, input={"pods": []}, applied=False)
        rows = [backend(each, isolated=SCRIPT) for each in ODD]
        of_group = group_moment(
            number, now, backends=rows, reasons=list(ODD), plane=BREAK, regime=LINK, fault=PAYLOAD
        )
        server.ok("POST", "/v1/reports", report(f"agent {name}", nodes={name: [of_node]}))
        server.ok("POST", "/v1/reports", report(f"agent {name}", groups={name: [of_group]}))


def addresses() -> list[str]:
    odd = [quote(name, safe="") for name in NAMES]
    return [
        *(view for view in VIEWS if "{" not in view),
        *(
            "/runs/constructor",
            "/runs/valueof",
            "/runs/refused",
            "/ledger/5",
            "/ledger?text=%3Cb%3E",
        ),
        *(f"/cpu/{name}" for name in odd),
        *(f"/traffic/{name}" for name in odd),
        *(f"/decision/node/{name}/1" for name in odd[:3]),
        *(f"/runs/{name}" for name in odd),
        *(
            "/runs/%",
            "/cpu/%E0%A4%A",
            "/decision/%00/x",
            "/ledger/-1",
            "/ledger/x",
            "/preemption/x",
        ),
        *("/gpu?text=%3Cimg%3E&phase=x", "/signin#code=%3Cimg%3E", f"/gpu#{odd[0]}"),
    ]


def assert_untouched(page: Page) -> None:
    assert page.evaluate("window.pwned") is None
    shown = page.locator("main").text_content() or ""
    assert not re.search("[\u202a-\u202e\u2066-\u2069]", shown), "one name is read as another"
    foreign = "main :is(img, script, iframe, object, embed, base, form[action], svg[onload])"
    assert page.locator(foreign).count() == 0
    for href in page.locator("a[href]").evaluate_all("all => all.map((a) => a.href)"):
        assert re.match(r"http://127\.0\.0\.1:\d+/|blob:", href), href


def load(page: Page, address: str) -> None:
    """By its address, as one that was typed or sent."""
    page.goto(address)
    expect(page.locator("#state")).not_to_have_text("Connecting…")


def follow(page: Page, address: str) -> None:
    """As a link of the page does: without loading it anew."""
    page.evaluate(
        """(address) => {
          const link = document.createElement("a");
          link.setAttribute("href", address);
          document.body.append(link);
          document.getElementById("state").textContent = "Opening…";
          link.click();
          link.remove();
        }""",
        address,
    )
    expect(page.locator("#state")).not_to_have_text("Opening…")


@pytest.mark.parametrize(("signed_in", "open_view"), [(False, load), (True, follow)])
def test_what_others_wrote_is_text_on_every_view(
    lab: Running, visits: Visits, signed_in: bool, open_view: Callable[[Page, str], None]
) -> None:
    """Names, labels, output, reasons, faults, addresses: nothing becomes markup, a link elsewhere
    or an error of the page; to a reader by address, and to an admin by links."""
    token = lab.token("root-in-browser", admin=True) if signed_in else None
    page = visits.open(lab, token=token)
    failures: list[str] = []
    page.on("pageerror", lambda error: failures.append(str(error)))
    for address in addresses():
        open_view(page, address)
        expect(page.locator("main h1").first).to_be_attached()
        assert_untouched(page)
        assert failures == [], (address, failures)
    page.goto("/")
    expect(page.locator("#state")).to_have_text("Live")
    # A name that is not there is a 404 that the browser notes; nothing else may be said.
    visits.complaints = [said for said in visits.complaints if not re.search(r"40[04]|422", said)]


def test_hostile_names_are_usable_names(lab: Running, visits: Visits) -> None:
    """From the lists to their pages, by links that keep every character; also on a phone."""
    page = visits.open(lab, "/traffic", width=375)
    for name in NAMES[:-1]:
        page.goto("/traffic")
        page.get_by_role("link", name=name, exact=True).click()
        expect(page.locator("h1")).to_have_text(name)
        expect(page.locator("#backend-rows")).to_contain_text(name)
        assert_narrow(page)
    assert_untouched(page)


@contextmanager
def other_site(html: str) -> Iterator[str]:
    """Another origin of this machine."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(html.encode())

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()


def test_another_site_frames_reads_and_changes_nothing(lab: Running, visits: Visits) -> None:
    """With a reader who is signed in: no frame, no answer that a script reads, no change."""
    page = visits.open(lab, "/gpu", token=lab.token("ada", "constructor"))
    size = lab.ok("GET", "/v1/head")["size"]
    ours = f"http://127.0.0.1:{lab.port}"
    html = f"""<iframe src="{ours}/gpu"></iframe><script>
      window.found = [];
      const ask = (path, options) => fetch("{ours}" + path, {{credentials: "include", ...options}})
        .then((reply) => reply.text()).then((text) => found.push(text), () => found.push(null));
      const cancel = "/v1/objects/Run/constructor/actions/cancel";
      window.done = Promise.all([ask("/v1/whoami"), ask("/v1/head"),
        ask(cancel, {{method: "POST"}}), ask(cancel, {{method: "POST", mode: "no-cors"}}),
        ask("/v1/apply", {{method: "POST", headers: {{"Fairlead-Session": "x"}}, body: "{{}}"}})]);
      const stream = new EventSource("{ours}/v1/watch?after=0");
      stream.onmessage = (event) => found.push(event.data);
      </script><form id="f" method="post" action="{ours}/v1/signin" enctype="text/plain"></form>"""
    with other_site(html) as address:
        other = page.context.new_page()
        other.goto(address)
        other.evaluate("window.done")
        assert set(other.evaluate("window.found")) <= {None, ""}
        (frame,) = other.frames[1:]
        assert frame.url.startswith("chrome-error:"), frame.url
        other.evaluate("document.getElementById('f').submit()")
        other.wait_for_url(re.compile("/v1/signin"))
        assert "error" in other.content()
        other.close()
    after = lab.ok("GET", f"/v1/events?after={size}&limit=1000")["items"]
    assert {row["author"] for row in after} <= {"fairlead"}, "what the control plane does by itself"
    assert _is(lab, "constructor", "Running")
    page.reload()
    expect(page.get_by_role("button", name="Sign out")).to_be_visible()


def test_a_reader_without_rights_is_offered_nothing(lab: Running, visits: Visits) -> None:
    """A viewer who signed in sees what all see, and no button that changes anything."""
    page = visits.open(lab, "/gpu", token=lab.token("viewer", "another"))
    for address in ("/gpu", "/runs/constructor", "/traffic/constructor", "/cpu/constructor"):
        page.goto(address)
        expect(page.locator("#state")).to_have_text("Live")
        for name in ("Cancel", "Pause", "Edit…", "Cordon", "Drain…", "Eject", "Nominate"):
            expect(page.get_by_role("button", name=name, exact=True)).to_have_count(0)
