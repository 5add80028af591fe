"""What became of an object that people wrote: taken, refused, or waiting for what is missing."""

from msgspec import Struct

from fairlead.engine.gpu.values import Denied
from fairlead.kube.client import MISREAD
from fairlead.kube.kinds import as_named_in
from fairlead.kube.watch import Key
from fairlead.schema.border import BadInput

TOO_MANY, NO_OWNER, NO_RUN = "TooManyRuns", "NoOwner", "NoRun"
WAITING = frozenset({TOO_MANY, NO_OWNER, NO_RUN})
"""Not taken yet, and taken by itself when what is missing comes: no refusal."""
TEXT_MAX = 1000
"""Of what is said of a refusal: it may name a field that is as long as an object can be."""
REFUSALS = (BadInput, Denied, *MISREAD)
"""What an object of a tenant may lead to. One that we misread keeps no other one waiting."""


class Acceptance(Struct, frozen=True, gc=False):
    """What became of an object's present generation; shown as the condition `Accepted`."""

    accepted: bool
    reason: str
    message: str
    uid: str
    """One that is made again under its name is another object."""
    generation: int

    @property
    def version(self) -> tuple[str, int]:
        return self.uid, self.generation

    @property
    def waits(self) -> bool:
        return not self.accepted and self.reason in WAITING


def refused(key: Key, error: Exception, version: tuple[str, int]) -> Acceptance:
    if isinstance(error, BadInput):
        return Acceptance(False, "Invalid", _told(key, str(error)), *version)
    if isinstance(error, Denied):
        return Acceptance(False, error.reason, _told(key, error.message), *version)
    return Acceptance(False, "Unreadable", repr(error)[:TEXT_MAX], *version)


def _told(key: Key, message: str) -> str:
    """What is said of an object, with the names of its namespace."""
    return str(as_named_in(key.namespace, message) if key.namespace else message)[:TEXT_MAX]
