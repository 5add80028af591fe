"""The user and the environment of a command: clean, the run's own, then what the lease decides.

Nothing of the control plane's environment passes: it may hold tokens. Secrets are not here either;
they are read from their files by the command's own process (`launch`).
"""

import os
import pwd
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from fairlead.ports.executor import RESERVED_ENV, Job

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class BadEnvironment(Exception):
    """The command cannot be run here as it was asked for; the message says why."""


@dataclass(frozen=True, slots=True)
class CommandUser:
    """The identity that a command runs under."""

    uid: int
    gid: int
    groups: tuple[int, ...]
    name: str
    home: str


WARNING_FILE = "warning.json"
"""Beside the width file; it is there once the job was warned."""


def compose(
    job: Job, user: CommandUser, visible: Mapping[str, str], width_file: str
) -> dict[str, str]:
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
        # What the lease says; the command sees these devices and no others.
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
        "FAIRLEAD_WIDTH_FILE": width_file,
        "FAIRLEAD_WARNING_FILE": str(Path(width_file).with_name(WARNING_FILE)),
    }


def check(name: str) -> None:
    """Refuse what would not survive the exec, or would contradict the lease."""
    if not name or "=" in name or "\0" in name:
        raise BadEnvironment(f"{name!r} is no name of a variable")
    if name.startswith(RESERVED_ENV):
        raise BadEnvironment(f"{name} is set by Fairlead from the lease")


def shown(devices: Iterable[str], visible: Mapping[str, str]) -> str:
    """What CUDA calls some slots; each once, because it stops reading at the first repeated one.

    Where the machine's devices are known, a slot that is none of them is virtual and has none.
    """
    if visible:
        ids = [visible[device] for device in devices if device in visible]
    else:
        ids = [device.rpartition("#")[2] for device in devices]
    return ",".join(dict.fromkeys(ids))


def resolve(name: str | None, *, allow_root: bool, root_as: int | None = None) -> CommandUser:
    """The user of a job. `None` is the user of the executor; a number needs no passwd entry.

    Root is refused unless it was configured, whatever it is called here: the number decides.
    `root_as`: root's jobs are this user's instead.
    """
    own = os.geteuid()
    user = account(str(own) if name is None else name)
    if user.uid == 0 and not allow_root and root_as is not None:
        user = account(str(root_as))
    if user.uid == 0 and not allow_root:
        remedy = "submit it as another user, or start `fairlead up --allow-root`"
        raise BadEnvironment(f"running as root is not allowed here ({remedy})")
    if own not in (0, user.uid):
        problem = f"only root can run commands as {user.name}; this executor is user {own}"
        raise BadEnvironment(problem)
    if own == user.uid != 0:
        # Without privileges the groups stay what they are.
        return CommandUser(own, os.getegid(), tuple(os.getgroups()), user.name, user.home)
    return user


def uid_of(name: str) -> int:
    """The number of a user of this machine; raises `BadEnvironment`."""
    return account(name).uid


def account(name: str) -> CommandUser:
    """A user of this machine, by name or number; raises `BadEnvironment`."""
    number = int(name) if name.isascii() and name.isdigit() and len(name) <= 10 else None
    try:
        entry = pwd.getpwnam(name) if number is None else pwd.getpwuid(number)
    except KeyError:
        if number is None:
            raise BadEnvironment(f"there is no user {name!r} on this machine") from None
        if not 0 <= number < 2**32 - 1:  # the last number means "leave it as it is" to the kernel
            raise BadEnvironment(f"{name} is no user number") from None
        # Containers and directory services have users without an entry; the group of the same
        # number grants nothing that was not given to that number on purpose.
        return CommandUser(number, number, (number,), name, "/")
    except (ValueError, OverflowError) as error:
        raise BadEnvironment(f"{name!r} is no user name") from error
    groups = os.getgrouplist(entry.pw_name, entry.pw_gid)
    return CommandUser(entry.pw_uid, entry.pw_gid, tuple(groups), entry.pw_name, entry.pw_dir)
