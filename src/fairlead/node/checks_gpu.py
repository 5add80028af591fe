"""Checks of what the GPU governor leases. Planning and simulation work without any device."""

import importlib.util
import os
import re

from fairlead.node.checkup import Check, Finding, Governor, Machine, Status

_DEVICE = re.compile(r"nvidia[0-9]+")
_DRIVER_CURE = "install the NVIDIA driver (on Debian: apt-get install nvidia-driver)"


def devices(machine: Machine) -> Finding:
    """The device files that a run is given."""
    folder = machine.path("/dev")
    names = sorted(each.name for each in folder.iterdir() if _DEVICE.fullmatch(each.name))
    if not names:
        return Finding(Status.MISSING, "no /dev/nvidia*", _DRIVER_CURE)
    found = f"{len(names)} NVIDIA device{'s' if len(names) > 1 else ''} in /dev"
    locked = [
        name for name in ("nvidiactl", *names) if not os.access(folder / name, os.R_OK | os.W_OK)
    ]
    if locked:
        return Finding(
            Status.WARN,
            f"{found}; this user may not open {', '.join(locked)}",
            "add this user to the group that owns /dev/nvidia* (ls -l /dev/nvidia*)",
        )
    return Finding(Status.OK, found)


def driver(machine: Machine) -> Finding:
    """The kernel's side of the driver."""
    told = machine.text("/proc/driver/nvidia/version")
    if told is None:
        return Finding(Status.MISSING, "the kernel module is not loaded", _DRIVER_CURE)
    return Finding(Status.OK, told.split("\n")[0])


def nvidia_smi(machine: Machine) -> Finding:
    """The driver's own tool; looked for, not run: it hangs where a device is lost."""
    place = machine.program("nvidia-smi")
    if place is None:
        return Finding(
            Status.MISSING, "not on PATH", machine.install("nvidia-smi", elsewhere="nvidia-utils")
        )
    return Finding(Status.OK, place)


def nvml_bindings(_: Machine) -> Finding:
    """What finds the devices: without it `fairlead up` declares no GPU node."""
    if importlib.util.find_spec("pynvml") is None:
        cure = "pip install 'fairlead[gpu]'"
        return Finding(Status.MISSING, "not installed: no device is discovered", cure)
    return Finding(Status.OK, "installed")


_GPU = Governor.GPU
CHECKS = (
    Check(_GPU, "devices", "leased to runs through CUDA_VISIBLE_DEVICES", devices),
    Check(_GPU, "driver", "runs open their devices through it", driver),
    Check(_GPU, "nvidia-ml-py", "discovers the devices for `fairlead up`", nvml_bindings),
    Check(_GPU, "nvidia-smi", "names and health of the devices", nvidia_smi),
)
