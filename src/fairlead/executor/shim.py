"""The process beside every job: starts the command, keeps its output, writes down how it ended.

    python -I -S shim.py JOB_FOLDER

It lives in its own session, so it outlives the control plane. Requests are files in the
job's folder, announced by a SIGUSR1: `stop.json`, `paused.json`, `width.json`. It
writes `shim.json` (its identity), `command.json` (the command's, before it may begin)
and `exit.json`. Standard library only, and little of it: one stays in memory for every job.
"""

import contextlib
import errno
import fcntl
import os
import select
import signal
import struct
import sys
import termios
import time
from math import inf
from typing import Any

if __name__ == "__main__":  # `-I` gives a script no path to its own package
    sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from fairlead.core.invariant import known
from fairlead.executor import bounds, confine, launch
from fairlead.host import clock, files

LOCK, JOB, SHIM, COMMAND = "lock", "job.json", "shim.json", "command.json"
STOP, PAUSED, EXIT, WIDTH = "stop.json", "paused.json", "exit.json", "width.json"
WARNING = "warning.json"
OUTPUT, OLDER_OUTPUT, DROPPED = "output.log", "output.1.log", "dropped.json"
KEYS, TYPED = "keys.json", "typed"
"""Ctrl-C and the terminal's size; and a FIFO with what is typed."""
WAKE = signal.SIGUSR1
_WARNINGS = {"HUP": signal.SIGHUP, "USR1": signal.SIGUSR1, "USR2": signal.SIGUSR2}
_CHUNK = 64 * 1024
_READS_AFTER = 1024
"""A pipe holds a MiB at most, a terminal less; one read takes 4 KiB or more of what is there."""
_WAIT_MAX_S = 86_400.0
"""Looked at again by then: poll counts milliseconds in 32 bits, which are 24.8 days."""
_RETRY_S, _WAIT_S_MAX = 0.02, 3600.0


