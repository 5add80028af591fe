"""Archives the oldest entries of a ledger so that its control plane can start without them."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fairlead.api.access import Access
from fairlead.engine.gpu import ControlPlane
from fairlead.host.clock import now_ms
from fairlead.ledger.place import open_file
from fairlead.ledger.sqlite import SqliteLedger
from fairlead.ports.faults import PermanentFault


@contextmanager
def archivable(path: Path, last: int) -> Iterator[SqliteLedger]:
    """A ledger whose entries up to `last` may go to an archive: what they led to is kept first.

    Without that the control plane could not start again: it would have to fold what is gone. What
    an open outcome was committed to stays, or it could neither be drawn nor given up.
    """
    with open_file(path) as ledger:
        if ledger.last("object.applied") is not None:
            plane = ControlPlane(ledger, None, now_ms)
            plane.committer.checkpoint()
            oldest = plane.outcome_reports.oldest_open()
            if oldest is not None and oldest <= last:
                raise PermanentFault(f"outcome {oldest} is not over: archive up to {oldest - 1}")
        Access(ledger, now_ms).keep(every=1)
        yield ledger
