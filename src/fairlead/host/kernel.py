"""What Linux does for processes: ending with the parent, adopting orphans, privileges.

Standard library only, and little of it: the job shim stays in memory with this module.
"""

import os
import signal
from collections.abc import Callable

DIE_WITH_PARENT, ADOPT_ORPHANS, NO_NEW_PRIVILEGES = 1, 36, 38
"""Options of prctl: PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS."""


def load_prctl() -> Callable[[int, int], None]:
    """prctl(option, value), which raises OSError.

    Loaded apart from its use: a process that has become another user may not be able to read
    Python's own files any more.
    """
    import ctypes  # noqa: PLC0415 - it costs a megabyte

    library = ctypes.CDLL(None, use_errno=True)

    def prctl(option: int, value: int) -> None:
        if library.prctl(option, value, 0, 0, 0):
            code = ctypes.get_errno()
            raise OSError(code, f"prctl({option}): {os.strerror(code)}")

    return prctl


def die_with_parent(parent: int, number: int = signal.SIGTERM) -> bool:
    """Have the kernel signal us when our parent ends; False if `parent` was gone before that."""
    load_prctl()(DIE_WITH_PARENT, number)
    return os.getppid() == parent
