"""`fairlead up --demo` as a visitor sees it: alive, real, and gone when it ends."""

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from fairlead.api.lab import WORKLOADS, manifests


def ask(port: int, path: str) -> Any:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("GET", path)
        return json.loads(connection.getresponse().read())
    finally:
        connection.close()


def test_the_lab_lives_and_leaves_nothing_behind(tmp_path: Path) -> None:
    """Runs that really run, and a loan; Ctrl-C ends it, its runs and its folder."""
    log = tmp_path / "log"
    with log.open("w") as out:
        lab = subprocess.Popen(
            [sys.executable, "-m", "fairlead", "up", "--demo", "--port", "0"],
            stdout=out,
            stderr=out,
            env={**os.environ, "TMPDIR": tempfile.gettempdir()},
        )
    try:
        deadline = time.monotonic() + 120

        def until(what: str, holds: Any) -> Any:
            while time.monotonic() < deadline:
                assert lab.poll() is None, log.read_text()
                if found := holds():
                    return found
                time.sleep(0.1)  # polling interval, not synchronisation
            raise AssertionError(f"never {what}: {log.read_text()[-3000:]}")

        until("listens", lambda: "http://" in log.read_text())
        port = int(re.search(r"http://127\.0\.0\.1:(\d+)", log.read_text())[1])  # type: ignore[index]
        folder = Path(re.search(r"socket (\S+)/fairlead\.sock", log.read_text())[1])  # type: ignore[index]
        rows = until("has budgets", lambda: ask(port, "/v1/budgets"))
        assert {row["owner"] for row in rows} == {"vision", "speech", "robotics"}
        until("lends", lambda: [row for row in ask(port, "/v1/owes") if row["gpu_hours"]])
        running = until(
            "runs two at once",
            lambda: [row["run"] for row in ask(port, "/v1/leases")][1:] and ask(port, "/v1/leases"),
        )
        assert {slot.partition("#")[0] for row in running for slot in row["slots"]} <= {
            "alpha",
            "beta",
        }
        jobs = until("started commands", lambda: list((folder / "runs" / "jobs").iterdir()))
        assert jobs
    finally:
        lab.send_signal(signal.SIGINT)
        assert lab.wait(timeout=60) == 0, log.read_text()[-3000:]
    assert "Traceback" not in log.read_text()
    assert not folder.exists()
    left = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=False).stdout
    assert str(folder) not in left, "its shims ended with it"


def test_the_lab_is_what_it_says() -> None:
    """Two nodes, three teams, somebody who lends, somebody who asks for too much."""
    kinds = [each["kind"] for each in manifests()]
    assert (kinds.count("Node"), kinds.count("Budget")) == (2, 3)
    assert {part.owner for part in WORKLOADS} == {"vision", "speech", "robotics"}
    assert any(part.sponsors for part in WORKLOADS)
