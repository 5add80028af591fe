"""Tests of fairlead.core.lottery."""
