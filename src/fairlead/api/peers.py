"""Who is at the other end of a connection: the kernel's word, and whether it is a run's process.

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
_NETLINK_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST = 4, 20, 1
_HEADER = struct.Struct("=IHHII")
_ASKED = struct.Struct("=BBBxI4s4s12x4s12xI8s")
_TOLD = struct.Struct("=BB2x48x12xI")
_ESTABLISHED = 1


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


def tcp_user(connection: socket.socket) -> int | None:
    """The user of the other end of a connection over loopback; None where the kernel does not tell,
    and once that end is closed. It tells peers apart, and gives no rights."""
    try:
        (own, own_port), (address, port) = connection.getsockname(), connection.getpeername()
        ends = struct.pack(">HH", port, own_port), socket.inet_aton(address), socket.inet_aton(own)
        asked = _ASKED.pack(socket.AF_INET, socket.IPPROTO_TCP, 0, 2**32 - 1, *ends, 0, b"\xff" * 8)
        header = _HEADER.pack(_HEADER.size + len(asked), _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, 0, 0)
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as kernel:
            kernel.send(header + asked)
            told = kernel.recv(4096, socket.MSG_DONTWAIT)
        if _HEADER.unpack_from(told)[1] != _SOCK_DIAG_BY_FAMILY:
            return None
        _, state, uid = _TOLD.unpack_from(told, _HEADER.size)
    except (OSError, ValueError, struct.error):  # remote, IPv6, or a kernel without it
        return None
    return int(uid) if state == _ESTABLISHED else None  # one that is closed has no user any more


def _pidfd(connection: socket.socket, pid: int) -> int:
    """The very process that connected. Before Linux 6.5 it is the one that has its number now."""
    with contextlib.suppress(OSError):
        return connection.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
    return os.pidfd_open(pid)


def _ended(pidfd: int) -> bool:
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))
