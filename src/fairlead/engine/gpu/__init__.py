"""The GPU control plane: commands, admission, settlement, objects as the ledger tells them."""

from fairlead.engine.gpu.control import Config
from fairlead.engine.gpu.plane import ControlPlane
from fairlead.engine.gpu.projection import Projection
from fairlead.engine.gpu.state import Phase, job_prefix
from fairlead.engine.gpu.values import (
    Applied,
    Author,
    Conflict,
    Denied,
    Forbidden,
    NotFound,
    Refused,
)

__all__ = [
    "Applied",
    "Author",
    "Config",
    "Conflict",
    "ControlPlane",
    "Denied",
    "Forbidden",
    "NotFound",
    "Phase",
    "Projection",
    "Refused",
    "job_prefix",
]
