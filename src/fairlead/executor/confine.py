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
from typing import Any, Literal

from fairlead.executor import identity
from fairlead.host import kernel

Kind = Literal["cgroup2", "freezer", "tree"]
KINDS: tuple[Kind, ...] = ("cgroup2", "freezer", "tree")
CGROUP = "fairlead-exec"
"""All cgroups of all executors on a machine lie below this one."""


class Cgroup:
    """A cgroup of either version: the unified hierarchy, which needs no controller (`cgroup.kill`
    came with Linux 5.14), or the v1 freezer. All methods may be repeated; all raise OSError."""

    def __init__(self, kind: Kind, path: str) -> None:
        self._unified, self.path = kind == "cgroup2", path

    def prepare(self) -> None:
        # Another job may remove the common parent, just empty, between our two steps.
        for _ in range(3):
            with contextlib.suppress(FileNotFoundError):
                os.makedirs(self.path, 0o755, exist_ok=True)
                return
        os.makedirs(self.path, 0o755, exist_ok=True)

    def join(self, pid: int) -> None:
        """Put a process in; its children follow by themselves."""
        self._write("cgroup.procs", str(pid))

    def empty(self) -> bool:
        return not self._members()

    def remove(self) -> None:
        """Remove the folder unless something is inside, and the common parent where it is empty."""
        with contextlib.suppress(OSError):
            os.rmdir(self.path)
            os.rmdir(os.path.dirname(self.path))  # refused while another job has a cgroup there

    def _members(self) -> list[int]:
        try:
            with open(f"{self.path}/cgroup.procs", encoding="ascii") as file:
                return [int(line) for line in file]
        except OSError as error:
            if isinstance(error, FileNotFoundError) or not os.path.isdir(self.path):
                return []
            raise

    def kill(self) -> None:
        """One write where there is `cgroup.kill`, atomic against forks, frozen or not.

        Else freeze, so that nothing forks away; kill; thaw, because a frozen process cannot die.
        """
        if self._unified:
            self._write_if_there("cgroup.kill", "1")
            return
        self.freeze(frozen=True)
        try:
            # A number read from the cgroup belongs to it: while frozen nothing can end or fork.
            for pid in self._members():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        finally:
            self.freeze(frozen=False)

    def freeze(self, *, frozen: bool) -> None:
        if self._unified:
            self._write_if_there("cgroup.freeze", "1" if frozen else "0")
        else:
            self._write_if_there("freezer.state", "FROZEN" if frozen else "THAWED")

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


class Tree:
    """Without cgroups: the descendants of the shim, or what still bears the job's name."""

    def __init__(self, mark: str, uid: int) -> None:
        self._mark, self._uid = mark, uid
        self._shim: int | None = None

    def prepare(self) -> None:
        """Called by the shim: from now on every orphan below it becomes its child."""
        kernel.load_prctl()(kernel.ADOPT_ORPHANS, 1)
        self._shim = os.getpid()

    def join(self, pid: int) -> None:
        """Nothing: a child of the shim is in its tree."""

    def remove(self) -> None:
        """Nothing is left behind."""

    def kill(self) -> None:
        """SIGKILL to all that can be found; one round, to be repeated until empty."""
        self._send(signal.SIGKILL)

    def empty(self) -> bool:
        return not self._members()

    def freeze(self, *, frozen: bool) -> None:
        self._send(signal.SIGSTOP if frozen else signal.SIGCONT)

    def _members(self) -> list[dict[str, Any]]:
        if self._shim is not None:
            return identity.descendants(self._shim)
        return identity.marked(self._mark, self._uid)

    def _send(self, number: int) -> None:
        for member in self._members():
            identity.send(member, number)


Confinement = Cgroup | Tree
"""What holds a job's processes: both have the same methods."""


def described(job: dict[str, Any]) -> Confinement:
    confine = job["confine"]
    if confine["kind"] != "tree":
        return Cgroup(confine["kind"], confine["path"])
    return Tree(f"FAIRLEAD_JOB={job['id']}", job["uid"])


def find(kinds: tuple[Kind, ...] = KINDS) -> tuple[Kind, str]:
    """The first of `kinds` that works when tried, and the folder for its cgroups; else the tree."""
    for kind, point in _mounted():
        if kind in kinds and _works(kind, point):
            return kind, f"{point}/{CGROUP}"
    return "tree", ""


def _mounted() -> list[tuple[Kind, str]]:
    """Mount points by preference: cgroup2 before the freezer, shorter paths before longer ones."""
    found: list[tuple[Kind, str]] = []
    with contextlib.suppress(OSError), open("/proc/self/mountinfo", "rb") as file:
        for line in file:
            left, _, right = os.fsdecode(line).partition(" - ")
            fields, rest = left.split(" "), right.split(" ")
            if len(fields) < 6 or len(rest) < 3:
                continue
            point = fields[4]
            for escape, character in (("040", " "), ("011", "\t"), ("012", "\n"), ("134", "\\")):
                point = point.replace(f"\\{escape}", character)
            if rest[0] == "cgroup2":
                found.append(("cgroup2", point))
            elif rest[0] == "cgroup" and "freezer" in rest[2].strip().split(","):
                found.append(("freezer", point))
    return sorted(found, key=lambda mount: (KINDS.index(mount[0]), len(mount[1]), mount[1]))


def _works(kind: Kind, point: str) -> bool:
    """Whether a cgroup can be made here and has what we need; the trial is removed again."""
    needed = "cgroup.kill" if kind == "cgroup2" else "freezer.state"
    trial = f"{point}/{CGROUP}/trial-{os.getpid()}-{os.urandom(4).hex()}"
    try:
        os.makedirs(trial)
        works = all(os.access(f"{trial}/{name}", os.W_OK) for name in (needed, "cgroup.procs"))
    except OSError:
        works = False
    with contextlib.suppress(OSError):
        os.rmdir(trial)
        os.rmdir(os.path.dirname(trial))
    return works
