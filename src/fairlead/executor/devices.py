"""The devices of this machine: NVIDIA's by NVML where present, else as many virtual ones as asked.

    python -m fairlead.executor.devices [--virtual N] [--library PATH]

prints them as JSON. Nothing here needs more than Python's standard library.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from fairlead.executor.nvml import LIBRARY, NvmlUnavailable, nvml


@dataclass(frozen=True, slots=True)
class Device:
    """One device that can be leased as `node#ordinal`."""

    ordinal: int
    uuid: str
    name: str
    memory_bytes: int
    virtual: bool = False

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

    def visible(self, node: str) -> dict[str, str]:
        """For `LocalExecutor`: what CUDA calls each slot of this node."""
        return {f"{node}#{device.ordinal}": device.visible for device in self.devices}


def discover(*, virtual: int = 0, library: str = LIBRARY) -> Discovery:
    """The machine's devices. Never raises: a machine without GPUs is an ordinary machine."""
    try:
        return Discovery("nvml", _real(library))
    except NvmlUnavailable as reason:
        made = tuple(
            Device(ordinal, f"VIRTUAL-{ordinal}", "virtual", 0, virtual=True)
            for ordinal in range(virtual)
        )
        return Discovery("virtual", made, note=str(reason))


def _real(library: str) -> tuple[Device, ...]:
    with nvml(library) as answers:
        handles = [answers.device(ordinal) for ordinal in range(answers.count())]
        return tuple(
            Device(
                ordinal, answers.uuid(handle), answers.name(handle), answers.memory_bytes(handle)
            )
            for ordinal, handle in enumerate(handles)
        )


def main(arguments: Sequence[str]) -> int:
    """Print the devices of this machine."""
    parser = argparse.ArgumentParser(prog="fairlead.executor.devices", description=__doc__)
    parser.add_argument("--virtual", type=int, default=0, metavar="N")
    parser.add_argument("--library", default=LIBRARY, metavar="PATH")
    options = parser.parse_args(arguments)
    found = discover(virtual=options.virtual, library=options.library)
    json.dump(asdict(found), sys.stdout, indent=2)
    sys.stdout.write("\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
