"""How long a container's runnable threads waited for a CPU: shortage where nothing is throttled.

From the run-queue delay of its threads (/proc/PID/task/TID/schedstat), which counts each of them.
Where there are too many threads to read, or their processes are not visible (an agent in a PID
namespace of its own), from the container's pressure file (v2), which counts the time in which at
least one of them waited. Without either the wait is not known, and never zero. v1 has no pressure
files: those of a cgroup2 mount beside it belong to other cgroups.
"""

import os
import time
from typing import NamedTuple

from fairlead.node import kernel_files
from fairlead.node.kernel_files import FILE_BYTES_MAX, whole_number

TASKS_MAX = 256
"""Reading one costs some 10 µs: a container with more of them costs half a percent of a core."""
_TASKS_BYTES_MAX = 16 * TASKS_MAX
_US_PER_NS = 1000


class Waits(NamedTuple):
    """What was waited since the first reading in µs, and how often threads began to run; None: not
    known."""

    waited_us: int | None
    runs: int | None


_UNKNOWN = Waits(None, None)
_Readings = dict[bytes, tuple[int, int, int]]
"""Of each thread: how long it has run and waited, and how often it began to run."""
_WHOLE = b""
"""Stands for the whole container, in what its pressure file says."""


class WaitMeter:
    """Adds up the waits of one container, by whichever source is readable. Given the descriptors
    of its list of threads and of its pressure file, where it has one."""

    def __init__(self, tasks: int, pressure: int | None = None) -> None:
        self._tasks, self._pressure = tasks, pressure
        self._waited_us = self._runs = self._read_ns = 0
        self._last: _Readings | None = None

    def read(self) -> Waits:
        at_ns, now, before = time.monotonic_ns(), self._read_tasks(), self._last
        if now is None:
            now = self._read_pressure()
        self._last = now
        if now is None:
            return _UNKNOWN
        whole, elapsed_us = _WHOLE in now, (at_ns - self._read_ns) // _US_PER_NS
        self._read_ns = at_ns
        if before is not None:
            if whole != (_WHOLE in before):
                return _UNKNOWN  # the source has changed: these two have no difference
            self._add(before, now, None if whole else elapsed_us)
        return Waits(self._waited_us, None if whole else self._runs)

    def _add(self, before: _Readings, now: _Readings, elapsed_us: int | None) -> None:
        """A thread that is new counts since it began; one that ended counts no more. The kernel
        counts a thread's wait when it ends: no more of it counts than the thread did not run."""
        for thread, (ran, waited, runs) in now.items():
            was = before.get(thread, _NOTHING)
            grown = max(0, waited - was[1])
            if elapsed_us is not None:
                grown = min(grown, max(0, elapsed_us - (ran - was[0])))
            self._waited_us += grown
            self._runs += max(0, runs - was[2])

    def close(self) -> None:
        os.close(self._tasks)
        if self._pressure is not None:
            os.close(self._pressure)

    def _read_tasks(self) -> _Readings | None:
        """The delays of all threads; None where not all can be read."""
        try:
            data = os.pread(self._tasks, _TASKS_BYTES_MAX, 0)
        except OSError:
            return None
        tasks = data.split()
        if len(data) == _TASKS_BYTES_MAX or len(tasks) > TASKS_MAX or b"0" in tasks:
            return None
        found = ((task, _delays(task)) for task in tasks)
        # One that is not there ended while we looked.
        delays = {task: delay for task, delay in found if delay is not None}
        return delays if delays or not tasks else None

    def _read_pressure(self) -> _Readings | None:
        if self._pressure is None:
            return None
        try:
            stall = kernel_files.pressure(os.pread(self._pressure, FILE_BYTES_MAX + 1, 0))
        except OSError:
            return None
        return None if stall is None else {_WHOLE: (0, stall.some_us, 0)}


_NOTHING = (0, 0, 0)


def _delays(task: bytes) -> tuple[int, int, int] | None:
    """How long a thread ran and waited in µs, and how often it ran; None where it is gone, or the
    kernel does not count."""
    try:
        descriptor = os.open(b"/proc/" + task + b"/schedstat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fields = os.read(descriptor, 128).split()
    except OSError:
        return None
    finally:
        os.close(descriptor)
    numbers = [whole_number(field) for field in fields]
    match numbers:
        case [int(ran_ns), int(delay_ns), int(runs)]:
            return ran_ns // _US_PER_NS, delay_ns // _US_PER_NS, runs
    return None
