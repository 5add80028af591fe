"""Who is at the other end of the Unix socket: the kernel's word, and whether it is a run's process.

A run's process has its user's uid, and not its user's rights: what a run may do ends with the run,
and what the user may do does not. The process that connected counts, not the one that sends the
request. One that ended since then may have been a run's, so it is treated as one.
"""

import contextlib
import os
import select
import socket
import struct
from collections.abc import Callable
from typing import NamedTuple

JobOf = Callable[[int], str | None]
"""The job of a process: "" for one that is not known, None where it is no run's process; raises
ProcessLookupError for a process that has ended."""
_CREDENTIALS = struct.Struct("3i")
_SO_PEERPIDFD = 77  # since Linux 6.5; Python has no name for it


class Peer(NamedTuple):
    """A user of this machine, or a process of one of its runs."""

    uid: int
    in_run: bool = False
    job: str = ""
    """The job that it is a process of, where it is known."""


def peer_of(connection: socket.socket, job_of: JobOf | None) -> Peer:
    """`job_of` None: runs are elsewhere, in pods."""
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(data)
    # Number 0: it is outside of our PID namespace, and the runs that we start are inside.
    if job_of is None or pid == 0:
        return Peer(uid)
    try:
        descriptor = _pidfd(connection, pid)
        try:
            job = job_of(pid)
            if _ended(descriptor):  # and another process may have its number
                raise ProcessLookupError
        finally:
            os.close(descriptor)
    except OSError:
        return Peer(uid, in_run=True)
    return Peer(uid) if job is None else Peer(uid, in_run=True, job=job)


def _pidfd(connection: socket.socket, pid: int) -> int:
    """The very process that connected. Before Linux 6.5 it is the one that has its number now."""
    with contextlib.suppress(OSError):
        return connection.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
    return os.pidfd_open(pid)


def _ended(pidfd: int) -> bool:
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))
