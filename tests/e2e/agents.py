"""A node agent as a user runs it: a process of its own, configured by a file, told to stop."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

FAST = {
    "capacity_millicores": 1500,
    "reserve": 0,
    "sample_ms": 50,
    "clear_ms": 150,
    "guardrails": {"cooldown_ms": 0, "grace_ms": 0, "dead_band": 0.02, "step_ratio": 4},
    "smoothing": {"up": 0.6, "down": 0.4, "hold_ms": 300},
}


class AgentProcess:
    """`fairlead node run` on a root, with its state in a folder."""

    def __init__(self, root: Path, folder: Path, *flags: str, **settings: Any) -> None:
        self.state = folder / "state"
        config = folder / "node.yaml"
        config.write_text(json.dumps({**FAST, "root": str(root), **settings}))  # JSON is YAML
        self.log_path = folder / "agent.log"
        self.started_ms = time.time() * 1000
        environment = {**os.environ, "FAIRLEAD_NODE_STATE_DIR": str(self.state)}
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "fairlead", "node", "run", "--config", str(config), *flags],
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
            )

    def status(self) -> dict[str, Any]:
        return json.loads((self.state / "status.json").read_text())  # type: ignore[no-any-return]

    def pods(self) -> dict[str, dict[str, Any]]:
        return {pod["pod"]: pod for pod in self.status()["pods"]}

    def until(self, what: str, holds: Callable[[], bool], seconds: float = 60) -> None:
        """Wait for a condition on the world, not for a time."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            assert self.process.poll() is None, f"the agent ended: {self.log()}"
            if self.has_decided() and holds():
                return
            time.sleep(0.02)  # polling interval, not synchronisation
        raise AssertionError(f"never {what}: {self.status()}")

    def has_decided(self) -> bool:
        """Whether the status is this agent's and not its predecessor's."""
        exists = (self.state / "status.json").exists()
        return exists and self.status()["time_ms"] >= self.started_ms

    def log(self) -> str:
        return self.log_path.read_text()

    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log().splitlines()]

    def stop(self, how: int = signal.SIGTERM) -> int:
        if self.process.poll() is None:
            self.process.send_signal(how)
        return self.process.wait(timeout=60)


def fairlead(*arguments: str, state: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Any other command, with the same state directory."""
    environment = {**os.environ, **({"FAIRLEAD_NODE_STATE_DIR": str(state)} if state else {})}
    return subprocess.run(
        [sys.executable, "-m", "fairlead", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env=environment,
    )
