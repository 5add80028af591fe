"""Clocks. Decisions never read one: `now_ms` is a field of what they are given."""

import socket
import time
from collections.abc import Callable
from functools import cache

_WALL_AT_START_NS = time.time_ns() - time.monotonic_ns()


def now_ms() -> int:
    """Wall-clock milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def steady_now_ms() -> int:
    """The same as of this process's start, carried on by the monotonic clock: it never jumps."""
    return (_WALL_AT_START_NS + time.monotonic_ns()) // 1_000_000


def monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def since_boot_ms() -> int:
    """Milliseconds since the boot, time asleep included: the same in every process."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


@cache
def boot_id() -> str:
    """This boot of the machine: times since it mean nothing without it."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


def read_clocks() -> tuple[int, int, str, str]:
    """All that the machine says of the time: the wall clock, the time since the boot, which boot
    and which machine."""
    return now_ms(), since_boot_ms(), boot_id(), socket.gethostname()


def wait_until(ready: Callable[[], bool], *, within_s: float, every_s: float = 0.01) -> bool:
    """Ask again and again until `ready()`; False when that took longer than `within_s`."""
    deadline = time.monotonic() + within_s
    while not ready():
        if time.monotonic() > deadline:
            return False
        time.sleep(every_s)
    return True
