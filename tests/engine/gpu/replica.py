"""`python -m tests.engine.gpu.replica`: a control plane of its own process on a shared PostgreSQL.

It submits runs of its own and takes turns, as a replica under load does, until every run of all
replicas has ended. What it prints is how many it submitted.
"""

import sys
import time
from collections.abc import Callable
from functools import partial

from fairlead.engine.gpu import ControlPlane
from fairlead.ledger.keys import KeyDirectory
from fairlead.ledger.postgres import PostgresLedger
from fairlead.ports.faults import TemporaryFault
from tests.engine.gpu.worlds import ADMIN, manifest

RUNS = 20
PATIENCE_S = 120


def main(address: str, schema: str, keys: str, number: int) -> None:
    with PostgresLedger.open(address, KeyDirectory(keys), schema=schema) as ledger:
        plane = ControlPlane(ledger, None, lambda: time.time_ns() // 1_000_000)
        runs = [manifest("Run", f"r{number}-{i}", spec_of(i)) for i in range(RUNS)]
        for run in runs[: RUNS // 2]:
            patiently(partial(plane.objects.apply, run, author=ADMIN))
            patiently(plane.reconcile)
        # The rest at once: however slow the machine is, more is asked for than there is.
        patiently(partial(plane.objects.apply_all, runs[RUNS // 2 :], author=ADMIN))
        deadline = time.monotonic() + PATIENCE_S
        while any(run["status"]["phase"] != "Completed" for run in plane.objects.list("Run")):
            assert time.monotonic() < deadline, "runs are left over"
            patiently(plane.reconcile)
            time.sleep(0.02)  # polling interval, not synchronisation
    print(RUNS)


def spec_of(number: int) -> dict[str, object]:
    flavor, owner = (("H100", "a"), ("A100", "b"))[number % 2]
    return {"owner": owner, "flavor": flavor, "totalGPUs": 1 + number % 3, "duration": "1s"}


def patiently(work: Callable[[], object]) -> None:
    """Until it is not a temporary fault."""
    while True:
        try:
            work()
        except TemporaryFault:
            time.sleep(0.01)
            continue
        return


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
