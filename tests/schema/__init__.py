"""Tests of fairlead.schema."""
