"""`python -m bench.kube`: Kueue's published baseline, Kueue and Fairlead in turns."""

import argparse
import json
import os
import time
from pathlib import Path

from bench.kube import arms
from bench.kube.load import Load

ARMS = {
    "kueue-limited": lambda load: arms.kueue(load, limited=True),
    "fairlead-limited": lambda load: arms.fairlead(load, limited=True),
    "kueue": lambda load: arms.kueue(load, limited=False),
    "fairlead": lambda load: arms.fairlead(load, limited=False),
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.kube", description=__doc__)
    parser.add_argument("--workloads", type=int, default=15_000)
    parser.add_argument("--repetitions", type=int, default=1)
    parser.add_argument("--arms", default=",".join(ARMS))
    parser.add_argument("--results", type=Path)
    options = parser.parse_args()
    if os.geteuid() == 0:
        os.nice(-10)
    load = Load.of(options.workloads)
    for repetition in range(options.repetitions):
        for name in options.arms.split(","):
            began = time.monotonic()
            line = ARMS[name](load)
            line.pop("curve")
            print(name, repetition, f"{time.monotonic() - began:.0f} s", json.dumps(line, indent=1))


if __name__ == "__main__":
    main()
