"""Whom a command runs as, from the name that was authenticated when the run was submitted."""

import os
import pwd
from dataclasses import dataclass


class NoSuchUser(Exception):
    """This name cannot be run as here; the message says why."""


@dataclass(frozen=True, slots=True)
class User:
    """What a process needs to be somebody."""

    uid: int
    gid: int
    groups: tuple[int, ...]
    name: str
    home: str


def resolve(name: str | None, *, allow_root: bool) -> User:
    """The user of a job. `None` is whoever runs the executor; a number needs no passwd entry.

    Root is refused unless it was configured, whatever it is called here: the number decides.
    """
    own = os.geteuid()
    user = _lookup(str(own) if name is None else name)
    if user.uid == 0 and not allow_root:
        raise NoSuchUser(
            "running as root is not allowed here "
            "(submit it as another user, or start `fairlead up --allow-root`)"
        )
    if own not in (0, user.uid):
        raise NoSuchUser(f"only root can run commands as {user.name}; this executor is user {own}")
    if own == user.uid != 0:
        # Without privileges the groups stay what they are.
        return User(own, os.getegid(), tuple(os.getgroups()), user.name, user.home)
    return user


def _lookup(name: str) -> User:
    number = int(name) if name.isascii() and name.isdigit() and len(name) <= 10 else None
    try:
        entry = pwd.getpwnam(name) if number is None else pwd.getpwuid(number)
    except KeyError:
        if number is None:
            raise NoSuchUser(f"there is no user {name!r} on this machine") from None
        if not 0 <= number < 2**32 - 1:  # the last number means "leave it as it is" to the kernel
            raise NoSuchUser(f"{name} is no user number") from None
        # Containers and directory services have users without an entry; the group of the same
        # number grants nothing that was not given to that number on purpose.
        return User(number, number, (number,), name, "/")
    except (ValueError, OverflowError) as error:
        raise NoSuchUser(f"{name!r} is no user name") from error
    groups = os.getgrouplist(entry.pw_name, entry.pw_gid)
    return User(entry.pw_uid, entry.pw_gid, tuple(groups), entry.pw_name, entry.pw_dir)
