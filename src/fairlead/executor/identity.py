"""A process's identity: its number, start time and boot. A number alone may be reused.

Used by the shim and by the executor; standard library only.
"""

import contextlib
import os
import signal
from typing import Any


def boot_id() -> str:
    """This boot of the machine: start times count from it, so they mean nothing without it."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


def stat(pid: int) -> tuple[int, int] | None:
    """Parent and start time (ticks since boot) of a process; None without one, or for a zombie."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The command's name stands in parentheses and may itself hold any of these bytes.
            fields = file.read().rpartition(b")")[2].split()
        return None if fields[0] in (b"Z", b"X") else (int(fields[1]), int(fields[19]))
    except (OSError, IndexError, ValueError):
        return None


def identify(pid: int) -> dict[str, Any]:
    """The identity of a living process, as it is written into the job's folder."""
    found = stat(pid)
    if found is None:
        raise ProcessLookupError(f"process {pid} is gone")
    return {"pid": pid, "start_ticks": found[1], "boot": boot_id()}


def send(identity: dict[str, Any] | None, number: int) -> bool:
    """Signal this very process; False when it is gone, even if another has its number now.

    The descriptor is opened before the start time is compared, so the process that was compared
    is the process that is signalled.
    """
    if identity is None or identity.get("boot") != boot_id():
        return False
    pid = int(identity["pid"])
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        found = stat(pid)
        if found is None or found[1] != identity["start_ticks"]:
            return False
        signal.pidfd_send_signal(descriptor, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(descriptor)
    return True


def living() -> list[tuple[dict[str, Any], int]]:
    """The identity and the parent of every process."""
    boot, rows = boot_id(), []
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        if (found := stat(pid)) is not None:
            rows.append(({"pid": pid, "start_ticks": found[1], "boot": boot}, found[0]))
    return rows


def descendants(root: int) -> list[dict[str, Any]]:
    """Everything below a process. Orphans stay below it when it is their subreaper."""
    rows = living()
    below, more = {root}, {root}
    while more:
        more = {process["pid"] for process, parent in rows if parent in below} - below
        below |= more
    return [process for process, _ in rows if process["pid"] in below - {root}]


def marked(mark: str, uid: int) -> list[dict[str, Any]]:
    """Processes of a user whose environment at their start held `mark` (`NAME=value`).

    For the case that no shim is left that knows the tree. A process may have hidden from this.
    """
    matches = []
    for process, _ in living():
        place = f"/proc/{process['pid']}"
        with contextlib.suppress(OSError):
            if os.stat(place).st_uid == uid:
                with open(f"{place}/environ", "rb") as file:
                    if mark.encode() in file.read().split(b"\0"):
                        matches.append(process)
    return matches
