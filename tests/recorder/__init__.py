"""Tests of fairlead.recorder."""
