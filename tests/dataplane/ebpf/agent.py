"""`python -m tests.dataplane.ebpf.agent CGROUP PINS PORTS MODE`: an agent that lives to be killed.

Opens a plane with one group of two backends, gives it a table in the mode, then beats every 200 ms
and flips every second beat. Says "ready" after the first flip.
"""

import json
import sys
import time
from itertools import count
from pathlib import Path

from fairlead.core.traffic.model import Admission
from fairlead.core.traffic.state import AdmissionMode
from fairlead.dataplane.ebpf import EbpfDataplane
from tests.dataplane.ebpf.places import group, limited
from tests.dataplane.tables import table

VIP, PORT = "127.99.0.9", 80
STORED = STORED_PER_S, STORED_BURST = 20, 5
DOORS = {
    AdmissionMode.NORMAL: Admission(),
    # A drip of nothing, so that the door is seen to be closed; what is stored opens it.
    AdmissionMode.HARD: Admission(AdmissionMode.HARD, 0, 0),
    AdmissionMode.SOFT: limited(AdmissionMode.SOFT, 0, 40),
}


def main() -> None:
    """Until it is killed."""
    cgroup, pins, ports, mode = sys.argv[1:]
    plane = EbpfDataplane(Path(cgroup), Path(pins))
    plane.configure([group("web", VIP, PORT, dict(zip("ab", json.loads(ports), strict=True)))])
    for epoch in count(1):
        plane.heartbeat()
        if epoch % 2:
            made = table("web", epoch, {"a": 3, "b": 1}, DOORS[AdmissionMode(mode)], stored=STORED)
            plane.apply(made, decision=epoch)
        if epoch == 1:
            print(json.dumps("ready"), flush=True)
        time.sleep(0.2)


if __name__ == "__main__":
    main()
