"""Tests of fairlead.notify, and of the herald that feeds it."""
