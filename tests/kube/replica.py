"""A controller as a process of its own: `python -m tests.kube.replica JSON`.

`kill_at`: it kills itself (SIGKILL) at that append to the ledger, from the first outcome's commit
on, or with `from_start` from the first one of all; `when` before or after the append is durable.
`skew_ms`: how far its clock is off. It says `append N` and the kinds for each that it counts.
`halt_at`: it halts itself (SIGSTOP) once, when it is about to send the first request whose method
and path match: it has made sure that it leads, and says `halts`.
"""

import json
import os
import re
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fairlead.compose import kube
from fairlead.engine.gpu import Config
from fairlead.host.clock import now_ms
from fairlead.kube.client import KubeClient
from fairlead.kube.election import Terms
from fairlead.ports.faults import Fault
from fairlead.ports.ledger import Draft, Entry
from tests.engine.gpu.worlds import LENIENT

TERMS, QUICK = Terms(duration_s=6, renew_s=1.0), Terms(duration_s=2, renew_s=0.5)
LEADS_NO_MORE = 3


def say(line: str) -> None:
    print(line, flush=True)


def watch_appends(
    ledger: Any, *, kill_at: int = 0, when: str = "after", from_start: bool = False
) -> Any:
    """Count the appends of a resolve; end the process at one of them."""
    append, counted = ledger.append, [0]

    def counting(drafts: Sequence[Draft], *, expected_size: int | None = None) -> list[Entry]:
        begins = from_start or any(draft.kind == "gpu.resolve.commit" for draft in drafts)
        if not counted[0] and not begins:
            return append(drafts, expected_size=expected_size)  # type: ignore[no-any-return]
        counted[0] += 1
        kinds = sorted({draft.kind for draft in drafts})
        say(f"append {counted[0]} {' '.join(kinds)}")
        if counted[0] == kill_at and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        made = append(drafts, expected_size=expected_size)
        if counted[0] == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return made  # type: ignore[no-any-return]

    ledger.append = counting
    return ledger


def halt_once(pattern: str) -> None:
    send, halted = KubeClient._send, threading.Lock()

    def halting(self: KubeClient, made: Any, method: str, path: str, *rest: Any) -> None:
        if re.search(pattern, f"{method} {path}") and halted.acquire(blocking=False):
            say("halts")
            os.kill(os.getpid(), signal.SIGSTOP)
        send(self, made, method, path, *rest)

    KubeClient._send = halting  # type: ignore[method-assign]


def main(given: dict[str, Any]) -> int:
    open_up, skew_ms = kube.open_up, given.get("skew_ms", 0)
    kube.now_ms = lambda: now_ms() + skew_ms  # type: ignore[assignment]

    def opened(data: Path, address: str | None, **more: Any) -> Any:
        ledger = open_up(data, address, **more)
        how = {key: given[key] for key in ("kill_at", "when", "from_start") if key in given}
        return watch_appends(ledger, **how)

    kube.open_up = opened  # type: ignore[assignment]
    if "halt_at" in given:
        halt_once(given["halt_at"])
    config = kube.KubeConfig(
        Path(given["data"]),
        Path(given["kubeconfig"]),
        ledger=given.get("ledger"),
        image="busybox",
        qps=None,
        engine=Config(resolver="enforce", grace_ms=1000, preemption=LENIENT),
        terms=TERMS if given.get("kill_at") is None else QUICK,
    )
    with kube.controller(config, say=say) as running:
        signal.signal(signal.SIGTERM, lambda *_: running.stop())
        try:
            running.run()
        except Fault as fault:
            say(f"ends: {fault}")
            return LEADS_NO_MORE
    return 0


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
