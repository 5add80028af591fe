"""Runs commands as local processes: a shim per job, confined, as the submitting user.

    executor = LocalExecutor(folder)
    executor.start(Job(id="p7", run="lab/train", owner="team-a", command=("python", "train.py"),
                       devices=("host#0",), user="ada"))
    executor.poll()

The shim process imports this package too and must stay small, so names are resolved when asked for.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fairlead.executor.devices import Device, Discovery, discover
    from fairlead.executor.local import LocalExecutor

__all__ = ["Device", "Discovery", "LocalExecutor", "discover"]

_HOMES = {
    "Device": "fairlead.executor.devices",
    "Discovery": "fairlead.executor.devices",
    "LocalExecutor": "fairlead.executor.local",
    "discover": "fairlead.executor.devices",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(name)
    from importlib import import_module  # noqa: PLC0415 - the shim never needs it

    return getattr(import_module(_HOMES[name]), name)
