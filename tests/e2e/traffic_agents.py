"""A traffic agent as a user runs it: a process of its own on a real plane, killed and told."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fairlead.ports.dataplane import Backend


class TrafficProcess:
    """`fairlead traffic run` with one group, and the commands beside it."""

    def __init__(
        self,
        folder: Path,
        plane: str | Mapping[str, Any],
        port: int,
        backends: Sequence[Backend],
        **settings: Any,
    ) -> None:
        self.state, self.file = folder / "state", folder / "traffic.yaml"
        self.log_path = folder / "agent.log"
        self.config: dict[str, Any] = {
            "plane": plane,
            "state_dir": str(self.state),
            "node": {"watch": False},  # the machine may well be busy with other tests
            "groups": [
                {
                    "name": "web",
                    "vip": "127.0.0.1",
                    "port": port,
                    "backends": [{"id": b.id, "host": b.host, "port": b.port} for b in backends],
                }
            ],
            **settings,
        }
        self.write()
        self.start()

    def write(self) -> None:
        self.file.write_text(json.dumps(self.config))

    def start(self) -> None:
        self.started_ms = time.time() * 1000
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "fairlead", "traffic", "run", str(self.file)], stderr=log
            )

    def status(self) -> dict[str, Any]:
        return json.loads((self.state / "status.json").read_text())  # type: ignore[no-any-return]

    def group(self) -> dict[str, Any]:
        return self.status()["groups"][0]  # type: ignore[no-any-return]

    def slots(self) -> dict[str, int]:
        return {each["backend"]: each["slots"] for each in self.group()["backends"]}

    def until(self, what: str, holds: Callable[[], object], seconds: float = 90) -> None:
        """Wait for a condition on the world, not for a time."""
        deadline = time.monotonic() + seconds
        while not (self.has_decided() and holds()):
            assert self.process.poll() is None, f"the agent ended: {self.log()}"
            assert time.monotonic() < deadline, f"never {what}: {self.log()[-2000:]}"
            time.sleep(0.02)  # polling interval, not synchronisation

    def has_decided(self) -> bool:
        """Whether the status is this agent's and not its predecessor's."""
        exists = (self.state / "status.json").exists()
        return exists and self.status()["time_ms"] >= self.started_ms

    def log(self) -> str:
        return self.log_path.read_text()

    def events(self, name: str) -> list[dict[str, Any]]:
        found = [json.loads(line) for line in self.log().splitlines() if line.startswith("{")]
        return [each for each in found if each["event"] == name]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=60)

    def close(self) -> None:
        """Take everything off the machine."""
        self.stop()
        done = self.fairlead("traffic", "remove", str(self.file))
        assert done.returncode == 0, done.stderr

    def fairlead(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "FAIRLEAD_TRAFFIC_STATE_DIR": str(self.state)}
        return subprocess.run(
            [sys.executable, "-m", "fairlead", *arguments],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
            env=environment,
        )
