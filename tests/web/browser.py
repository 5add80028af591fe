"""A real Chromium, without a screen, driven by Playwright; and what to ask of every page.

Playwright only drives: the browser is the machine's own. Its event loop belongs to this thread as
long as it runs, so a browser lives as long as the tests of one file.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.resources import files
from typing import Any

from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Page,
    Request,
    expect,
    sync_playwright,
)

from tests.api.servers import Running

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
PATIENCE_MS = 60_000
expect.set_options(timeout=PATIENCE_MS)


def missing_chromium() -> str | None:
    """None when there is one."""
    found = any(map(shutil.which, PROGRAMS))
    return None if found else "chromium is not on PATH (apt install chromium)"


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser with a profile of its own, gone at the end."""
    program = next(filter(None, map(shutil.which, PROGRAMS)))
    with sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=program, args=list(FLAGS), chromium_sandbox=False, timeout=PATIENCE_MS
        )
        try:
            yield browser
        finally:
            browser.close()


class Visits:
    """Opens pages of a server, and hears what their consoles say and what they load."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self.complaints: list[str] = []
        self.asked: list[str] = []
        self._hosts: set[str] = set()
        self._contexts: list[BrowserContext] = []

    def open(
        self,
        server: Running,
        path: str = "/",
        *,
        width: int = 1200,
        scheme: Any = "light",
        token: str | None = None,
    ) -> Page:
        """A page with storage of its own, at an address of a server; `token`: signed in with it."""
        host = f"127.0.0.1:{server.port}"
        self._hosts.add(host)
        context = self._browser.new_context(
            base_url=f"http://{host}",
            viewport={"width": width, "height": 900},
            color_scheme=scheme,
            accept_downloads=True,
        )
        self._contexts.append(context)
        context.set_default_timeout(PATIENCE_MS)
        page = context.new_page()
        page.on("console", self._hear)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", self._see)
        if token is not None:
            page.goto("/signin")
            page.get_by_label("Token").fill(token)
            page.get_by_role("button", name="Sign in").click()
            expect(page.get_by_role("button", name="Sign out")).to_be_visible()
        page.goto(path)
        return page

    def assert_quiet(self) -> None:
        """No page complained, and none asked anybody but its own server."""
        assert self.complaints == [], self.complaints
        assert {each.split("/")[2] for each in self.asked} <= self._hosts

    def close(self) -> None:
        for context in self._contexts:
            context.close()

    def _hear(self, message: ConsoleMessage) -> None:
        # A network interface that comes or goes, of another test, ends requests on loopback too.
        if message.type in ("error", "warning") and "ERR_NETWORK_CHANGED" not in message.text:
            self.complaints.append(message.text)

    def _see(self, request: Request) -> None:
        if not request.url.startswith(("data:", "blob:")):
            self.asked.append(request.url)


@cache
def _axe() -> str:
    return (files("axe_playwright_python") / "axe.min.js").read_text()


def assert_accessible(page: Page) -> None:
    """Axe finds nothing to complain of.

    The debugger puts axe into the page: our content policy, which stays in force, would not.
    """
    session = page.context.new_cdp_session(page)
    try:
        session.send("Runtime.evaluate", {"expression": _axe()})
        asked = {"expression": "axe.run()", "awaitPromise": True, "returnByValue": True}
        answer = session.send("Runtime.evaluate", asked)
    finally:
        session.detach()
    assert "exceptionDetails" not in answer, answer
    found = answer["result"]["value"]
    assert found["passes"], "axe looked at nothing"
    harm = [
        (each["id"], each["help"], [node["html"] for node in each["nodes"]])
        for each in found["violations"]
    ]
    assert harm == [], harm


def assert_narrow(page: Page) -> None:
    """The page itself does not scroll sideways; a wide table does, in its own box."""
    wide, given = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    assert wide <= given, (wide, given)


def table(page: Page, name: str) -> list[list[str]]:
    """The cells of the rows in the element with an id, as they are seen."""
    rows = page.locator(f"#{name} tr").all()
    return [row.locator("th, td").all_inner_texts() for row in rows]
