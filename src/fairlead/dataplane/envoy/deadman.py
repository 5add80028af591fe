"""The process that judges the heartbeat for an Envoy, which cannot.

    python -I -S deadman.py FOLDER FALLBACK_AFTER_MS

It runs in a session of its own and outlives the agent. Five times a second it looks how old the
heartbeat is. When it is too old it moves the routes into place that the agent had prepared for that
case; when it is fresh again, those of the active tables. It decides nothing, and takes little of
the standard library: it stays in memory as long as Envoy runs. The agent calls `settle` too, so
that routes are back the moment it is.
"""

import contextlib
import os
import signal
import sys
import time

if __name__ == "__main__":  # `-I` gives a script no path to its own package
    sys.path.append(os.path.abspath(os.path.join(os.path.dirname(__file__), *[".."] * 3)))

from fairlead.host import files

BEAT, LOCK, LIFE, ALONE, ROUTES, LOG = "beat", "lock", "deadman", "alone", "routes", "access.log"
FILES = (BEAT, LOCK, LIFE, ALONE)
ROUTE_NOW, ROUTE_ACTIVE, ROUTE_ALONE = ".json", ".active", ".alone"
_POLL_S = 0.2
_LOG_BYTES_MAX = 8 * 2**20  # without an agent that reads it


def now_ms() -> int:
    """The same clock in every process, counting through suspends, never set."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


def beat(folder: str, at_ms: int) -> None:
    """Write down that the agent was alive at that time: in place, for it happens all the time."""
    descriptor = os.open(os.path.join(folder, BEAT), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.pwrite(descriptor, b"%020d %020d" % (at_ms, at_ms), 0)
    finally:
        os.close(descriptor)


def age_ms(folder: str) -> int:
    """How old the heartbeat is; negative when it is from before a reboot, or there is none."""
    for _ in range(3):  # written twice over: a reader that comes between the two sees it
        try:
            with open(os.path.join(folder, BEAT), "rb") as file:
                first, _, second = file.read().partition(b" ")
            if first == second:
                return now_ms() - int(first)
        except (FileNotFoundError, ValueError):
            break
    return -1


def alone(folder: str) -> bool:
    return os.path.exists(os.path.join(folder, ALONE))


def settle(folder: str, fallback_after_ms: int) -> None:
    """Make the routes in place fit the age of the heartbeat. Done twice it does nothing."""
    if alone(folder) == _dead(folder, fallback_after_ms):
        return
    with files.holding(os.path.join(folder, LOCK)):  # one at a time moves routes
        dead = _dead(folder, fallback_after_ms)
        if alone(folder) == dead:
            return
        routes = os.path.join(folder, ROUTES)
        source = ROUTE_ALONE if dead else ROUTE_ACTIVE
        for name in sorted(os.listdir(routes)):
            if name.endswith(source):
                place(os.path.join(routes, name), name.removesuffix(source) + ROUTE_NOW)
        # Last, so that a process killed on the way leaves the rest to be done.
        mark = os.path.join(folder, ALONE)
        if dead:
            files.replace(mark, b"", durable=False)
        else:
            os.unlink(mark)


def place(source: str, name: str) -> None:
    """Move a copy of a prepared file into place: Envoy takes it up whole."""
    with open(source, "rb") as file:
        files.replace(os.path.join(os.path.dirname(source), name), file.read(), durable=False)


def _dead(folder: str, fallback_after_ms: int) -> bool:
    return not 0 <= age_ms(folder) < fallback_after_ms


def _watch(folder: str, fallback_after_ms: int, life: int) -> None:
    """Until the file that says we live is taken away."""
    path, ours, log = os.path.join(folder, LIFE), os.fstat(life).st_ino, os.path.join(folder, LOG)
    with contextlib.suppress(FileNotFoundError):
        while os.stat(path).st_ino == ours:
            # A full disk, or a group that goes just now: the next look finds it better.
            with contextlib.suppress(OSError):
                settle(folder, fallback_after_ms)
                # Envoy appends to its log for ever; without an agent nothing else empties it.
                if os.path.getsize(log) > _LOG_BYTES_MAX:
                    os.truncate(log, 0)
            time.sleep(_POLL_S)


def main(folder: str, fallback_after_ms: int) -> int:
    """Take the lock that says we live, leave the caller, watch. A second one ends here."""
    life = files.try_lock(os.path.join(folder, LIFE))
    if life is None:
        return 0
    if os.fork():
        os._exit(0)
    os.setsid()
    for number in (signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    _watch(folder, fallback_after_ms, life)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
