"""Quarantine: a device that holds memory although no run has it is given to none until it is clean.

What a run leaves behind (a process that outlived it, a driver that lost a context), or what runs
beside Fairlead, would make the next run fail for lack of memory, and for no fault of its own.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from fairlead.core.units import Count, Name, OutOfRange, repeats

HELD_BYTES = 64 * 2**20
"""So much a device may hold and be clean: drivers keep a few megabytes for themselves."""


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """A device, what it holds, and whether a lease has it or it is quarantined already."""

    slot: Name
    memory_bytes: Count
    leased: bool = False
    quarantined: bool = False


@dataclass(frozen=True, slots=True)
class QuarantineRequest:
    """Devices as they were read."""

    devices: tuple[DeviceMemory, ...]
    held_bytes: Count = HELD_BYTES

    def faults(self) -> Iterator[OutOfRange]:
        yield from repeats("devices", "slot", [device.slot for device in self.devices])


@dataclass(frozen=True, slots=True)
class Quarantine:
    """Devices that are given to no run from now on, and those that are clean again."""

    quarantined: tuple[str, ...]
    cleared: tuple[str, ...]


def quarantine(asked: QuarantineRequest) -> Quarantine:
    free = sorted(
        (device for device in asked.devices if not device.leased), key=lambda device: device.slot
    )
    dirty = [device for device in free if device.memory_bytes > asked.held_bytes]
    clean = [device for device in free if device.memory_bytes <= asked.held_bytes]
    return Quarantine(
        tuple(device.slot for device in dirty if not device.quarantined),
        tuple(device.slot for device in clean if device.quarantined),
    )
