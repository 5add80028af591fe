"""Keeping hold of everything a job started: a cgroup where there is one, else the process tree.

    kind       a grandchild that daemonises     a fork bomb          after the shim was killed
    cgroup2    dies (cgroup.kill, atomic)       dies                 dies
    freezer    dies (freeze, kill, thaw)        dies                 dies
    tree       dies: the shim is its subreaper  may outrun the kill  dies if its environment still
                                                                     names the job (weaker)

Used by the shim and by the executor; standard library only. A command that runs as root can leave
any cgroup; that is one reason why it needs `allow_root`.
"""

import contextlib
import os
import signal
from typing import Any

from fairlead.executor import identity

CGROUP = "fairlead-exec"
"""All cgroups of all executors on a machine lie below this one."""


class Confinement:
    """What holds a job's processes. All methods may be repeated; all raise OSError."""

    kind = ""

    def prepare(self) -> None:
        """Make it ready for the first process."""

    def join(self, pid: int) -> None:
        """Put a process in; its children follow by themselves."""

    def kill(self) -> None:
        """SIGKILL to everything inside; `empty` says when it has worked."""
        raise NotImplementedError

    def empty(self) -> bool:
        """Whether nothing is left inside."""
        raise NotImplementedError

    def freeze(self) -> None:
        """Stop everything inside in place."""
        raise NotImplementedError

    def thaw(self) -> None:
        """Let it go on."""
        raise NotImplementedError

    def remove(self) -> None:
        """Leave nothing behind; does nothing while something is inside."""


class _Cgroup(Confinement):
    """What both versions share: a folder with `cgroup.procs`."""

    def __init__(self, path: str) -> None:
        self.path = path

    def prepare(self) -> None:
        # Another job may remove the common parent, just empty, between our two steps.
        for last in (False, False, False, True):
            try:
                os.makedirs(self.path, 0o755, exist_ok=True)
                return
            except FileNotFoundError:
                if last:
                    raise

    def join(self, pid: int) -> None:
        self._write("cgroup.procs", str(pid))

    def empty(self) -> bool:
        return not self._members()

    def remove(self) -> None:
        with contextlib.suppress(OSError):
            os.rmdir(self.path)
            os.rmdir(os.path.dirname(self.path))  # refused while another job has a cgroup there

    def _members(self) -> list[int]:
        try:
            with open(f"{self.path}/cgroup.procs", encoding="ascii") as file:
                return [int(line) for line in file]
        except (FileNotFoundError, OSError) as error:
            if isinstance(error, FileNotFoundError) or not os.path.isdir(self.path):
                return []
            raise

    def _kill_members(self) -> None:
        # A number read from the cgroup belongs to it: while frozen nobody inside can end or fork.
        for pid in self._members():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _write(self, name: str, text: str) -> None:
        # Never creates: a plain file in a folder that is no cgroup would confine nothing.
        descriptor = os.open(f"{self.path}/{name}", os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(descriptor, text.encode())
        finally:
            os.close(descriptor)

    def _write_if_there(self, name: str, text: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._write(name, text)


class Cgroup2(_Cgroup):
    """The unified hierarchy; needs no controller. `cgroup.kill` came with Linux 5.14."""

    kind = "cgroup2"

    def kill(self) -> None:
        """One write, atomic against forks, frozen or not."""
        self._write_if_there("cgroup.kill", "1")

    def freeze(self) -> None:
        """Stop everything inside in place."""
        self._write_if_there("cgroup.freeze", "1")

    def thaw(self) -> None:
        """Let it go on."""
        self._write_if_there("cgroup.freeze", "0")


class Freezer(_Cgroup):
    """The v1 freezer hierarchy."""

    kind = "freezer"

    def kill(self) -> None:
        """Freeze, so that nothing forks away; kill; thaw, because a frozen process cannot die."""
        self.freeze()
        try:
            self._kill_members()
        finally:
            self.thaw()

    def freeze(self) -> None:
        """Stop everything inside in place."""
        self._write_if_there("freezer.state", "FROZEN")

    def thaw(self) -> None:
        """Let it go on."""
        self._write_if_there("freezer.state", "THAWED")


class Tree(Confinement):
    """Without cgroups: the descendants of the shim, or what still bears the job's name."""

    kind = "tree"

    def __init__(self, mark: str, uid: int) -> None:
        self._mark, self._uid = mark, uid
        self._shim: int | None = None

    def prepare(self) -> None:
        """Called by the shim: from now on every orphan below it becomes its child."""
        import ctypes  # noqa: PLC0415 - a megabyte that jobs in cgroups do not need

        subreaper = 36  # PR_SET_CHILD_SUBREAPER
        if ctypes.CDLL(None, use_errno=True).prctl(subreaper, 1, 0, 0, 0):
            raise OSError(ctypes.get_errno(), "cannot become a subreaper")
        self._shim = os.getpid()

    def kill(self) -> None:
        """SIGKILL to all that can be found; one round, to be repeated until empty."""
        self._send(signal.SIGKILL)

    def empty(self) -> bool:
        """Whether nothing can be found."""
        return not self._members()

    def freeze(self) -> None:
        """Stop everything inside in place."""
        self._send(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        self._send(signal.SIGCONT)

    def _members(self) -> list[dict[str, Any]]:
        if self._shim is not None:
            return identity.descendants(self._shim)
        return identity.marked(self._mark, self._uid)

    def _send(self, number: int) -> None:
        for member in self._members():
            identity.send(member, number)


def described(job: dict[str, Any]) -> Confinement:
    """The confinement that a job's document names."""
    confine = job["confine"]
    if confine["kind"] == "cgroup2":
        return Cgroup2(confine["path"])
    if confine["kind"] == "freezer":
        return Freezer(confine["path"])
    return Tree(f"FAIRLEAD_JOB={job['id']}", job["uid"])
