"""A real Chromium, without a screen, spoken to over its own debugging pipe."""

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--remote-debugging-pipe",
    "--disable-gpu",
    "--no-first-run",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--mute-audio",
    "--hide-scrollbars",
    "--window-size=1200,1000",
)
PATIENCE_S = 90
KEYS = {"Tab": 9, "Enter": 13, "Space": 32}


def missing_chromium() -> str | None:
    """None when there is one."""
    found = any(map(shutil.which, PROGRAMS))
    return None if found else "chromium is not on PATH (apt install chromium)"


class Page:
    """One tab. `asked` are the addresses it loaded, `complaints` what its console said."""

    def __init__(self, browser: "Browser") -> None:
        self._browser = browser
        target = browser.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = browser.call("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        self.asked: list[str] = []
        self.complaints: list[str] = []
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> Any:
        return self._browser.call(method, self._session, self._hear, **parameters)

    def go(self, address: str) -> None:
        self.call("Page.navigate", url=address)
        self.until(f"location.href.startsWith({address!r}) && document.readyState === 'complete'")

    def value(self, expression: str) -> Any:
        """What an expression comes to."""
        found = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def until(self, expression: str) -> Any:
        """Wait until an expression is true; its value."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            if found := self.value(expression):
                return found
            time.sleep(0.05)  # polling interval, not synchronisation
        body = self.value("document.body.innerText")
        raise AssertionError(f"never {expression}: {self.complaints} {body}")

    def key(self, name: str) -> None:
        """Press a key and let it go."""
        code = KEYS[name]
        text = {"Enter": "\r", "Space": " "}.get(name, "")
        for kind in ("keyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent",
                type=kind,
                key=" " if name == "Space" else name,
                code=name,
                windowsVirtualKeyCode=code,
                text=text if kind == "keyDown" else "",
            )

    def scheme(self, name: str) -> None:
        """`light` or `dark`, as the reader's system says it."""
        features = [{"name": "prefers-color-scheme", "value": name}]
        self.call("Emulation.setEmulatedMedia", features=features)

    def screenshot(self, path: Path) -> bytes:
        data = base64.b64decode(
            self.call("Page.captureScreenshot", captureBeyondViewport=True)["data"]
        )
        path.write_bytes(data)
        return data

    def _hear(self, method: str, said: dict[str, Any]) -> None:
        if method == "Network.requestWillBeSent":
            self.asked.append(said["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(said["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and said["type"] in ("error", "warning"):
            self.complaints.append(json.dumps(said["args"]))
        elif method == "Log.entryAdded" and said["entry"]["level"] in ("error", "warning"):
            self.complaints.append(said["entry"]["text"])


class Browser:
    """The browser at the other end of a pipe."""

    def __init__(self, process: subprocess.Popen[bytes], reader: int, writer: int) -> None:
        self._process, self._reader, self._writer = process, reader, writer
        self._rest, self._number = b"", 0
        self._pages: dict[str, Any] = {}

    def page(self) -> Page:
        return Page(self)

    def call(
        self, method: str, session: str | None = None, hear: Any = None, **parameters: Any
    ) -> Any:
        """One command and its answer; what is said meanwhile is passed on to its page."""
        self._number += 1
        command = {"id": self._number, "method": method, "params": parameters}
        if session is not None:
            command["sessionId"] = session
            self._pages[session] = hear
        os.write(self._writer, json.dumps(command).encode() + b"\0")
        deadline = time.monotonic() + PATIENCE_S
        while True:
            said = self._next(deadline)
            if said.get("id") == self._number:
                assert "error" not in said, (method, said["error"])
                return said["result"]
            if "method" in said and said.get("sessionId") in self._pages:
                self._pages[said["sessionId"]](said["method"], said["params"])

    def _next(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready = select.select([self._reader], [], [], max(0.0, deadline - time.monotonic()))[0]
            assert ready, "the browser does not answer"
            data = os.read(self._reader, 1 << 20)
            assert data, f"the browser ended with {self._process.poll()}"
            self._rest += data
        text, _, self._rest = self._rest.partition(b"\0")
        return dict(json.loads(text))


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser with a profile of its own, gone at the end."""
    program = next(filter(None, map(shutil.which, PROGRAMS)))
    read_commands, commands = os.pipe()
    answers, write_answers = os.pipe()

    def stand_in() -> None:  # the browser reads commands from 3 and writes answers to 4
        first, second = os.dup(read_commands), os.dup(write_answers)
        os.dup2(first, 3)
        os.dup2(second, 4)

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = subprocess.Popen(
            [program, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
            pass_fds=(3, 4),
            preexec_fn=stand_in,  # noqa: PLW1509
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "HOME": profile},
        )
        os.close(read_commands)
        os.close(write_answers)
        try:
            yield Browser(process, answers, commands)
        finally:
            process.kill()
            process.wait(timeout=60)
            os.close(commands)
            os.close(answers)
