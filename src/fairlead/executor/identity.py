"""A process's identity: its number, start time and boot. A number alone may be reused.

Used by the shim and by the executor; standard library only.
"""

import os
import signal
from collections.abc import Iterator
from typing import Any


def boot_id() -> str:
    """This boot of the machine: start times count from it, so they mean nothing without it."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


def stat(pid: int) -> tuple[int, int] | None:
    """Parent and start time (clock ticks since boot) of a process; None when there is none.

    A zombie is none: it runs nothing and holds nothing but its number.
    """
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


def processes() -> Iterator[int]:
    for name in os.listdir("/proc"):
        if name.isdigit():
            yield int(name)


def descendants(root: int) -> list[dict[str, Any]]:
    """Everything below a process. Orphans stay below it when it is their subreaper."""
    boot, parents = boot_id(), {}
    for pid in processes():
        found = stat(pid)
        if found is not None:
            parents[pid] = found
    below, grown = {root}, True
    while grown:
        more = {pid for pid, (parent, _) in parents.items() if parent in below} - below
        below, grown = below | more, bool(more)
    return [
        {"pid": pid, "start_ticks": parents[pid][1], "boot": boot} for pid in sorted(below - {root})
    ]


def marked(mark: str, uid: int) -> list[dict[str, Any]]:
    """Processes of a user whose environment at their start held `mark` (`NAME=value`).

    For the case that no shim is left that knows the tree. A process may have hidden from this.
    """
    boot, wanted, matches = boot_id(), mark.encode(), []
    for pid in processes():
        found = stat(pid)
        try:
            if found is None or os.stat(f"/proc/{pid}").st_uid != uid:
                continue
            with open(f"/proc/{pid}/environ", "rb") as file:
                if wanted in file.read().split(b"\0"):
                    matches.append({"pid": pid, "start_ticks": found[1], "boot": boot})
        except OSError:
            continue
    return matches
