"""The runtime socket: a line of commands in, their answers out."""

import socket
from collections.abc import Sequence
from pathlib import Path

from fairlead.ports.faults import PermanentFault, TemporaryFault

_TIMEOUT_S = 10.0
_RETRY_MS = 1_000
# HAProxy reads a line into one buffer of 16 KiB.
_LINE_BYTES_MAX = 8 * 1024


def ask(path: Path, command: str) -> str:
    """Send one line, return all that is answered."""
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
    return b"".join(parts).decode(errors="replace")


def tell(path: Path, commands: Sequence[str]) -> None:
    """Have commands carried out that answer nothing; any word of an answer is a refusal."""
    line: list[str] = []
    length = 0
    for command in (*commands, None):
        if line and (command is None or length + len(command) > _LINE_BYTES_MAX):
            answer = ask(path, "; ".join(line)).strip()
            if answer:
                raise PermanentFault(f"HAProxy refused: {answer.splitlines()[0]}")
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
