"""What HAProxy has counted, and what the workers before this one had counted.

A reload starts a worker with counters at zero, so what was counted until then is kept in a file and
added. Requests that the old worker admits in the milliseconds between the last look and the new
worker's start are not counted; they are served all the same.
"""

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import msgspec

from fairlead.dataplane.haproxy.config import Held
from fairlead.dataplane.proxy import HASHED, SIDES, BackendCount, GroupCount, replace_text

COMMAND = "show stat -1 6 -1"  # backends and servers of every proxy


Row = Mapping[str, str]
_FIELDS = (
    *("pxname", "svname", "qcur", "scur", "stot", "econ", "eresp"),
    *(f"hrsp_{kind}xx" for kind in "12345"),
)


def parse(answer: str) -> Iterator[Row]:
    """The lines of `show stat` with a request, and the columns of interest.

    There are eighty more; those that hold free text, and so might hold a comma, come after ours.
    A server that was never sent anything, as on the hashed side, is left out.
    """
    lines = answer.removeprefix("# ").splitlines()
    header = lines[0].split(",") if lines else []
    places = [(name, header.index(name)) for name in _FIELDS]
    total, cut = header.index("stot"), max(place for _, place in places) + 1
    for line in lines[1:]:
        fields = line.split(",", cut)
        if len(fields) > cut and fields[total] != "0":
            yield {name: fields[place] for name, place in places}


def add(counted: dict[str, GroupCount], rows: Iterable[Row]) -> dict[str, GroupCount]:
    """Add a worker's lines to what was counted before; names are escaped."""
    for row in rows:
        group, _, part = row["pxname"].rpartition("_")
        here = counted.get(group)
        if here is None:
            continue
        if row["svname"] != "BACKEND":
            if part in (*SIDES, HASHED):
                _add(here.backends.setdefault(row["svname"], BackendCount()), row)
                here.admitted += _count(row, "stot")
        elif part == "soft":
            here.refused_soft += _count(row, "stot")
        elif part == "hard":
            here.refused_hard += _count(row, "stot")
    return counted


def held(rows: Iterable[Row]) -> Held:
    servers: dict[str, dict[str, int]] = {}
    for row in rows:
        if row["svname"] != "BACKEND":
            servers.setdefault(row["pxname"], {})[row["svname"]] = _count(row, "scur")
    return servers


def write(path: Path, counted: Mapping[str, GroupCount]) -> None:
    """What is in the old worker ends there, so it is not kept."""
    for group in counted.values():
        for backend in group.backends.values():
            backend.open = backend.queue = 0
    replace_text(path, msgspec.json.encode(counted).decode())


def read(path: Path, groups: Iterable[str]) -> dict[str, GroupCount]:
    """What earlier workers had counted for these groups; zeros where there is nothing."""
    kept: dict[str, GroupCount] = {}
    # Lost or damaged, the counters begin again; nothing else depends on them.
    with contextlib.suppress(FileNotFoundError, msgspec.MsgspecError):
        kept = msgspec.json.decode(path.read_bytes(), type=dict[str, GroupCount])
    return {name: kept.get(name, GroupCount()) for name in groups}


def _add(count: BackendCount, row: Row) -> None:
    count.admitted += _count(row, "stot")
    count.connect_failures += _count(row, "econ")
    count.successes += sum(_count(row, f"hrsp_{kind}xx") for kind in "1234")
    count.errors += _count(row, "hrsp_5xx") + _count(row, "eresp")
    count.open += _count(row, "scur")
    count.queue = (count.queue or 0) + _count(row, "qcur")


def _count(row: Row, name: str) -> int:
    return int(row.get(name) or 0)