class Shim:
    """One job from its start to its end."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._job = job = known(
            files.read_json(self._path(JOB)), "a job is written before its shim"
        )
        self._confine = confine.described(job)
        self._output = OutputFile(folder, job["log_bytes_max"], job.get("output_mode", 0o600))
        self._poll = select.poll()
        self._wake = self._listen()
        self._pipe = self._complaint = -1
        self._reason = b""  # why the command could not be started, as its own process reports
        self._child, self._paused, self._deadline = 0, False, inf
        self._status: int | None = None
        self._widths = 0  # how many changes of its width the command was signalled
        self._warned = ""  # the last decision that the command was warned by
        self._minors: list[int] = job.get("bounds", {}).get("devices", {}).get("value", [])
        self._narrow_at = inf  # when the devices that it gives up are closed to it
        self._interrupts, self._size, self._typed, self._typing = 0, [0, 0], -1, b""

    def run(self) -> None:
        """Start the command unless an earlier shim did, and stay until it is over."""
        if files.read_json(self._path(EXIT)) or files.read_json(self._path(COMMAND)):
            return  # the executor says what became of it; no command is started twice
        # No identity outlives its boot, so this one need not survive a power cut.
        files.replace_json(self._path(SHIM), confine.identify(os.getpid()), durable=False)
        # From here on requests reach us by signal; those written before are looked for now.
        if files.read_json(self._path(STOP)):
            self._record(signal=signal.SIGTERM, reason="stopped before it was started")
            return
        try:
            self._start()
        except OSError as error:
            self._give_up(error)
            return
        self._obey()
        while self._status is None:
            if time.monotonic() >= self._deadline:
                self._confine.kill()
                self._deadline = time.monotonic() + _RETRY_S
            if time.monotonic() >= self._narrow_at:
                self._narrow_at = inf
                bounds.filter_devices(self._job, self._minors)
            until = min(self._deadline, self._narrow_at)
            self._step(min(until - time.monotonic(), _WAIT_S_MAX))
        self._end()

    def _give_up(self, error: OSError) -> None:
        """The command was never let go: its process ends by itself, or was killed."""
        status = os.waitpid(self._child, 0)[1] if self._child else 0
        if os.WIFSIGNALED(status):
            self._record(signal=os.WTERMSIG(status), reason="killed before it began")
        else:
            self._record(code=launch.CANNOT, reason=f"cannot be confined or recorded: {error}")

    def _listen(self) -> int:
        """Turn signals into bytes on a pipe, and outlive what is meant for the control plane."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
            signal.signal(number, signal.SIG_IGN)
        wake, written = os.pipe()
        for descriptor in (wake, written):
            os.set_blocking(descriptor, False)
        signal.set_wakeup_fd(written, warn_on_full_buffer=False)
        for number in (WAKE, signal.SIGCHLD):
            signal.signal(number, lambda *_: None)
        self._poll.register(wake, select.POLLIN)
        return wake

    def _start(self) -> None:
        """Fork, confine, write down, and only then let the child go on to the command.

        If we are killed before, the child sees its pipe close and ends without running.
        """
        self._confine.prepare()
        bounds.prepare(self._job)
        terminal = bool(self._job.get("terminal"))
        self._pipe, output = os.openpty() if terminal else os.pipe()
        if terminal:
            self._resize(24, 80)  # the user's comes later: a command that asks before it gets none
            self._open_terminal(output)
        self._complaint, error = os.pipe()
        wait, go = os.pipe()
        os.set_blocking(self._pipe, False)
        shim = os.getpid()
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        self._child = os.fork()
        if not self._child:
            os.close(go)
            launch.become(self._job, shim_pid=shim, go=wait, error=error, output=output)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for descriptor in (output, error, wait):
            os.close(descriptor)
        try:
            self._confine.join(self._child)
            bounds.join(self._job, self._child)
            files.replace_json(self._path(COMMAND), confine.identify(self._child))
            os.write(go, b"g")
        finally:
            os.close(go)
        self._poll.register(self._pipe, select.POLLIN)
        self._poll.register(self._complaint, select.POLLIN)

    def _open_terminal(self, output: int) -> None:
        """The command's terminal is its user's; what is typed comes through a FIFO, which we hold
        open for writing too, so that it never ends."""
        with contextlib.suppress(OSError):
            os.fchown(output, self._job["uid"], -1)
        with contextlib.suppress(FileExistsError):
            os.mkfifo(self._path(TYPED), 0o600)
        self._typed = os.open(self._path(TYPED), os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self._poll.register(self._typed, select.POLLIN)

    def _type(self) -> None:
        """Pass on what was typed; while the command reads nothing, what is typed waits."""
        try:
            self._typing = self._typing or os.read(self._typed, 4096)
            while self._typing:
                self._typing = self._typing[os.write(self._pipe, self._typing) :]
        except BlockingIOError:
            pass
        except OSError:
            self._typing = b""  # the terminal has no user any more
        self._poll.modify(self._typed, 0 if self._typing else select.POLLIN)
        with contextlib.suppress(FileNotFoundError):  # its output has ended
            self._poll.modify(self._pipe, select.POLLIN | (select.POLLOUT if self._typing else 0))

    def _step(self, wait_s: float) -> None:
        """Wait for one thing to happen, and see to all that did."""
        for descriptor, events in self._poll.poll(min(max(0.0, wait_s), _WAIT_MAX_S) * 1000 + 1):
            if descriptor == self._wake:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wake, _CHUNK)
                self._reap()
                if self._status is None:
                    self._obey()
            elif descriptor == self._typed or (descriptor == self._pipe and self._typing):
                self._type()
                if descriptor == self._pipe and events & ~select.POLLOUT:
                    self._keep()
            elif descriptor == self._pipe:
                self._keep()
            else:
                more = os.read(self._complaint, _CHUNK)
                self._reason += more
                if not more:
                    self._poll.unregister(self._complaint)

    def _keep(self) -> bool:
        """Keep one piece of output; False when there is none, now or ever."""
        try:
            data = os.read(self._pipe, _CHUNK)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno != errno.EIO:  # of a terminal: its last user is gone
                raise
            data = b""
        if not data:
            with contextlib.suppress(KeyError):  # found empty once more, at the end
                self._poll.unregister(self._pipe)
            return False
        self._output.write(data)
        return True

    def _drain(self) -> None:
        """Keep what the command left in the pipe. A process outside that was handed the other end
        may write for ever: it must not hold the devices."""
        for _ in range(_READS_AFTER):
            if not self._keep():
                return

    def _reap(self) -> None:
        """Collect the command, and orphans that were left to us as their subreaper."""
        with contextlib.suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                if found[0] == self._child:
                    self._status = found[1]

    def _obey(self) -> None:
        """Do what the folder asks for. A later stop may shorten the grace, never lengthen it."""
        stop = files.read_json(self._path(STOP))
        width = files.read_json(self._path(WIDTH))
        if width is not None and width["number"] > self._widths:
            self._widths = width["number"]
            self._change_devices(width.get("minors", []), width.get("grace_ms", 0))
            self._signal(signal.SIGWINCH)
        warning = files.read_json(self._path(WARNING))
        if warning is not None and warning["decision"] != self._warned:
            self._warned = warning["decision"]
            self._signal(_WARNINGS[warning["signal"]])
        self._press(files.read_json(self._path(KEYS)))
        paused = files.read_json(self._path(PAUSED)) is not None and stop is None
        if paused != self._paused:
            self._confine.freeze(frozen=paused)
            self._paused = paused
        if stop is not None:
            if self._deadline == inf:
                self._signal(signal.SIGTERM)
            self._deadline = min(self._deadline, time.monotonic() + stop["grace_ms"] / 1000)

    def _change_devices(self, minors: list[int], grace_ms: int) -> None:
        """What it gets it may open at once; what it gives up, for its grace."""
        bounds.filter_devices(self._job, [*self._minors, *minors])
        self._minors, self._narrow_at = minors, time.monotonic() + grace_ms / 1000

    def _resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self._pipe, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))

    def _press(self, keys: dict[str, Any] | None) -> None:
        """Ctrl-C, and another size of the terminal; the kernel tells its programs of that."""
        if keys is None:
            return
        if self._typed >= 0 and keys["size"] != self._size:
            self._size = keys["size"]
            self._resize(*self._size)
        if keys["interrupts"] > self._interrupts:
            self._interrupts = keys["interrupts"]
            self._signal(signal.SIGINT)

    def _signal(self, number: int) -> None:
        # Our own child, not collected yet: its number cannot belong to another process.
        try:
            os.killpg(self._child, number)
        except ProcessLookupError:  # it has not yet come to lead its own group
            os.kill(self._child, number)

    def _end(self) -> None:
        """Let nothing of the job survive its command: at its exit, devices are free."""
        status = known(self._status, "the command has ended")
        while not self._confine.empty():
            self._confine.kill()
            self._step(_RETRY_S)
            self._reap()
        self._drain()
        os.set_blocking(self._complaint, False)
        with contextlib.suppress(BlockingIOError):
            self._reason += os.read(self._complaint, _CHUNK)
        reason = self._reason.decode(errors="replace") or None
        code = os.waitstatus_to_exitcode(status)
        self._record(**({"signal": -code} if code < 0 else {"code": code}), reason=reason)

    def _record(self, **how: Any) -> None:
        """The exit, durably; a disk that is full now may have room later, and we can wait."""
        dropped = self._output.dropped
        self._output.close()
        # By the time since the boot it is placed in ledger time, whatever the wall clock shows.
        ended = {"boot": clock.boot_id(), "since_boot_ms": clock.since_boot_ms()}
        exit_ = {"time_ms": clock.now_ms(), **ended, "output_dropped_bytes": dropped, **how}
        while True:
            try:
                files.replace_json(self._path(EXIT), exit_)
                break
            except OSError as error:
                if error.errno == errno.ENOENT:
                    return  # the folder is gone: the executor has forgotten the job
                time.sleep(1)
        self._confine.remove()
        bounds.remove(self._job)

    def _path(self, name: str) -> str:
        return os.path.join(self._folder, name)


