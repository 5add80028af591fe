"""What HAProxy has counted, and what the workers before this one had.

A reload starts a worker with counters at zero, so what was counted until then is kept in a file and
added. Requests that the old worker admits in the milliseconds between the last look and the new
worker's start are in nobody's count; they are served all the same.
"""

import contextlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fairlead.dataplane.haproxy.words import HASHED, SIDES

COMMAND = "show stat -1 6 -1"  # backends and servers of every proxy


Row = Mapping[str, str]
Held = dict[str, dict[str, int]]
"""HAProxy backend to its servers, and what is in each now."""
_FIELDS = (
    "pxname",
    "svname",
    "qcur",
    "scur",
    "stot",
    "econ",
    "eresp",
    "hrsp_1xx",
    "hrsp_2xx",
    "hrsp_3xx",
    "hrsp_4xx",
    "hrsp_5xx",
)


@dataclass(slots=True)
class Server:
    """One backend of a group, over its three HAProxy servers and all workers so far."""

    admitted: int = 0
    connect_failures: int = 0
    successes: int = 0
    errors: int = 0
    open: int = 0
    queue: int = 0

    def add(self, row: Row) -> None:
        """Take in one line of `show stat`."""
        self.admitted += _count(row, "stot")
        self.connect_failures += _count(row, "econ")
        self.successes += sum(_count(row, f"hrsp_{each}xx") for each in "1234")
        self.errors += _count(row, "hrsp_5xx") + _count(row, "eresp")
        self.open += _count(row, "scur")
        self.queue += _count(row, "qcur")


@dataclass(slots=True)
class Counted:
    """One group. `admitted` is no sum of the servers: they leave, what they were sent stays."""

    admitted: int = 0
    refused_soft: int = 0
    refused_hard: int = 0
    servers: dict[str, Server] = field(default_factory=dict)


def parse(answer: str) -> Iterator[Row]:
    """The lines of `show stat` that say anything, with the columns of interest.

    There are eighty more; those that hold free text, and so might hold a comma, come after ours.
    A server that was never sent anything, as on the hashed side, has nothing to say.
    """
    lines = answer.removeprefix("# ").splitlines()
    header = lines[0].split(",") if lines else []
    places = [(name, header.index(name)) for name in _FIELDS]
    total, cut = header.index("stot"), max(place for _, place in places) + 1
    for line in lines[1:]:
        fields = line.split(",", cut)
        if len(fields) > cut and fields[total] != "0":
            yield {name: fields[place] for name, place in places}


def add(counted: dict[str, Counted], rows: Iterable[Row]) -> dict[str, Counted]:
    """Add a worker's lines to what was counted before; names are tamed ones."""
    for row in rows:
        group, _, part = row["pxname"].rpartition("_")
        here = counted.get(group)
        if here is None:
            continue
        if row["svname"] != "BACKEND":
            if part in (*SIDES, HASHED):
                server = here.servers.setdefault(row["svname"], Server())
                before = server.admitted
                server.add(row)
                here.admitted += server.admitted - before
        elif part == "soft":
            here.refused_soft += _count(row, "stot")
        elif part == "hard":
            here.refused_hard += _count(row, "stot")
    return counted


def held(rows: Iterable[Row]) -> Held:
    """What is in every server of this worker now."""
    found: Held = {}
    for row in rows:
        if row["svname"] != "BACKEND":
            found.setdefault(row["pxname"], {})[row["svname"]] = _count(row, "scur")
    return found


def write(path: Path, counted: Mapping[str, Counted]) -> None:
    """Keep what was counted for the workers to come."""
    kept = {name: asdict(each) for name, each in counted.items()}
    for group in kept.values():
        for server in group["servers"].values():
            server["open"] = server["queue"] = 0  # what is in the old worker ends there
    draft = path.with_name(path.name + ".draft")
    draft.write_text(json.dumps(kept, sort_keys=True))
    os.replace(draft, path)


def read(path: Path, groups: Iterable[str]) -> dict[str, Counted]:
    """What earlier workers had counted for these groups; zeros where there is nothing."""
    kept: dict[str, Any] = {}
    # Lost or damaged, the counters begin again; nothing else depends on them.
    with contextlib.suppress(FileNotFoundError, ValueError):
        kept = json.loads(path.read_text())
    return {name: _counted(kept.get(name)) for name in groups}


def _counted(kept: dict[str, Any] | None) -> Counted:
    if kept is None:
        return Counted()
    servers = {name: Server(**each) for name, each in kept["servers"].items()}
    return Counted(kept["admitted"], kept["refused_soft"], kept["refused_hard"], servers)


def _count(row: Row, name: str) -> int:
    return int(row.get(name) or 0)
