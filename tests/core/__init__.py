"""Tests of fairlead.core."""