class OutputFile:
    """A job's output, in two parts of half the bound. A full disk costs output, never the job."""

    def __init__(self, folder: str, bytes_max: int, mode: int = 0o600) -> None:
        self._mode = mode
        self._path, self._older = os.path.join(folder, OUTPUT), os.path.join(folder, OLDER_OUTPUT)
        self._part_max = max(1, bytes_max // 2)
        self.dropped = 0  # bytes that are no longer, or were never, on disk
        self._gone = 0  # those of them that were on disk
        self._descriptor = self._open()
        self._size = os.fstat(self._descriptor).st_size

    def write(self, data: bytes) -> None:
        """Keep what fits. The caller has already read it, so the command is never held up."""
        rest = memoryview(data)
        while rest:
            if self._size >= self._part_max:
                self._turn()
            try:
                written = os.write(self._descriptor, rest[: self._part_max - self._size])
            except OSError:
                self.dropped += len(rest)
                return
            self._size += written
            rest = rest[written:]

    def close(self) -> None:
        """Make what was kept durable, so that an exit never stands without its output."""
        with contextlib.suppress(OSError):
            os.fsync(self._descriptor)
        os.close(self._descriptor)

    def _turn(self) -> None:
        with contextlib.suppress(OSError):
            gone = os.stat(self._older).st_size
            self.dropped, self._gone = self.dropped + gone, self._gone + gone
            path = os.path.join(os.path.dirname(self._path), DROPPED)
            files.replace_json(path, {"bytes": self._gone}, durable=False)
        os.close(self._descriptor)
        os.rename(self._path, self._older)
        self._descriptor, self._size = self._open(), 0

    def _open(self) -> int:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        return os.open(self._path, flags, self._mode)


def main(folder: str) -> int:
    """Take the lock, leave the caller, be the shim. A second shim for a job ends here."""
    if files.try_lock(os.path.join(folder, LOCK)) is None:
        return 0
    if os.fork():
        os._exit(0)
    os.setsid()
    Shim(folder).run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
