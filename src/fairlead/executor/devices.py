"""The devices of this machine: NVIDIA's by NVML where present, else as many virtual ones as asked;
the nodes of the control plane that they make, and readings while they are used.

NVML is read through nvidia-ml-py, an extra: without it, as without a driver,
there are no real devices, and the note says why.
"""

import contextlib
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from fairlead.ports.meter import DeviceReading

T = TypeVar("T")
NAME_MAX = 63
_DEVICES_MAX = 1024
# Product names begin with the brand and the series; the flavor is what comes after that.
_BRANDS = frozenset({"NVIDIA", "Tesla", "GeForce", "Quadro"})
_SERIES = frozenset({"RTX", "GTX", "TITAN"})


class NvmlUnavailable(Exception):
    """NVML is not there, or does not answer; the message says which and why."""


@dataclass(frozen=True, slots=True)
class Device:
    """One device that can be leased as `node#ordinal`."""

    ordinal: int
    uuid: str
    name: str
    memory_bytes: int
    virtual: bool = False
    minor: int | None = None
    """Of its node below /dev: the device filter leaves that one open."""

    @property
    def visible(self) -> str:
        """What CUDA_VISIBLE_DEVICES calls it: the UUID, which no renumbering changes."""
        return str(self.ordinal) if self.virtual else self.uuid


@dataclass(frozen=True, slots=True)
class Discovery:
    """The devices, where they were found, and what was in the way when they were not."""

    source: str  # nvml or virtual
    devices: tuple[Device, ...]
    note: str | None = None


def discover(*, virtual: int = 0) -> Discovery:
    """The machine's devices. Never raises: a machine without GPUs is an ordinary machine."""
    try:
        return Discovery("nvml", _real())
    except NvmlUnavailable as reason:
        made = tuple(
            Device(ordinal, f"VIRTUAL-{ordinal}", "virtual", 0, virtual=True)
            for ordinal in range(virtual)
        )
        return Discovery("virtual", made, note=str(reason))


def _real() -> tuple[Device, ...]:
    """Devices in bus order, by functions that every driver since 2012 has."""
    try:
        import pynvml as nvml  # noqa: PLC0415 - an extra, and 8000 lines
    except ImportError as error:
        missing = "nvidia-ml-py is not installed (pip install 'fairlead[gpu]')"
        raise NvmlUnavailable(missing) from error

    def call(function: Callable[..., T], *arguments: Any) -> T:
        try:
            return function(*arguments)
        except nvml.NVMLError as error:
            raise NvmlUnavailable(f"{function.__name__}: {error} ({error.value})") from error

    call(nvml.nvmlInit)
    try:
        count = call(nvml.nvmlDeviceGetCount)
        if count > _DEVICES_MAX:
            raise NvmlUnavailable(f"nvmlDeviceGetCount: {count} devices cannot be true")
        found = []
        for ordinal in range(count):
            handle = call(nvml.nvmlDeviceGetHandleByIndex, ordinal)
            uuid, name = call(nvml.nvmlDeviceGetUUID, handle), call(nvml.nvmlDeviceGetName, handle)
            memory = int(call(nvml.nvmlDeviceGetMemoryInfo, handle).total)
            minor = int(call(nvml.nvmlDeviceGetMinorNumber, handle))
            found.append(Device(ordinal, uuid, name, memory, minor=minor))
    finally:
        call(nvml.nvmlShutdown)
    return tuple(found)


@dataclass(frozen=True, slots=True)
class MachineNode:
    """Devices that are leased as `name#0`, `name#1` and so on, in this order."""

    name: str
    flavor: str
    devices: tuple[Device, ...]


def host_name() -> str:
    return _node_name(os.uname().nodename) or "localhost"


def flavor_of(product: str) -> str:
    """`NVIDIA A100-SXM4-80GB` is an A100, `NVIDIA GeForce RTX 4090` an RTX-4090."""
    words = [word.split("-")[0] for word in product.split() if word not in _BRANDS]
    if len(words) > 1 and words[0] in _SERIES:
        return f"{words[0]}-{words[1]}"
    return words[0] if words and words[0] else "GPU"


def machine_nodes(found: Discovery, host: str) -> list[MachineNode]:
    flavors: dict[str, list[Device]] = {}
    for device in found.devices if found.source == "nvml" else ():
        flavors.setdefault(flavor_of(device.name), []).append(device)
    if len(flavors) == 1:
        ((flavor, devices),) = flavors.items()
        return [MachineNode(host, flavor, tuple(devices))]
    return [
        MachineNode(_node_name(f"{host[:40]}-{flavor}"), flavor, tuple(devices))
        for flavor, devices in sorted(flavors.items())
    ]


def visible(found: Discovery, host: str) -> dict[str, str]:
    """What CUDA calls each slot of this machine; of virtual devices, where there are no others."""
    return {slot: device.visible for slot, device in slots(found, host).items()}


def minors(found: Discovery, host: str) -> dict[str, int]:
    """The number of the device node of each slot."""
    own = slots(found, host).items()
    return {slot: device.minor for slot, device in own if device.minor is not None}


def slots(found: Discovery, host: str) -> dict[str, Device]:
    """The device of each slot of this machine."""
    nodes = machine_nodes(found, host) or [MachineNode(host, "", found.devices)]
    return {
        f"{node.name}#{number}": device
        for node in nodes
        for number, device in enumerate(node.devices)
    }


def _node_name(text: str) -> str:
    plain = re.sub(r"[^a-z0-9.-]", "-", text.lower())
    return plain.strip(".-")[:NAME_MAX].rstrip(".-")


# -- readings -------------------------------------------------------------------------------------


class NvmlMeter:
    """A `DeviceMeter` by nvidia-ml-py, loaded with the first reading. `slots` are real devices.

    A driver that does not answer is asked again next time: NVML is closed and opened.
    """

    def __init__(self, slots: Mapping[str, Device]) -> None:
        self._slots = dict(slots)
        self._nvml: Any = None

    def read(self) -> Mapping[str, DeviceReading]:
        if not self._slots:
            return {}
        import pynvml as nvml  # noqa: PLC0415 - an extra, and 8000 lines

        found: dict[str, DeviceReading] = {}
        try:
            if self._nvml is None:
                nvml.nvmlInit()
                self._nvml = nvml
            for slot, device in self._slots.items():
                handle = nvml.nvmlDeviceGetHandleByUUID(device.uuid)
                busy = int(nvml.nvmlDeviceGetUtilizationRates(handle).gpu)
                found[slot] = DeviceReading(busy, _used(nvml, handle))
        except nvml.NVMLError:
            with contextlib.suppress(nvml.NVMLError):
                nvml.nvmlShutdown()
            self._nvml = None
        return found


def _used(nvml: Any, handle: Any) -> int:
    """Without what the driver keeps for itself: hundreds of megabytes that an older driver counts
    as used. What processes hold is asked there."""
    with contextlib.suppress(nvml.NVMLError):
        return int(nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2).used)
    held = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
    return sum(int(process.usedGpuMemory or 0) for process in held)
