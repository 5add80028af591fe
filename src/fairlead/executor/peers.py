"""Which job a process belongs to: asked for the processes that call the control plane.

    confinement   how it is known                        how a process could hide
    cgroup2       /proc/PID/cgroup                       not, unless it is root
    freezer       /proc/PID/cgroup                       not, unless it is root
    tree          its ancestors; its environment, once   by a new environment, once its shim was
                  its shim is gone                       killed (weaker)

Standard library only. The process may end and its number be used again meanwhile: the caller holds
a pidfd, and looks whether the process still lives after it has the answer.
"""

import contextlib
import os
from collections.abc import Mapping

from fairlead.executor import confine

_EXITING = 0x4
"""PF_EXITING: from here on the kernel shows the root as the cgroup (v1) of a process."""
_MARK = b"FAIRLEAD_JOB="
_LOOKS = 20  # at ancestors that end while they are read
Identity = tuple[int, int]
"""Number and start time of a process."""


def job_of(
    pid: int, *, cgroups: Mapping[str, str], shims: Mapping[Identity, str] | None, around: set[str]
) -> str | None:
    """The job that a process belongs to; "" for one that is not of these, None for none.

    `cgroups` and `shims` name the jobs; shims only where jobs are confined by their tree. `around`:
    the cgroups that do not count. Raises ProcessLookupError for a process that has ended.
    """
    found, names = None, job_cgroups(pid) - around
    if names:
        found = next((cgroups[name] for name in sorted(names) if name in cgroups), "")
    elif shims is not None:
        found = next((shims[each] for each in _ancestors(pid) if each in shims), None)
        if found is None and (job := marked_job(pid)) is not None:
            found = job if job in cgroups.values() else ""
    require_living(pid)
    return found


def require_living(pid: int) -> None:
    """Raises ProcessLookupError for a process that is ending or has ended; what was read of it
    before is not to be relied on then. Nothing that ends comes back."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        living = fields[0] not in (b"Z", b"X") and not int(fields[6]) & _EXITING
    except (OSError, IndexError, ValueError):
        living = False
    if not living:
        raise ProcessLookupError(f"process {pid} has ended")


def job_cgroups(pid: int | str) -> set[str]:
    """The names of the jobs' cgroups that a process is in, in whatever hierarchy."""
    names = set[str]()
    try:
        with open(f"/proc/{pid}/cgroup", "rb") as file:
            for line in file:
                path = line.rstrip(b"\n").split(b":", 2)[-1].split(b"/")
                with contextlib.suppress(ValueError):
                    below = path[path.index(confine.CGROUP.encode()) + 1 :]
                    names.add(os.fsdecode(below[0]) if below else "")
    except OSError as error:
        raise ProcessLookupError(f"process {pid} has ended") from error
    return names


def ancestors(pid: int) -> list[Identity]:
    """A process, its parent and so on. Raises ProcessLookupError where one ends meanwhile: its
    children are then below another, and the caller asks again."""
    found: list[Identity] = []
    while pid > 0:
        own = confine.stat(pid)
        # Read again after the parent's: while it is still the parent, no other has its number.
        parent = None if own is None else confine.stat(own[0])
        if own is None or confine.stat(pid) != own or (parent is None and own[0] > 0):
            raise ProcessLookupError(f"process {pid} has ended")
        found.append((pid, own[1]))
        pid = own[0]
    return found


def _ancestors(pid: int) -> list[Identity]:
    for _ in range(_LOOKS):
        with contextlib.suppress(ProcessLookupError):
            return ancestors(pid)
    return ancestors(pid)


def marked_job(pid: int) -> str | None:
    """The job that the environment names with which a process was started; None: none."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            variables = file.read().split(b"\0")
    except OSError:
        return None
    found = (line.removeprefix(_MARK) for line in variables if line.startswith(_MARK))
    return next((os.fsdecode(job) for job in found), None)
