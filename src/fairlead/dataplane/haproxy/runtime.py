"""The runtime socket: a line of commands in, their answers out.

HAProxy ends the answer to every command with an empty line. One that does not end so was cut off by
its death, and must not be taken for a list without entries, or for "done".
"""

import socket
from collections.abc import Sequence
from pathlib import Path

from fairlead.ports.faults import PermanentFault, TemporaryFault

_TIMEOUT_S = 10.0
_RETRY_MS = 1_000
# HAProxy reads a line into one buffer of 16 KiB.
_LINE_BYTES_MAX = 8 * 1024


def ask(path: Path, command: str, *, ends: bool = True) -> str:
    """Send one line, return all that is answered; not `ends`: whoever answers may go meanwhile."""
    try:
        with connect(path) as connection:
            connection.sendall(command.encode() + b"\n")
            connection.shutdown(socket.SHUT_WR)  # the master answers on until nobody asks
            parts = []
            while part := connection.recv(1 << 16):
                parts.append(part)
    except OSError as error:
        raise TemporaryFault(
            f"HAProxy does not answer at {path}: {error}", retry_after_ms=_RETRY_MS
        ) from error
    answer = b"".join(parts).decode(errors="replace")
    if ends and answer != "\n" and not answer.endswith("\n\n"):
        raise TemporaryFault(
            f"HAProxy ended at {path} before its answer did", retry_after_ms=_RETRY_MS
        )
    return answer


def tell(path: Path, commands: Sequence[str]) -> None:
    """Have commands carried out that answer nothing; any word of an answer is a refusal."""
    line: list[str] = []
    length = 0
    for command in (*commands, None):
        if line and (command is None or length + len(command) > _LINE_BYTES_MAX):
            answer = ask(path, "; ".join(line))
            if said := answer.strip():
                raise PermanentFault(f"HAProxy refused: {said.splitlines()[0]}")
            if len(answer) < len(line):  # an empty line for each
                raise TemporaryFault(
                    f"HAProxy ended at {path} after {len(answer)} of {len(line)} commands",
                    retry_after_ms=_RETRY_MS,
                )
            line, length = [], 0
        if command is not None:
            line.append(command)
            length += len(command) + 2


def connect(path: Path) -> socket.socket:
    """A connection to a socket of HAProxy."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(_TIMEOUT_S)
        connection.connect(str(path))
    except BaseException:
        connection.close()
        raise
    return connection
