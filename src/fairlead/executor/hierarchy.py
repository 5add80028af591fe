"""Which confinement this machine offers: cgroup2, else the v1 freezer, else the process tree.

The node agent has its own, richer reading of the same file (`node.cgroup_mounts`); the two are
siblings that may not import each other, and all that is needed here is a place to make folders.
"""

import contextlib
import os
import re
from pathlib import Path
from typing import Literal

from fairlead.executor.confine import CGROUP

Kind = Literal["cgroup2", "freezer", "tree"]
KINDS: tuple[Kind, ...] = ("cgroup2", "freezer", "tree")
_ESCAPE = re.compile(r"\\([0-7]{3})")


def find(kinds: tuple[Kind, ...] = KINDS) -> tuple[Kind, str]:
    """The first of `kinds` that works here, tried and not guessed, and the folder for its cgroups.

    The tree always works, so it is the answer when nothing else does.
    """
    for kind, point in _mounted():
        if kind in kinds and _works(kind, Path(point)):
            return kind, str(Path(point) / CGROUP)
    return "tree", ""


def _mounted() -> list[tuple[Kind, str]]:
    """Mount points by preference: cgroup2 before the freezer, shorter paths before longer ones."""
    found: list[tuple[Kind, str]] = []
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/mountinfo").read_bytes().split(b"\n"):
            left, _, right = os.fsdecode(line).partition(" - ")
            fields, rest = left.split(" "), right.split(" ")
            if len(fields) < 6 or len(rest) < 3:
                continue
            point = _ESCAPE.sub(lambda match: chr(int(match[1], 8)), fields[4])
            if rest[0] == "cgroup2":
                found.append(("cgroup2", point))
            elif rest[0] == "cgroup" and "freezer" in rest[2].split(","):
                found.append(("freezer", point))
    return sorted(found, key=lambda mount: (KINDS.index(mount[0]), len(mount[1]), mount[1]))


def _works(kind: Kind, point: Path) -> bool:
    """Whether a cgroup can be made here and has what we need; the trial is removed again."""
    needed = "cgroup.kill" if kind == "cgroup2" else "freezer.state"
    trial = point / CGROUP / f"trial-{os.getpid()}-{os.urandom(4).hex()}"
    try:
        trial.mkdir(parents=True)
        works = os.access(trial / needed, os.W_OK) and os.access(trial / "cgroup.procs", os.W_OK)
    except OSError:
        works = False
    with contextlib.suppress(OSError):
        trial.rmdir()
        trial.parent.rmdir()
    return works
