"""`python -m tests.engine.gpu.replica`: a control plane of its own process on a shared PostgreSQL.

It submits runs of its own and takes turns, as a replica under load does, until every run of all
replicas has ended. What it prints is how many it submitted.
"""

import sys
import time
from collections.abc import Callable

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
        for i in range(RUNS):
            flavor, owner = (("H100", "a"), ("A100", "b"))[i % 2]
            # Long enough that runs of both replicas overlap, on a loaded machine too.
            spec = {"owner": owner, "flavor": flavor, "totalGPUs": 1 + i % 3, "duration": "1s"}
            patiently(
                lambda i=i, spec=spec: plane.objects.apply(  # type: ignore[misc]
                    manifest("Run", f"r{number}-{i}", spec), author=ADMIN
                )
            )
            patiently(plane.reconcile)
        deadline = time.monotonic() + PATIENCE_S
        while any(run["status"]["phase"] != "Completed" for run in plane.objects.list("Run")):
            assert time.monotonic() < deadline, "runs are left over"
            patiently(plane.reconcile)
            time.sleep(0.02)  # polling interval, not synchronisation
    print(RUNS)


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
