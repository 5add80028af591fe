"""Whether a CPU quota can really be written here: tried in a cgroup of our own, then removed.

Reading permissions off a mode or a capability mask says little: the mount may be read-only, the
controller not delegated, the write filtered. So `fairlead doctor` makes an empty cgroup, gives it
a quota, reads it back and removes it. No process is ever moved into it, so nothing is slowed.
"""

import contextlib
import errno
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fairlead.node.cgroup_mounts import CgroupHost

PERIOD_US = 100_000
# The least the kernel takes. A v1 child may not have more than its parent, and we do not know how
# little a container that runs us was given.
QUOTA_US = 1_000
_REMOVAL_ATTEMPTS = 20
_REMOVAL_PAUSE_SECONDS = 0.01


@dataclass(frozen=True, slots=True)
class QuotaProbe:
    """What the attempt showed. Where it was `refused`, `cure` says what would help."""

    group: Path
    refused: str = ""
    cure: str = ""
    stat: str | None = None  # cpu.stat of the new cgroup; None if it was never made
    has_burst: bool = False
    has_pressure: bool = False
    left_behind: bool = False  # it could not be removed again

    @property
    def worked(self) -> bool:
        return not self.refused


def probe_quota(host: CgroupHost, *, capabilities: frozenset[str]) -> QuotaProbe:
    """Make `fairlead-doctor-<pid>` below the cpu hierarchy, try a quota, remove it. Always."""
    group, stat = host.cpu_mount / f"fairlead-doctor-{os.getpid()}", None
    with _signals_held():
        try:
            group.mkdir()
        except FileExistsError:
            # Not ours to remove: it may belong to the same pid of another pid namespace.
            return QuotaProbe(group, f"{group} exists already", f"rmdir {group}")
        except OSError as error:
            refused = f"cannot make a cgroup in {host.cpu_mount} ({error.strerror})"
            return QuotaProbe(group, refused, cure_for(error, host.cpu_mount, capabilities))
        try:
            refused, cure = _try_quota(host, group, capabilities)
            burst = "cpu.cfs_burst_us" if host.version == 1 else "cpu.max.burst"
            with contextlib.suppress(OSError):
                stat = (group / "cpu.stat").read_text()
            seen = stat, (group / burst).exists(), (group / "cpu.pressure").exists()
        finally:
            left_behind = not _remove(group)
    return QuotaProbe(group, refused, cure, *seen, left_behind=left_behind)


def _try_quota(host: CgroupHost, group: Path, capabilities: frozenset[str]) -> tuple[str, str]:
    """What refused the quota and what would help; two empty strings when it was kept."""
    name = "cpu.cfs_quota_us" if host.version == 1 else "cpu.max"
    wanted = str(QUOTA_US) if host.version == 1 else f"{QUOTA_US} {PERIOD_US}"
    if not (group / name).exists():
        cure = "boot a kernel with CONFIG_CFS_BANDWIDTH"
        if host.version == 2:
            cure = f"echo +cpu > {host.cpu_mount}/cgroup.subtree_control"
        return f"a new cgroup in {host.cpu_mount} has no {name}", cure
    try:
        # Without O_CREAT: outside a cgroup file system this must fail, not leave a file behind.
        descriptor = os.open(group / name, os.O_WRONLY | os.O_CLOEXEC)
        with open(descriptor, "wb", buffering=0) as file:
            file.write(wanted.encode())
        kept = (group / name).read_text().strip()
    except OSError as error:
        return f"{name} refused a quota ({error.strerror})", cure_for(error, group, capabilities)
    if kept != wanted:
        return f"{name} took {wanted!r} and kept {kept!r}", "report this with the kernel's version"
    return "", ""


def cure_for(error: OSError, place: Path, capabilities: frozenset[str]) -> str:
    if error.errno == errno.EROFS:
        return f"mount -o remount,rw {place} (in a container: run it privileged)"
    if error.errno in {errno.EACCES, errno.EPERM}:
        lacking = "" if "CAP_DAC_OVERRIDE" in capabilities else " (CAP_DAC_OVERRIDE is missing)"
        return f"run as root{lacking}, or delegate a subtree: Delegate=cpu in a systemd unit"
    if error.errno == errno.EINVAL:
        return "raise the quota of the parent cgroup: a child may not have more than its parent"
    return f"make {place} a writable cgroup directory"


def _remove(group: Path) -> bool:
    """Remove the cgroup; the kernel may call it busy for a moment after a write."""
    for _ in range(_REMOVAL_ATTEMPTS):
        with contextlib.suppress(OSError):
            group.rmdir()
        if not group.exists():
            return True
        time.sleep(_REMOVAL_PAUSE_SECONDS)
    return False


@contextlib.contextmanager
def _signals_held() -> Iterator[None]:
    """Ctrl-C and requests to stop wait for the few milliseconds of the probe.

    `finally` alone is not enough: SIGTERM and SIGHUP end Python without running it, and Ctrl-C may
    fall between the making of the cgroup and the `try`.
    """
    stops = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, stops)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
