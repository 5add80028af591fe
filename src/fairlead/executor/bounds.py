"""What holds a job besides its confinement: a device filter, CPUs, memory and processes, by cgroup.

    control   cgroup v2                               cgroup v1
    devices   an eBPF filter on the job's cgroup      devices.allow, devices.deny
    cpus      cpu.max                                 cpu.cfs_quota_us
    memory    memory.max                              memory.limit_in_bytes
    pids      pids.max                                pids.max

Each control is where the machine has it: on a hybrid machine the filter is in v2 and the others are
in v1. What cannot be held is said in words (`Controls.missing`), and is not asked of a job.
Standard library only: the shim uses it.
"""

import contextlib
import os
from dataclasses import dataclass, field
from typing import Any

from fairlead.executor import confine, device_filter

V2 = "v2"
"""A control of the job's own cgroup, in the unified hierarchy."""
_V1_FILES = {
    "devices": "devices.allow",
    "cpu": "cpu.cfs_quota_us",
    "memory": "memory.limit_in_bytes",
    "pids": "pids.max",
}
_V2_FILES = {"cpu": "cpu.max", "memory": "memory.max", "pids": "pids.max"}
PIDS_DEFAULT = 32_768
"""Processes and threads of a run that asks for no other bound: more than any training has, and a
fork bomb ends here, not with the process ids of the machine."""
_PERIOD_US = 100_000
_WORDS = {
    "devices": "a run can open GPUs that it does not lease (CUDA_VISIBLE_DEVICES only asks)",
    "cpu": "`cpus` of a run cannot be held",
    "memory": "`memory` of a run cannot be held",
    "pids": "`pids` of a run cannot be held: a fork bomb takes all processes of the machine",
}


@dataclass(frozen=True, slots=True)
class Controls:
    """Where each control is: `v2`, or a mount point of v1; and what cannot be held, and why."""

    places: dict[str, str] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)

    def bound(self, name: str, value: Any) -> dict[str, Any]:
        """A bound of a job; raises KeyError with the reason where it cannot be held."""
        if name not in self.places:
            raise KeyError(f"{_WORDS[name]}: {self.missing[name]}")
        return {name: {"place": self.places[name], "value": value}}

    def words(self) -> str:
        """One sentence for people."""
        if not self.missing:
            held = "its cpus, memory and processes are held"
            return f"a run can open only the GPUs that it leases; {held}"
        return "; ".join(f"{_WORDS[name]}: {why}" for name, why in sorted(self.missing.items()))


def find(kind: confine.Kind, cgroups: str) -> Controls:
    """What works when tried, in a cgroup that is removed again."""
    if os.geteuid() != 0:
        return Controls(missing=dict.fromkeys(_WORDS, "it takes root"))
    mounts, places, missing = _v1_mounts(), dict[str, str](), dict[str, str]()
    for name in _WORDS:
        why = _no_v2(name, cgroups) if kind == "cgroup2" else "there is no cgroup v2"
        if why is None:
            places[name] = V2
        elif name in mounts and _no_v1(name, mounts[name]) is None:
            places[name] = mounts[name]
        else:
            missing[name] = why
    return Controls(places, missing)


def _no_v2(name: str, cgroups: str) -> str | None:
    trial = f"{cgroups}/trial-{os.getpid()}-{os.urandom(4).hex()}"
    try:
        confine.make(trial)
        if name == "devices":
            return device_filter.why_not(trial, unified=True)
        _delegate(name, cgroups)
        return None if os.access(f"{trial}/{_V2_FILES[name]}", os.W_OK) else "no such controller"
    except OSError as error:
        return f"cgroup v2: {error.strerror}"
    finally:
        _remove(trial)


def _delegate(name: str, cgroups: str) -> None:
    """Have the controller in the cgroups of jobs; a parent that holds processes cannot."""
    for folder in (os.path.dirname(cgroups), cgroups):
        _write(f"{folder}/cgroup.subtree_control", f"+{name}")


def _no_v1(name: str, mount: str) -> str | None:
    trial = f"{mount}/{confine.CGROUP}/trial-{os.getpid()}-{os.urandom(4).hex()}"
    try:
        confine.make(trial)
        if name == "devices":
            return device_filter.why_not(trial, unified=False)
        return None if os.access(f"{trial}/{_V1_FILES[name]}", os.W_OK) else "no such file"
    except OSError as error:
        return str(error.strerror)
    finally:
        _remove(trial)


def _v1_mounts() -> dict[str, str]:
    found: dict[str, str] = {}
    for controllers, point in confine.mounted_v1():
        for name in _V1_FILES:
            if name in controllers:
                found.setdefault(name, point)
    return found


# -- of one job -----------------------------------------------------------------------------------


def prepare(job: dict[str, Any]) -> None:
    """Before the command begins; raises OSError. What was asked for and cannot be held is no job
    to start."""
    for name, path, wanted in _of(job):
        confine.make(path)
        if job["bounds"][name]["place"] == V2 and name in _V2_FILES:
            _delegate(name, os.path.dirname(path))  # the common parent comes and goes with jobs
        if name == "devices":
            filter_devices(job, wanted)
        elif name == "cpu":
            quota_us = max(1000, wanted * _PERIOD_US // 1000)
            if job["bounds"][name]["place"] == V2:
                _write(f"{path}/cpu.max", f"{quota_us} {_PERIOD_US}")
            else:
                _write(f"{path}/cpu.cfs_period_us", str(_PERIOD_US))
                _write(f"{path}/cpu.cfs_quota_us", str(quota_us))
        else:
            v2 = job["bounds"][name]["place"] == V2
            _write(f"{path}/{(_V2_FILES if v2 else _V1_FILES)[name]}", str(wanted))


def filter_devices(job: dict[str, Any], minors: list[int]) -> None:
    """The devices that a job may open from now on."""
    bound = job.get("bounds", {}).get("devices")
    if bound is None:
        return
    if bound["place"] == V2:
        device_filter.attach(job["confine"]["path"], minors)
    else:
        device_filter.write_v1(_path(job, bound["place"]), minors)


def join(job: dict[str, Any], pid: int) -> None:
    for name, path, _ in _of(job):
        if job["bounds"][name]["place"] != V2:
            _write(f"{path}/cgroup.procs", str(pid))


def remove(job: dict[str, Any]) -> None:
    for name, path, _ in _of(job):
        if job["bounds"][name]["place"] != V2:
            _remove(path)


def _of(job: dict[str, Any]) -> list[tuple[str, str, Any]]:
    bounds = job.get("bounds", {})
    return [
        (name, _path(job, bound["place"]), bound["value"]) for name, bound in sorted(bounds.items())
    ]


def _path(job: dict[str, Any], place: str) -> str:
    own = str(job["confine"]["path"])
    return own if place == V2 else f"{place}/{confine.CGROUP}/{os.path.basename(own)}"


def _write(path: str, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def _remove(path: str) -> None:
    with contextlib.suppress(OSError):
        os.rmdir(path)
        os.rmdir(os.path.dirname(path))
