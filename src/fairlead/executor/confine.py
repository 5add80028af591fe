"""Keeping hold of everything a job started: a cgroup where there is one, else the process tree.

    kind       a grandchild that daemonises     a fork bomb          after the shim was killed
    cgroup2    dies (cgroup.kill, atomic)       dies                 dies
    freezer    dies (freeze, kill, thaw)        dies                 dies
    tree       dies: the shim is its subreaper  may outrun kill and  dies if its environment still
                                                pause                names the job (weaker)

Used by the shim and by the executor; standard library only. A command that runs as root can leave
any cgroup; that is one reason why it needs `allow_root`.
"""

import contextlib
import os
import signal
from typing import Any, Literal

from fairlead.host import kernel
from fairlead.host.clock import boot_id

Kind = Literal["cgroup2", "freezer", "tree"]
KINDS: tuple[Kind, ...] = ("cgroup2", "freezer", "tree")
CGROUP = "fairlead-exec"
"""All cgroups of all executors on a machine lie below this one."""
_MAKE_TRIES = 10
_LOOKS_MAX = 20


def make(path: str) -> None:
    """Make the cgroup of a job. Another job may remove the common parent, just empty, between the
    two steps, so they are tried again."""
    for _ in range(_MAKE_TRIES - 1):
        with contextlib.suppress(FileNotFoundError):
            os.makedirs(path, 0o755, exist_ok=True)
            return
    os.makedirs(path, 0o755, exist_ok=True)


class Cgroup:
    """A cgroup of either version: the unified hierarchy, which needs no controller (`cgroup.kill`
    came with Linux 5.14), or the v1 freezer. All methods may be repeated; all raise OSError."""

    def __init__(self, kind: Kind, path: str) -> None:
        self._unified, self.path = kind == "cgroup2", path

    def prepare(self) -> None:
        make(self.path)

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
        """Stop, or let go on. A process forked between a look and its signals is found by the next
        look; stopped processes fork nothing. The looks are bounded: a job that forks faster than
        they are may keep running, and the shim must still hear a stop."""
        if not frozen:
            self._send(signal.SIGCONT)
            return
        stopped: list[dict[str, Any]] = []
        for _ in range(_LOOKS_MAX):
            fresh = [member for member in self._members() if member not in stopped]
            for member in fresh:
                send(member, signal.SIGSTOP)
            stopped += fresh
            if not fresh:
                return

    def _members(self) -> list[dict[str, Any]]:
        if self._shim is not None:
            return descendants(self._shim)
        return marked(self._mark, self._uid)

    def _send(self, number: int) -> None:
        for member in self._members():
            send(member, number)


Confinement = Cgroup | Tree
"""What holds a job's processes: both have the same methods."""


def described(job: dict[str, Any]) -> Confinement:
    confine = job["confine"]
    if confine["kind"] != "tree":
        return Cgroup(confine["kind"], confine["path"])
    # The file is this executor's and this job's alone; another executor may have the same job id.
    name = "FAIRLEAD_WIDTH_FILE"
    return Tree(f"{name}={job.get('env', {}).get(name, '')}", job["uid"])


def find(kinds: tuple[Kind, ...] = KINDS) -> tuple[Kind, str]:
    """The first of `kinds` that works when tried, and the folder for its cgroups; else the tree."""
    for kind, point in _mounted():
        if kind in kinds and _works(kind, point):
            return kind, f"{point}/{CGROUP}"
    return "tree", ""


def _mounted() -> list[tuple[Kind, str]]:
    """Mount points by preference: cgroup2 before the freezer, shorter paths before longer ones."""
    found: list[tuple[Kind, str]] = []
    for kind, point, controllers in _mounts():
        if kind == "cgroup2":
            found.append(("cgroup2", point))
        elif "freezer" in controllers:
            found.append(("freezer", point))
    return sorted(found, key=lambda mount: (KINDS.index(mount[0]), len(mount[1]), mount[1]))


