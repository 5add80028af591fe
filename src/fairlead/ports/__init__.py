"""Protocols between engines and the world, and the faults that adapters raise."""
