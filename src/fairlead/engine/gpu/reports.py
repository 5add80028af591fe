"""Tables for people and for chargeback, worked out from the projection."""

from fairlead.engine.gpu.control import Store


class Reports(Store):
    """Read-only questions over all objects."""
