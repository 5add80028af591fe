"""What NVML says of this machine's devices while they are used."""

import contextlib
from collections.abc import Mapping
from typing import Any

from fairlead.executor.devices import Device
from fairlead.ports.meter import DeviceReading


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
