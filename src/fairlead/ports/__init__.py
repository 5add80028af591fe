"""Protocols between engines and the world, and the faults that adapters raise."""

from fairlead.ports.faults import Fault, PermanentFault, TemporaryFault

__all__ = ["Fault", "PermanentFault", "TemporaryFault"]
