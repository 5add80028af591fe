"""Puts limits in force below the agent's root, and nowhere else."""

import errno

from fairlead.core.invariant import require
from fairlead.node.cgroups import CgroupFiles, quota_for
from fairlead.node.kernel_files import Quota
from fairlead.node.sensor import container_path
from fairlead.ports.cpu import Gone
from fairlead.ports.faults import Fault, PermanentFault, TemporaryFault

_RETRY_AFTER_MS = 1_000
_PASSING = {errno.EAGAIN, errno.EBUSY, errno.EINTR, errno.EIO, errno.ENOMEM}


class CgroupActuator:
    """A `CpuActuator` over real cgroups."""

    def __init__(self, files: CgroupFiles, *, burst: bool = True) -> None:
        self._files, self._burst = files, burst

    def write(self, decision: int, uid: str, container: str, millicores: int) -> int:
        """Limit one container, keeping its period where the grant allows; reads the limit back."""
        require(decision >= 0, "a limit is written for a recorded decision")
        path = container_path(uid, container)
        try:
            before = self._files.quota(path)
            if before is None:
                raise TemporaryFault(f"{path}: limit unreadable", retry_after_ms=_RETRY_AFTER_MS)
            self._files.set_quota(path, quota_for(millicores, before.period_us, burst=self._burst))
            after = self._files.quota(path)
        except OSError as error:
            raise _fault(path, error) from error
        if after is None or after.millicores is None:
            raise TemporaryFault(f"{path}: limit unreadable", retry_after_ms=_RETRY_AFTER_MS)
        return after.millicores

    def put_back(self, uid: str, container: str, quota: Quota) -> None:
        """Restore a quota and period exactly as they were found."""
        path = container_path(uid, container)
        try:
            self._files.set_quota(path, quota)
        except OSError as error:
            raise _fault(path, error) from error


def _fault(path: str, error: OSError) -> Fault:
    text = f"{path}: {error.strerror or error}"
    if error.errno in (errno.ENOENT, errno.ENODEV):
        return Gone(text)
    if error.errno in _PASSING:
        return TemporaryFault(text, retry_after_ms=_RETRY_AFTER_MS)
    return PermanentFault(text)
