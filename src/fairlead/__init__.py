"""Fairlead leads scarce compute fairly: deterministic, explained, replayable decisions."""

__version__ = "0.1.0"
