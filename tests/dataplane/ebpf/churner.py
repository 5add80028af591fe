"""`python -m tests.dataplane.ebpf.churner CGROUP PINS PORTS`: changes groups until it is killed."""

import json
import sys
from itertools import cycle
from pathlib import Path

from fairlead.dataplane.ebpf import EbpfDataplane
from tests.dataplane.ebpf.places import Place
from tests.dataplane.ebpf.test_churn import shapes
from tests.dataplane.tables import table


def main() -> None:
    """As fast as it can."""
    cgroup, pins, ports = Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3])
    plane = EbpfDataplane(cgroup, pins)
    turns = shapes(Place(cgroup, pins, ports, []))
    plane.configure(turns[0])
    epoch = plane.read()["web"].epoch
    print(json.dumps("ready"), flush=True)
    for turn in cycle(turns):
        plane.configure(turn)
        epoch += 1
        slots = {each.id: 5 for g in turn if g.name == "web" for each in g.backends}
        plane.apply(table("web", epoch, slots), decision=epoch)


if __name__ == "__main__":
    main()
