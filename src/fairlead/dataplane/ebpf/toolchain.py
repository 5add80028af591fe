"""Compiles the eBPF programs (`fairlead traffic build-ebpf`), and shows what this machine lacks.

The object's name holds a digest of its sources, so that a new release never loads an old object. It
is the same for every kernel, because it uses nothing but the kernel's stable interface.
"""

import ctypes
import hashlib
import os
import platform
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from fairlead.dataplane.ebpf.kernel import LIBRARY, BpfError, libbpf
from fairlead.host.paths import cache_directory
from fairlead.ports.faults import PermanentFault

SOURCES = Path(__file__).with_name("bpf")
MAIN = "fairlead.bpf.c"
HEADER = Path("/usr/include/bpf/bpf_helpers.h")
_CLANG_SECONDS_MAX = 120
# -g: the maps are described in BTF. -mcpu=v3: atomic operations that return the old value.
_OPTIONS = ("-target", "bpf", "-mcpu=v3", "-O2", "-g", "-Wall", "-Wextra")
DEFAULT_PINS = Path("/sys/fs/bpf/fairlead")
KERNEL_MIN = (5, 15)
_BPF_FS_MAGIC = 0xCAFE4A11
_CGROUP2_MAGIC = 0x63677270
_MOUNTS = Path("/proc/self/mounts")


def object_file() -> Path:
    digest = hashlib.sha256()
    for source in sorted(SOURCES.iterdir()):
        if source.suffix in {".c", ".h"}:
            digest.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    return cache_directory() / f"ebpf-{digest.hexdigest()[:16]}.bpf.o"


def tools_missing() -> list[str]:
    """The tools that compiling needs and this machine lacks, each with how to install it."""
    missing = []
    if shutil.which("clang") is None:
        missing.append("clang is not on PATH (apt-get install clang)")
    if not HEADER.is_file():
        missing.append(f"{HEADER} is missing (apt-get install libbpf-dev)")
    return missing


def build(target: Path | None = None) -> Path:
    """Compile the programs and return where they are; PermanentFault says what is missing."""
    missing = tools_missing()
    if missing:
        raise PermanentFault("the eBPF programs cannot be compiled: " + "; ".join(missing))
    target = target or object_file()
    # Debian keeps asm/types.h in a folder that clang looks into for no target but the host's.
    machine = Path("/usr/include") / f"{platform.machine()}-linux-gnu"
    command = ["clang", *_OPTIONS, f"-I{machine}", "-c", str(SOURCES / MAIN), "-o"]
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".build-") as place:
            fresh = str(Path(place) / target.name)
            done = subprocess.run(
                [*command, fresh],
                capture_output=True,
                text=True,
                check=False,
                timeout=_CLANG_SECONDS_MAX,
            )
            if done.returncode != 0:
                raise PermanentFault(f"clang failed:\n{done.stderr.strip()}")
            os.replace(fresh, target)
    except subprocess.TimeoutExpired as error:
        raise PermanentFault(f"clang took longer than {_CLANG_SECONDS_MAX} s") from error
    except OSError as error:
        raise PermanentFault(f"{target}: cannot be written ({error.strerror})") from error
    return target


def missing(
    cgroup: Path | None = None, pins: Path = DEFAULT_PINS, program: Path | None = None
) -> list[str]:
    """What has to be put right before a dataplane can be opened there; empty when nothing has to.
    Without a cgroup any cgroup2 mount will do. Leaves no trace."""
    lacks = _kernel()
    if not (pins / "live").exists() and not (program or object_file()).is_file():
        lacks += tools_missing()
        lacks.append("the eBPF programs are not compiled (fairlead traffic build-ebpf)")
    lacks += _permission()
    if not _is_mount_of(pins, _BPF_FS_MAGIC):
        lacks.append(f"{pins}: is on no bpf file system (mount -t bpf bpf /sys/fs/bpf)")
    if cgroup is None and default_cgroup() is None:
        lacks.append(
            "no cgroup2 is mounted (mkdir -p /sys/fs/cgroup/unified && "
            "mount -t cgroup2 cgroup2 /sys/fs/cgroup/unified)"
        )
    if cgroup is not None and not (cgroup.is_dir() and _is_mount_of(cgroup, _CGROUP2_MAGIC)):
        lacks.append(f"{cgroup}: is no cgroup2 directory (name one, or create it)")
    return lacks


def default_cgroup() -> Path | None:
    """Where cgroup2 is mounted: all processes of the machine are below."""
    try:
        mounts = _MOUNTS.read_text().splitlines()
    except OSError:
        return None
    points = [fields[1] for fields in map(str.split, mounts) if fields[2:3] == ["cgroup2"]]
    # The kernel writes a space in a path as \040.
    unescaped = (re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), p) for p in points)
    return next(map(Path, unescaped), None)


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
        libbpf().may_make_maps()
    except BpfError as error:
        return [
            f"the kernel refused a map: {error.strerror} "
            "(run as root, or with CAP_BPF and CAP_NET_ADMIN; seccomp must allow bpf(2))"
        ]
    except (OSError, AttributeError) as error:  # not there, or of before 1.0
        return [f"{LIBRARY} cannot be loaded: {error} (apt-get install libbpf1)"]
    return []


def _is_mount_of(path: Path, magic: int) -> bool:
    place = next((folder for folder in (path, *path.parents) if folder.exists()), Path("/"))
    # statfs(2) begins with f_type; the rest is 120 bytes at most on every 64-bit Linux.
    answer = (ctypes.c_long * 32)()
    failed = ctypes.CDLL(None).statfs(os.fsencode(place), ctypes.byref(answer))
    return not failed and answer[0] & 0xFFFF_FFFF == magic
