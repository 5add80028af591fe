"""Whole-system simulation: one process, virtual time, a seed; faults everywhere, checks always."""
