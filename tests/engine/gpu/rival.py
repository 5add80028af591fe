"""`python -m tests.engine.gpu.rival`: a replica that sees to reservations, on PostgreSQL."""

import sys
import time

from fairlead.engine.gpu import Config, ControlPlane
from fairlead.ledger.keys import KeyDirectory
from fairlead.ledger.postgres import PostgresLedger
from tests.engine.gpu.replica import PATIENCE_S, patiently
from tests.engine.gpu.resolving import CHANCE
from tests.engine.gpu.worlds import LENIENT


def main(address: str, schema: str, keys: str) -> None:
    with PostgresLedger.open(address, KeyDirectory(keys), schema=schema) as ledger:
        config = Config(resolver="enforce", preemption=LENIENT)
        plane = ControlPlane(ledger, None, lambda: time.time_ns() // 1_000_000, config, CHANCE)
        deadline = time.monotonic() + PATIENCE_S
        waiting = ("Pending", "Blocked")
        while any(each["status"]["state"] in waiting for each in plane.objects.list("Reservation")):
            assert time.monotonic() < deadline, plane.objects.list("Reservation")
            patiently(plane.reconcile)


if __name__ == "__main__":
    main(*sys.argv[1:])
