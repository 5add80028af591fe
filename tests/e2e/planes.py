"""A control plane as a user runs it, as a process, and commands that talk to it."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.api.servers import UnixConnection
from tests.cli.shells import run_inside
from tests.e2e.preloaded import Preloaded

CONTROL = 54_410
"""The user of a control plane without rights."""


class Plane:
    """`fairlead up` on a folder, and the command line that talks to it."""

    def __init__(self, folder: Path, *flags: str) -> None:
        self.folder, self.socket = folder, folder / "data" / "fairlead.sock"
        self.log = folder / "up.log"
        self.environment = {
            **os.environ,
            "FAIRLEAD_SERVER": str(self.socket),
            "NO_COLOR": "1",
            "FAIRLEAD_HEADS": str(folder / "heads.json"),
            "FAIRLEAD_STATE": str(folder / "data"),
            "PYTHONFAULTHANDLER": "1",
        }
        # One process unless a test says otherwise, whatever users this machine has.
        whole = ("--user", "root") if os.geteuid() == 0 and "--user" not in flags else ()
        common = ("--allow-root", "--grace", "1", "--trusting")
        self.flags = ("--data", str(folder / "data"), *common, *whole, *flags)
        self.process: subprocess.Popen[bytes] | Preloaded | None = None
        self.preloaded = False
        """Whether it begins in a process that has imported it."""
        self.program: tuple[str, ...] = ("-m", "fairlead")
        self.wrapper: tuple[str, ...] = ()
        """What starts the control plane, if not we ourselves."""

    def up(self) -> "Plane":
        """Start it and wait until it answers."""
        self.process = self._start()
        self.until("answers", lambda: self.ask("/healthz"))
        return self

    def _start(self) -> subprocess.Popen[bytes] | Preloaded:
        if self.preloaded:
            return Preloaded(("up", *self.flags), self.environment, self.log)
        command = [*self.wrapper, sys.executable, *self.program, "up", *self.flags]
        with self.log.open("ab") as log:
            return subprocess.Popen(command, stdout=log, stderr=log, env=self.environment)

    def down(self, how: int = signal.SIGTERM) -> int:
        """End it."""
        assert self.process is not None
        self.process.send_signal(how)
        try:
            return self.process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGABRT)  # where it hangs, thread by thread, to the log
            self.process.wait(timeout=20)
            raise AssertionError(f"it does not end: {self.log.read_text()[-6000:]}") from None

    def run(self, *arguments: str, input: str | None = None) -> subprocess.CompletedProcess[str]:
        """One command, whatever comes of it; in this process, which saves a start of Python, unless
        it is a control plane of its own."""
        if arguments[0] == "up":
            command = [sys.executable, "-m", "fairlead", *arguments]
            return subprocess.run(
                command,
                capture_output=True,
                text=True,
                check=False,
                timeout=60,
                env=self.environment,
            )
        data = None if input is None else input.encode()
        done = run_inside(*arguments, input=data, environment=self.environment)
        out, err = done.stdout.decode(), done.stderr.decode()
        return subprocess.CompletedProcess(arguments, done.returncode, out, err)

    def ok(self, *arguments: str, input: str | None = None) -> str:
        """A command that must succeed; its output."""
        done = self.run(*arguments, input=input)
        assert done.returncode == 0, (arguments, done.stderr, self.log.read_text()[-2000:])
        return done.stdout

    def json(self, *arguments: str) -> Any:
        return json.loads(self.ok(*arguments, "-o", "json"))

    def apply(self, *manifests: dict[str, Any]) -> str:
        return self.ok("apply", "-f", "-", input=documents(*manifests))

    def ask(self, path: str) -> Any:
        """Straight to the socket: polling with processes would be most of the test's time."""
        connection = UnixConnection(self.socket)
        try:
            connection.request("GET", path)
            return json.loads(connection.getresponse().read())
        except OSError:
            return None
        finally:
            connection.close()

    def post(self, path: str) -> Any:
        """A change that must succeed."""
        connection = UnixConnection(self.socket)
        try:
            connection.request("POST", path)
            response = connection.getresponse()
            data = response.read()
            assert response.status == 200, data
            return json.loads(data)
        finally:
            connection.close()

    def phase(self, run: str) -> str:
        return str(self.ask(f"/v1/objects/Run/{run}")["status"]["phase"])

    def until(self, what: str, holds: Callable[[], Any], seconds: float = 60) -> Any:
        """Wait for a condition on the world, not for a time."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self.process is not None:
                assert self.process.poll() is None, self.log.read_text()
            if found := holds():
                return found
            time.sleep(0.05)  # polling interval, not synchronisation
        raise AssertionError(f"never {what}: {self.log.read_text()[-2000:]}")


def documents(*manifests: dict[str, Any]) -> str:
    """Manifests as a YAML stream; JSON is YAML."""
    return "\n---\n".join(json.dumps(each) for each in manifests)


READABLE = """
set -e
home=$(dirname "$2"); mkdir -p "$1/$(basename "$2")"
mount --bind "$2" "$1/$(basename "$2")"
mount --rbind "$1" "$home"
shift 2; exec "$@"
"""


def wrapper(folder: Path) -> tuple[str, ...]:
    """What lets the control plane's user read Python: where it lies in a home that others cannot
    enter, the control plane sees that home with nothing but Python in it."""
    base = Path(sys.base_prefix)
    closed = next((path for path in base.parents if path.stat().st_mode & 0o005 != 0o005), None)
    if closed is None:
        return ()
    shown = closed / base.relative_to(closed).parts[0]
    return ("unshare", "--mount", "sh", "-c", READABLE, "sh", str(folder / "home"), str(shown))


def split_plane(folder: Path, *flags: str, user: int = CONTROL) -> Plane:
    """A control plane without rights, beside its launcher."""
    made = Plane(folder, *(flags or ("--port", "0")), "--user", str(user))
    made.wrapper = wrapper(folder)
    return made
