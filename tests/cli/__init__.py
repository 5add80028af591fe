"""Tests of fairlead.cli."""
