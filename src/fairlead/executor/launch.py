"""From the shim's child to the user's command: drop everything that is ours, then exec.

Runs in the forked child only. What fails is reported to the shim as a sentence and an exit code by
the conventions of the shell: 127 for a command that is not there, 126 for one that cannot be run.
"""

import contextlib
import errno
import fcntl
import os
import signal
import stat
import termios
from typing import Any, NoReturn

from fairlead.host import kernel

NOT_FOUND, CANNOT = 127, 126
_SECRET_BYTES_MAX = 64 * 1024


class CannotStart(Exception):
    """Why the command was not started."""


def become(job: dict[str, Any], *, shim_pid: int, go: int, error: int, output: int) -> NoReturn:
    """Wait for the word, then become the command. All signals are blocked by the caller."""
    code, reason = CANNOT, ""
    try:
        os.setsid()
        source = output if job.get("terminal") else os.open(os.devnull, os.O_RDONLY)
        for given, target in ((source, 0), (output, 1), (output, 2)):
            os.dup2(given, target, inheritable=True)
        if job.get("terminal"):
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        # No word means that the shim died before it wrote down that we exist: do nothing.
        if os.read(go, 1):
            _drop_to(job, shim_pid)
            _enter(job)
            secrets = {name: _secret(name, path) for name, path in job["secrets"].items()}
            _default_signals()
            os.execvpe(job["argv"][0], job["argv"], {**job["env"], **secrets})
    except CannotStart as failure:
        reason = str(failure)
    except FileNotFoundError:
        code, reason = NOT_FOUND, f"command not found: {job['argv'][0]}"
    except OSError as failure:
        reason = f"{job['argv'][0]}: {failure.strerror}"
    except BaseException as failure:  # noqa: BLE001 - a forked child must never return
        # Only its kind: the message of an unforeseen error might quote a secret.
        reason = f"{job['argv'][0]}: cannot be started ({type(failure).__name__})"
    os.write(error, reason.encode(errors="backslashreplace"))
    os._exit(code)


def _drop_to(job: dict[str, Any], shim_pid: int) -> None:
    """Become the user for good, and die with the shim.

    The C library is loaded first: the user may not be allowed to read Python's own files.
    """
    prctl = kernel.load_prctl()
    uid, gid = job["uid"], job["gid"]
    if uid == 0 and not job["allow_root"]:
        raise CannotStart("running as root is not allowed here (fairlead up --allow-root)")
    os.umask(job["umask"])
    try:
        if os.geteuid() == 0:
            os.setgroups(job["groups"])
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
    except OSError as error:
        raise CannotStart(f"cannot become user {uid}: {error.strerror}") from error
    if os.getresuid() != (uid, uid, uid) or os.getresgid() != (gid, gid, gid):
        raise CannotStart(f"cannot become user {uid}")
    # After the change of user, which would clear it. Without its shim the command's output and exit
    # are lost, so it must not go on; the race with a shim that just died is closed below.
    try:
        prctl(kernel.DIE_WITH_PARENT, signal.SIGKILL)
        prctl(kernel.NO_NEW_PRIVILEGES, 1)
    except OSError as error:
        raise CannotStart(f"cannot be bound to its shim: {error.strerror}") from error
    if os.getppid() != shim_pid:
        os._exit(CANNOT)


def _enter(job: dict[str, Any]) -> None:
    """Change the directory as the user, who may see less, or more, than we do."""
    wanted = job["cwd"]
    try:
        os.chdir(wanted if wanted is not None else job["env"]["HOME"])
    except OSError as error:
        if wanted is not None:
            raise CannotStart(f"working directory {wanted}: {error.strerror}") from error
        os.chdir("/")


def _secret(name: str, path: str) -> str:
    """The content of a file, read as the user. Errors name the file, never what is in it."""
    try:
        # Non-blocking: a FIFO must not hang the start.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        data = os.read(descriptor, _SECRET_BYTES_MAX + 1)
        if len(data) > _SECRET_BYTES_MAX or b"\0" in data:
            raise OSError(errno.EINVAL, "too long, or holds a zero byte")
        os.close(descriptor)
    except OSError as error:  # the process ends, and with it the descriptor
        raise CannotStart(f"secret {name} from {path}: {error.strerror}") from error
    # Files made by an editor end in a newline that is no part of the secret.
    return os.fsdecode(data.removesuffix(b"\n"))


def _default_signals() -> None:
    """Python ignores SIGPIPE and the shim ignores more; none of it is the command's business."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        with contextlib.suppress(OSError, ValueError):  # reserved by the C library
            signal.signal(number, signal.SIG_DFL)
    # A SIGTERM that came meanwhile is delivered here, to the default handler.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
