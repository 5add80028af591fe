"""Tests of fairlead.core.cpu."""
