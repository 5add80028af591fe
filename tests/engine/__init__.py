"""Tests of fairlead.engine."""
