"""Checkpoints of the projection: kept beside the ledger, read at a start, never the truth."""

from fairlead.engine.gpu.projection import Projection
from fairlead.ports.ledger import Ledger

NAME = "gpu.control"


def save(ledger: Ledger, projection: Projection) -> None:
    """Keep the projection under its sequence number."""


def load(ledger: Ledger) -> Projection:
    """The last checkpoint, or an empty projection."""
    return Projection()
