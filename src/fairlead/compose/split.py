"""`fairlead up` as root is two processes: the control plane, and the launcher.

    launcher (root)          starts, signals and confines runs; reads frames of one small format
    control plane (USER)     HTTP, policy, ledger and keys; opens its sockets first, then becomes
                             USER for good

The directory is root's and sticky: the control plane makes and replaces its own files there, and
cannot move the launcher's folder away. The launcher ends with the control plane, runs do not.
"""

import contextlib
import json
import os
import pwd
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from fairlead.executor.remote import CHANNELS
from fairlead.host import kernel
from fairlead.ledger.place import KEYS
from fairlead.ports.faults import PermanentFault

USER = "fairlead-up"
"""Whom the control plane becomes by default. Not the group `fairlead`: its members are users of the
socket."""
NUMBER = 1_987_000_106
"""Whom it becomes where there is no such user. No program gives accounts, containers or services a
number between 1 879 048 192 and 2 147 483 647, so its files never become another account's."""
_STICKY = 0o1775
_END_S = 10
_LAUNCHER = "fairlead.executor.launcher"
_ISOLATED = (sys.executable, "-I")
"""Neither our environment nor the current directory decides what root imports."""
_ENVIRONMENT = {"LANG": "C.UTF-8", "PATH": os.defpath}


@dataclass(frozen=True, slots=True)
class ControlUser:
    """The user of the control plane; never root."""

    uid: int
    gid: int
    name: str


def control_user(name: str | None) -> ControlUser | None:
    """The user of this name, by default `fairlead-up`, else `NUMBER`. None for root: one process
    then."""
    if name in ("root", "0"):
        return None
    try:
        if name is not None and name.isascii() and name.isdigit():
            uid = int(name)
            return _unprivileged(ControlUser(uid, uid, name))
        entry = pwd.getpwnam(name or USER)
    except KeyError:
        if name is None:
            return ControlUser(NUMBER, NUMBER, f"user {NUMBER}")
        raise PermanentFault(f"this machine has no user {name!r}") from None
    return _unprivileged(ControlUser(entry.pw_uid, entry.pw_gid, entry.pw_name))


def obstacle(user: ControlUser, data: Path) -> str | None:
    """Why this user cannot run the control plane on a directory; None: it can. A child tries."""
    return _cannot_become(user, data) or _cannot_launch()


def _cannot_launch() -> str | None:
    done = subprocess.run(
        [*_ISOLATED, "-c", f"import {_LAUNCHER}"],
        env=_ENVIRONMENT,
        capture_output=True,
        check=False,
    )
    if done.returncode == 0:
        return None
    return (
        f"the launcher is started without PYTHONPATH, and {sys.executable} does not find Fairlead "
        "then: install it into that Python"
    )


def _cannot_become(user: ControlUser, data: Path) -> str | None:
    came, goes = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(goes, (_try(user, data) or "").encode())
        finally:
            os._exit(0)
    os.close(goes)
    with os.fdopen(came, "rb") as stream:
        said = stream.read().decode()
    os.waitpid(child, 0)
    return said or None


def _try(user: ControlUser, data: Path) -> str | None:
    try:
        become(user)
    except (PermanentFault, OSError) as error:
        return str(error)
    for folder in reversed(data.absolute().parents):  # below one that is closed nothing is seen
        if folder.exists() and not os.access(folder, os.X_OK):
            return f"{user.name} cannot enter {folder}"
    return None


def _unprivileged(user: ControlUser) -> ControlUser:
    if user.uid == 0 or user.gid == 0:
        raise PermanentFault("the control plane needs a user and a group other than root")
    return user


