"""Tests of fairlead.golden."""
