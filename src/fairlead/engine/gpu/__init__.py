"""The GPU control plane: services on one committer of the ledger. See README.md."""

from fairlead.engine.gpu.plane import ControlPlane
from fairlead.engine.gpu.projection import Projection
from fairlead.engine.gpu.state import Phase, job_prefix
from fairlead.engine.gpu.values import (
    Applied,
    Author,
    BeaconSource,
    Config,
    Denied,
    EditConflict,
    Forbidden,
    NotFound,
    Refused,
)

__all__ = [
    "Applied",
    "Author",
    "BeaconSource",
    "Config",
    "ControlPlane",
    "Denied",
    "EditConflict",
    "Forbidden",
    "NotFound",
    "Phase",
    "Projection",
    "Refused",
    "job_prefix",
]
