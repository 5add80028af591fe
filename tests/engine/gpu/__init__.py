"""Tests of fairlead.engine.gpu."""
