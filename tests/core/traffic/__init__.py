"""Tests of fairlead.core.traffic."""
