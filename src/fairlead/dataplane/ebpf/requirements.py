"""What this machine lacks for the eBPF plane, in words that a person can act on.

`missing()` is for `fairlead doctor` and for whoever is about to open a plane. It leaves no trace.
"""

import ctypes
import os
import platform
import re
from pathlib import Path

from fairlead.dataplane.ebpf.build import object_file, tools_missing
from fairlead.dataplane.ebpf.libbpf import LIBRARY, BpfError, libbpf

DEFAULT_PINS = Path("/sys/fs/bpf/fairlead")
KERNEL_MIN = (5, 15)
_BPF_FS_MAGIC = 0xCAFE4A11
_CGROUP2_MAGIC = 0x63677270
_MOUNTS = Path("/proc/self/mounts")


def missing(
    cgroup: Path | None = None, pins: Path = DEFAULT_PINS, program: Path | None = None
) -> list[str]:
    """What has to be put right before a plane can be opened there; empty when nothing has to.

    Without a cgroup any cgroup2 mount will do.
    """
    lacking = _kernel()
    if not (pins / "live").exists() and not (program or object_file()).is_file():
        lacking += tools_missing()
        lacking.append("the eBPF programs are not compiled (fairlead traffic build-ebpf)")
    lacking += _permission()
    if not _is_mount_of(pins, _BPF_FS_MAGIC):
        lacking.append(f"{pins}: is on no bpf file system (mount -t bpf bpf /sys/fs/bpf)")
    if cgroup is None and default_cgroup() is None:
        lacking.append(
            "no cgroup2 is mounted (mkdir -p /sys/fs/cgroup/unified && "
            "mount -t cgroup2 cgroup2 /sys/fs/cgroup/unified)"
        )
    if cgroup is not None and not (cgroup.is_dir() and _is_mount_of(cgroup, _CGROUP2_MAGIC)):
        lacking.append(f"{cgroup}: is no cgroup2 directory (name one, or create it)")
    return lacking


def default_cgroup() -> Path | None:
    """Where cgroup2 is mounted: all processes of the machine are below."""
    try:
        mounts = _MOUNTS.read_text().splitlines()
    except OSError:
        return None
    points = [fields[1] for fields in map(str.split, mounts) if fields[2:3] == ["cgroup2"]]
    # The kernel writes a space in a path as \040.
    return Path(re.sub(r"\\([0-7]{3})", lambda x: chr(int(x[1], 8)), points[0])) if points else None


def _kernel() -> list[str]:
    release = platform.release()
    digits = re.match(r"(\d{1,4})\.(\d{1,4})", release, re.ASCII)
    if platform.system() != "Linux" or digits is None:
        return [f"{platform.system()} {release} is not Linux"]
    if (int(digits[1]), int(digits[2])) < KERNEL_MIN:
        return [f"Linux {release} is older than 5.15 (6.1 also gives refusals their own errno)"]
    return []


def _permission() -> list[str]:
    """Whether bpf(2) is there and lets us, found out with a map of four bytes."""
    try:
        library = libbpf()
    except (OSError, AttributeError) as error:  # not there, or of before 1.0
        return [f"{LIBRARY} cannot be loaded: {error} (apt-get install libbpf1)"]
    try:
        library.may_make_maps()
    except BpfError as error:
        return [
            f"the kernel refused a map: {error.strerror} "
            "(run as root, or with CAP_BPF and CAP_NET_ADMIN; seccomp must allow bpf(2))"
        ]
    return []


def _is_mount_of(path: Path, magic: int) -> bool:
    """Whether the nearest folder that exists is on a file system of that kind."""
    place = next((each for each in (path, *path.parents) if each.exists()), Path("/"))
    # statfs(2) begins with f_type; the rest is 120 bytes at most on every 64-bit Linux.
    answer = (ctypes.c_long * 32)()
    failed = ctypes.CDLL(None).statfs(os.fsencode(place), ctypes.byref(answer))
    return not failed and answer[0] & 0xFFFF_FFFF == magic
