"""The port to what devices do: how busy they are, and what they hold."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class DeviceReading:
    """How busy a device was, in percent of the time since just before, and the memory in use."""

    utilisation_percent: int
    memory_bytes: int


class DeviceMeter(Protocol):
    """Reads all devices of this machine."""

    def read(self) -> Mapping[str, DeviceReading]:
        """By slot (`node#0`); devices that do not answer are left out."""
