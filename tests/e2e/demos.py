"""`fairlead up --demo` as a user starts it: a process, its terminal, and what it leaves behind."""

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PATIENCE_S = 240


class Demo:
    """A demo that runs."""

    def __init__(self, folder: Path, *arguments: str, port: int = 0) -> None:
        self._printed = folder / "terminal"
        with self._printed.open("w") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "fairlead", "up", "--demo", f"--port={port}", *arguments],
                stdout=out,
                stderr=out,
                env={**os.environ, "TMPDIR": tempfile.gettempdir()},
            )
        found = self.until("listens", lambda: re.search(r"127\.0\.0\.1:(\d+)", self.terminal))
        self.port = int(found[1])
        socket = self.until("says how", lambda: re.search(r"SERVER=(\S+)", self.terminal))
        self.folder = Path(socket[1]).parent
        assert f"FAIRLEAD_LEDGER={self.folder}/ledger.db " in self.terminal

    @property
    def terminal(self) -> str:
        return self._printed.read_text()

    def ask(self, path: str) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request("GET", path)
            return json.loads(connection.getresponse().read())
        finally:
            connection.close()

    def until(self, what: str, holds: Callable[[], Any]) -> Any:
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            assert self.process.poll() is None, self.terminal
            if found := holds():
                return found
            time.sleep(0.1)  # polling interval, not synchronisation
        raise AssertionError(f"never {what}: {self.terminal[-3000:]}")

    def acts(self) -> list[dict[str, Any]]:
        return list(self.ask("/v1/story")["acts"])

    def stop(self) -> None:
        """Ctrl-C, and another one while it ends."""
        self.process.send_signal(signal.SIGINT)
        time.sleep(0.3)  # an impatient reader
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        assert self.process.wait(timeout=90) == 0, self.terminal[-3000:]

    def assert_gone(self) -> None:
        """No folder, no process, no cgroup."""
        assert "Traceback" not in self.terminal
        assert not self.folder.exists()
        ps = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True)
        assert str(self.folder) not in ps.stdout, "its shims ended with it"
        runs = {f"{name}." for name in self.names}
        left = [path for path in Path("/sys/fs/cgroup").rglob("*fairlead*") if path.is_dir()]
        assert not [path for path in left if any(run in path.name for run in runs)]

    names: frozenset[str] = frozenset()
    """Of runs that it had."""
