"""Tests of fairlead.core.gpu."""
