"""Tests of the ledger: one conformance suite for all adapters, then what only one of them has."""
