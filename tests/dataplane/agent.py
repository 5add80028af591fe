"""An agent to be killed: configures, applies, says `ready`, and beats until it dies."""

import json
import sys
import time
from importlib import import_module
from typing import Any

from fairlead.core.traffic.model import Admission
from fairlead.core.traffic.state import AdmissionMode
from fairlead.ports.dataplane import Backend, Dataplane, Proto, RouteGroup
from tests.dataplane.tables import table


def main() -> None:
    """The task is on standard input."""
    task: dict[str, Any] = json.load(sys.stdin)
    module, function = task["opener"].split(":")
    plane: Dataplane = getattr(import_module(module), function)(**task["arguments"])
    plane.configure([_group(each) for each in task["groups"]])
    for each in task["tables"]:
        mode, *numbers = each["admission"]
        admission, stored = Admission(AdmissionMode(mode), *numbers), each["stored"]
        plane.heartbeat()
        made = table(each["group"], each["epoch"], each["slots"], admission, stored=stored)
        plane.apply(made, decision=each["epoch"])
    print("ready", flush=True)
    while True:
        plane.heartbeat()
        time.sleep(0.1)


def _group(each: dict[str, Any]) -> RouteGroup:
    backends = tuple(Backend(**backend) for backend in each["backends"])
    return RouteGroup(each["name"], each["vip"], each["port"], Proto(each["proto"]), backends)


if __name__ == "__main__":
    main()