def mounted_v1() -> list[tuple[list[str], str]]:
    """The controllers of cgroup v1, and where they are."""
    return [(controllers, point) for kind, point, controllers in _mounts() if kind == "cgroup"]


def _mounts() -> list[tuple[str, str, list[str]]]:
    """The cgroup file systems: kind, mount point, options."""
    found: list[tuple[str, str, list[str]]] = []
    with contextlib.suppress(OSError), open("/proc/self/mountinfo", "rb") as file:
        for line in file:
            left, _, right = os.fsdecode(line).partition(" - ")
            fields, rest = left.split(" "), right.split(" ")
            if len(fields) < 6 or len(rest) < 3:
                continue
            point = fields[4]
            for escape, character in (("040", " "), ("011", "\t"), ("012", "\n"), ("134", "\\")):
                point = point.replace(f"\\{escape}", character)
            if rest[0] in ("cgroup", "cgroup2"):
                found.append((rest[0], point, rest[2].strip().split(",")))
    return found


def _works(kind: Kind, point: str) -> bool:
    """Whether a cgroup can be made here and has what we need; the trial is removed again."""
    needed = "cgroup.kill" if kind == "cgroup2" else "freezer.state"
    trial = f"{point}/{CGROUP}/trial-{os.getpid()}-{os.urandom(4).hex()}"
    try:
        make(trial)
        works = all(os.access(f"{trial}/{name}", os.W_OK) for name in (needed, "cgroup.procs"))
    except OSError:
        works = False
    with contextlib.suppress(OSError):
        os.rmdir(trial)
        os.rmdir(os.path.dirname(trial))
    return works


# A process's identity: its number, start time and boot. A number alone may be reused.


def stat(pid: int) -> tuple[int, int] | None:
    """Parent and start time (ticks since boot) of a process; None without one, or for a zombie."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The command's name stands in parentheses and may itself hold any of these bytes.
            fields = file.read().rpartition(b")")[2].split()
        return None if fields[0] in (b"Z", b"X") else (int(fields[1]), int(fields[19]))
    except (OSError, IndexError, ValueError):
        return None


def identify(pid: int) -> dict[str, Any]:
    """The identity of a living process, as it is written into the job's folder."""
    found = stat(pid)
    if found is None:
        raise ProcessLookupError(f"process {pid} is gone")
    return {"pid": pid, "start_ticks": found[1], "boot": boot_id()}


def send(identity: dict[str, Any] | None, number: int) -> bool:
    """Signal this very process; False when it is gone, even if another has its number now.

    The descriptor is opened before the start time is compared, so the process that was compared
    is the process that is signalled.
    """
    if identity is None or identity.get("boot") != boot_id():
        return False
    pid = int(identity["pid"])
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        found = stat(pid)
        if found is None or found[1] != identity["start_ticks"]:
            return False
        signal.pidfd_send_signal(descriptor, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(descriptor)
    return True


def living() -> list[tuple[dict[str, Any], int]]:
    """The identity and the parent of every process."""
    boot, rows = boot_id(), []
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        if (found := stat(pid)) is not None:
            rows.append(({"pid": pid, "start_ticks": found[1], "boot": boot}, found[0]))
    return rows


def descendants(root: int) -> list[dict[str, Any]]:
    """Everything below a process. Orphans stay below it when it is their subreaper."""
    rows = living()
    below, more = {root}, {root}
    while more:
        more = {process["pid"] for process, parent in rows if parent in below} - below
        below |= more
    return [process for process, _ in rows if process["pid"] in below - {root}]


def marked(mark: str, uid: int) -> list[dict[str, Any]]:
    """Processes of a user whose environment at their start held `mark` (`NAME=value`).

    For the case that no shim is left that knows the tree. A process may have hidden from this.
    """
    matches = []
    for process, _ in living():
        place = f"/proc/{process['pid']}"
        with contextlib.suppress(OSError):
            if os.stat(place).st_uid == uid:
                with open(f"{place}/environ", "rb") as file:
                    if mark.encode() in file.read().split(b"\0"):
                        matches.append(process)
    return matches
