"""Controllers as processes, each behind a proxy of its own; killed, halted and started again."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from fairlead.host.process import spawn
from fairlead.kube.client import Connection
from tests.kube.faulty import Faults, Write, faulty
from tests.kube.replica import LEADS_NO_MORE
from tests.kube.world import until


def kubeconfig(port: int, path: Path) -> Path:
    cluster = {"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}
    context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
    document = {
        "clusters": [cluster],
        "users": [{"name": "u", "user": {}}],
        "contexts": [context],
        "current-context": "c",
    }
    path.write_text(json.dumps(document))
    return path


class Replica:
    """One process, and what it wrote."""

    def __init__(self, process: "subprocess.Popen[bytes]", log: Path, writes: list[Write]) -> None:
        self.process, self._log, self.writes = process, log, writes
        self.halted_until: float | None = None

    @property
    def log(self) -> str:
        return self._log.read_text()

    @property
    def led(self) -> bool:
        return "leads\n" in self.log

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def kill(self) -> None:
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def end(self) -> int:
        if self.alive:
            self.process.terminate()
        return self.process.wait(60)


class Replicas:
    """A supervisor: those that end because they lead no more are started again."""

    def __init__(self, to: Connection, faults: Faults, folder: Path, ledger: str | None) -> None:
        self._to, self._faults, self._folder, self._ledger = to, faults, folder, ledger
        self.data = folder / "data"
        self.all: list[Replica] = []
        self._open = ExitStack()

    def start(self, **given: Any) -> Replica:
        number = len(self.all)
        proxied, writes = self._open.enter_context(faulty(self._to, self._faults))
        through = kubeconfig(proxied.port, self._folder / f"kubeconfig-{number}")
        given |= {"data": str(self.data), "kubeconfig": str(through), "ledger": self._ledger}
        log = self._folder / f"log-{number}"
        command = [sys.executable, "-m", "tests.kube.replica", json.dumps(given)]
        with open(log, "ab") as output:
            env = {**os.environ, "PYTHONFAULTHANDLER": "1"}
            process = spawn(command, output=output, env=env, ends_with_us=signal.SIGKILL)
        replica = Replica(process, log, writes)
        self.all.append(replica)
        return replica

    def supervise(self) -> None:
        """A replica that ended by itself is started again; only for a reason that passes."""
        for replica in list(self.all):
            code = replica.process.poll()
            if code not in (None, -signal.SIGKILL) and not replica.halted_until:
                assert code == LEADS_NO_MORE, f"ended with {code}:\n{replica.log[-2000:]}"
                replica.halted_until = time.monotonic()
                self.start()

    @property
    def leader(self) -> Replica:
        def find() -> Replica | None:
            self.supervise()
            found = [each for each in self.all if each.alive and each.led]
            return found[-1] if found else None

        return until(find, f"a replica leads\n{self.logs()}", 60)  # type: ignore[no-any-return]

    def halt_leader(self) -> None:
        """SIGSTOP until another one leads; then it wakes up, and has to end without a write."""
        old, others = self.leader, [each for each in self.all if each.alive]
        if len(others) < 2:
            self.start()
        os.kill(old.process.pid, signal.SIGSTOP)
        try:
            until(
                lambda: any(each.led for each in self.all if each.alive and each is not old),
                f"another one leads\n{self.logs()}",
                60,
            )
        finally:
            late = self.wake(old)
        assert not late, f"a deposed leader wrote: {late}"
        self.start()

    def wake(self, old: Replica) -> list[Write]:
        """What a leader that was replaced writes when it goes on; it has to end by itself."""
        began = old.halted_until = time.monotonic()
        os.kill(old.process.pid, signal.SIGCONT)
        code = old.process.wait(60)
        assert code == LEADS_NO_MORE, f"ended with {code}:\n{old.log[-2000:]}"
        return [
            write
            for write in old.writes
            if write.time_s > began and "/leases/fairlead" not in write.path
        ]

    def logs(self, last: int = 1500) -> str:
        return "\n".join(f"-- {i}: {each.log[-last:]}" for i, each in enumerate(self.all))

    def close(self) -> None:
        for replica in self.all:
            if replica.alive:
                os.kill(replica.process.pid, signal.SIGCONT)
                replica.kill()
        self._open.close()
