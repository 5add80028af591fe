"""The environment of a command: clean, then the run's own, then what the lease decides.

Nothing of the control plane's environment passes: it may hold tokens. Secrets are not here either;
they are read from their files by the command's own process (`launch`).
"""

from collections.abc import Iterable, Mapping

from fairlead.executor.users import User
from fairlead.ports.executor import RESERVED_ENV, Job

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class BadVariable(Exception):
    """A variable that cannot be given, or not by the submitter."""


def compose(job: Job, user: User, visible: Mapping[str, str], width_file: str) -> dict[str, str]:
    """The variables of a job, secrets excepted."""
    for name in (*job.env, *job.secret_env):
        check(name)
    return {
        "PATH": PATH,
        "HOME": user.home,
        "USER": user.name,
        "LOGNAME": user.name,
        "SHELL": "/bin/sh",
        "LANG": "C.UTF-8",
        **job.env,
        **leased(job, visible),
        "FAIRLEAD_WIDTH_FILE": width_file,
    }


def check(name: str) -> None:
    """Refuse what would not survive the exec, or would contradict the lease."""
    if not name or "=" in name or "\0" in name:
        raise BadVariable(f"{name!r} is no name of a variable")
    if name.startswith(RESERVED_ENV):
        raise BadVariable(f"{name} is set by Fairlead from the lease")


def leased(job: Job, visible: Mapping[str, str]) -> dict[str, str]:
    """What the lease says; the command sees these devices and no others."""
    return {
        "FAIRLEAD_JOB": job.id,
        "FAIRLEAD_RUN": job.run,
        "FAIRLEAD_OWNER": job.owner,
        "FAIRLEAD_LEASES": ",".join(job.leases),
        "FAIRLEAD_DEVICES": ",".join(job.devices),
        "FAIRLEAD_WIDTH": str(len(job.devices)),
        # NVML counts in bus order; CUDA's own default is "fastest first".
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        # Empty means none. Unset would mean all.
        "CUDA_VISIBLE_DEVICES": shown(job.devices, visible),
    }


def shown(devices: Iterable[str], visible: Mapping[str, str]) -> str:
    """What CUDA calls some slots; each once, because it stops reading at the first repeated one."""
    ids = [visible.get(device, device.rpartition("#")[2]) for device in devices]
    return ",".join(dict.fromkeys(ids))


def told_width(devices: Iterable[str], visible: Mapping[str, str]) -> dict[str, object]:
    """What a job reads in its width file."""
    kept = list(devices)
    return {"devices": kept, "visible": shown(kept, visible), "width": len(kept)}