class LauncherProcess:
    """The launcher, and our ends of its channels."""

    def __init__(
        self,
        folder: Path,
        user: ControlUser,
        *,
        allow_root: bool,
        visible: Mapping[str, str],
        minors: Mapping[str, int],
        run_users: int | None = None,
    ) -> None:
        pairs = [socket.socketpair() for _ in range(CHANNELS)]
        self.channels = [ours for ours, _ in pairs]
        theirs = [end.fileno() for _, end in pairs]
        config = {
            "channels": theirs,
            "folder": str(folder),
            "allow_root": allow_root,
            "visible": dict(visible),
            "minors": dict(minors),
            "control_uid": user.uid,
            "control_gid": user.gid,
            "run_users": run_users,
        }
        self._process = subprocess.Popen(
            [*_ISOLATED, "-m", _LAUNCHER, json.dumps(config)],
            stdin=subprocess.DEVNULL,
            pass_fds=theirs,
            env=_ENVIRONMENT,
            cwd="/",
            start_new_session=True,
        )
        for _, end in pairs:
            end.close()

    def watch(self, on_end: Callable[[], object]) -> None:
        """Without it nothing can be started or stopped: call back when it has ended."""

        def wait() -> None:
            self._process.wait()
            on_end()

        threading.Thread(target=wait, daemon=True).start()

    def close(self) -> None:
        """It ends by itself when its channels do."""
        for channel in self.channels:
            with contextlib.suppress(OSError):
                channel.shutdown(socket.SHUT_RDWR)
            channel.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_S)


def prepare_directory(data: Path, runs: Path, user: ControlUser) -> None:
    """Give the control plane its files, and keep the launcher's folder out of its reach."""
    try:
        data.mkdir(mode=0o755, parents=True, exist_ok=True)
        found = os.stat(data, follow_symlinks=False)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != 0:
            raise PermanentFault(f"{data} must be a directory of root's: chown root {data}")
        os.chown(data, 0, user.gid)
        data.chmod(_STICKY)
        if not runs.exists():
            runs.mkdir(mode=0o711)
        elif runs.lstat().st_uid != 0 or not stat.S_ISDIR(runs.lstat().st_mode):
            raise PermanentFault(f"{runs} must be a directory of root's: chown -R root {runs}")
        for path in sorted(data.glob("ledger.*")):
            _give(path, user)
        _give_all(data / KEYS, user)
    except OSError as error:
        raise PermanentFault(f"cannot prepare {data}: {error}") from error


def reserve(folder: Path) -> None:
    """A folder of root's among the control plane's files: for an agent, which writes there as root.
    Made first, or refused: the control plane could have put a link in its place."""
    try:
        folder.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o755)
        found = folder.lstat()
    except OSError as error:
        raise PermanentFault(f"cannot make {folder}: {error}") from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != 0:
        raise PermanentFault(f"{folder} must be a directory of root's: move it away")


def _give_all(folder: Path, user: ControlUser) -> None:
    """What is in the folder that was opened: a process that an earlier control plane left behind
    may put a link in its place meanwhile."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return
    try:
        for name in sorted(os.listdir(descriptor)):
            _give(name, user, within=descriptor)
    finally:
        os.close(descriptor)
    _give(folder, user)


def _give(path: Path | str, user: ControlUser, *, within: int | None = None) -> None:
    """Through a descriptor, and never a link: what the control plane put there is not followed."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, dir_fd=within)
    except OSError:
        return
    try:
        found = os.fstat(descriptor)
        is_file = stat.S_ISREG(found.st_mode) and found.st_nlink == 1
        if found.st_uid in (0, NUMBER) and (is_file or stat.S_ISDIR(found.st_mode)):
            os.fchown(descriptor, user.uid, user.gid)
    finally:
        os.close(descriptor)


def become(user: ControlUser) -> None:
    """For good: no saved uid, no group, no capability, and no program that gives one."""
    prctl = kernel.load_prctl()
    os.setgroups([])
    os.setresgid(user.gid, user.gid, user.gid)
    os.setresuid(user.uid, user.uid, user.uid)
    prctl(kernel.NO_NEW_PRIVILEGES, 1)
    if os.getresuid() != (user.uid,) * 3 or os.getresgid() != (user.gid,) * 3 or os.getgroups():
        raise PermanentFault(f"cannot become {user.name}")
    with contextlib.suppress(OSError):
        os.setuid(0)
        raise PermanentFault(f"{user.name} can become root again")
    for path in (os.__file__, __file__):
        if not os.access(path, os.R_OK):
            raise PermanentFault(
                f"{user.name} cannot read {path} (install Fairlead where every user can read it)"
            )
