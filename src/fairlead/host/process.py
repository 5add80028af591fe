"""Child processes in a session of their own, without our terminal and input, and ports for them;
what signals ask of this process, how it keeps memory, and how many files it may open."""

import ctypes
import errno
import itertools
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import IO, Any

from fairlead.host.kernel import DIE_WITH_PARENT

_PORTS, _ASKED = 12_000, itertools.count()
_CLAIMS, _CLAIMS_MAX = deque[socket.socket](), 256


def spawn(
    command: Sequence[str],
    *,
    output: "IO[Any] | int | None" = subprocess.DEVNULL,
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
    ends_with_us: int | None = None,
) -> "subprocess.Popen[bytes]":
    """No terminal signal reaches it. `output` takes what it writes; None: it shares our streams.

    `ends_with_us`: the signal that the kernel sends it when the calling thread ends.
    """
    return subprocess.Popen(
        command if ends_with_us is None else _ending_with_us(command, ends_with_us, env),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=None if output is None else subprocess.STDOUT,
        start_new_session=True,
        env=env,
        cwd=cwd,
    )


_ENDING = """
import ctypes, os, sys
option, number, parent = map(int, sys.argv[1:4])
ctypes.CDLL(None).prctl(option, number, 0, 0, 0)
if os.getppid() != parent:
    os._exit(1)
os.execvp(sys.argv[4], sys.argv[4:])
"""


def _ending_with_us(
    command: Sequence[str], number: int, env: Mapping[str, str] | None
) -> Sequence[str]:
    """The command behind a program that asks the kernel for the signal and becomes the command.

    A function between fork and exec would hang where another thread holds a lock of the C library
    or of OpenSSL: in the child Python lets go of what the other threads had, their connections too.
    """
    path = None if env is None else env.get("PATH", os.defpath)
    if shutil.which(command[0], path=path) is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), command[0])
    asked = (DIE_WITH_PARENT, number, os.getpid())
    return [sys.executable, "-I", "-S", "-c", _ENDING, *map(str, asked), *command]


def run_detached(
    command: Sequence[str],
    *,
    output: "IO[Any] | int" = subprocess.DEVNULL,
    env: Mapping[str, str] | None = None,
    timeout_s: float | None = None,
) -> int:
    """Run a program that leaves us by itself (it forks); its exit code when it has left.

    `output` is a file, never a pipe: the process that stays would hold it open.
    """
    process = spawn(command, output=output, env=env, cwd="/")
    try:
        return process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise


def free_port(host: str = "127.0.0.1") -> int:
    """A port that is free now, outside of those that the kernel hands to clients: any connection
    could take one of those before a server listens on it.

    No other process is given it as long as this one lives, or until this one has asked for 256
    more: a server may take seconds to listen.
    """
    ranges = Path("/proc/sys/net/ipv4/ip_local_port_range")
    low = int(ranges.read_text().split()[0]) if ranges.exists() else 32_768
    first = os.getpid() * 2_003 + next(_ASKED)
    for offset in range(_PORTS):
        port = low - 1 - (first + offset) % _PORTS
        claim = socket.socket(socket.AF_UNIX)
        try:
            # A name without a file: ports have the same namespaces, and it ends with this process.
            claim.bind(f"\0fairlead-port-{port}")
            _require_free(host, port)
        except OSError:
            claim.close()
            continue
        _CLAIMS.append(claim)
        if len(_CLAIMS) > _CLAIMS_MAX:
            _CLAIMS.popleft().close()
        return port
    raise OSError(errno.EADDRINUSE, f"no port below {low} is free")


def _require_free(host: str, port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((host, port))


# -- signals --------------------------------------------------------------------------------------


def on_signals(numbers: Sequence[int], act: Callable[[], object]) -> None:
    """Call `act`, which may take locks, for each of these signals that comes, on a thread of its
    own: a handler interrupts the main thread wherever it is, and `Event.set` there waits for ever
    where that is just inside `Event.wait`, and holds the lock that both take."""
    heard: SimpleQueue[int] = SimpleQueue()  # its `put` may interrupt itself
    for number in numbers:
        signal.signal(number, lambda number, _: heard.put(number))

    def serve() -> None:
        while True:
            heard.get()
            act()

    threading.Thread(target=serve, name="signals", daemon=True).start()


# -- memory ---------------------------------------------------------------------------------------


_ARENA_MAX, _MMAP_THRESHOLD = -8, -3
"""Of glibc's `mallopt`."""


def keep_little() -> None:
    """For a process of many threads that must stay small. By default glibc gives each thread a pool
    of its own and keeps what was freed in it. Another C library is left as it is."""
    try:
        library = ctypes.CDLL(None)
        library.mallopt(_ARENA_MAX, 2)
        library.mallopt(_MMAP_THRESHOLD, 128 * 1024)
    except (OSError, AttributeError):
        return


FILES_MAX = 65_536


def allow_files() -> None:
    """As many open files as we may have: the lower bound is there for programs that use `select`,
    and containers of other users decide how many a node agent needs."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = FILES_MAX if hard == resource.RLIM_INFINITY else min(hard, FILES_MAX)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
