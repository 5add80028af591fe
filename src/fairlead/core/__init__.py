"""Decisions only: frozen values in, frozen values out. No clock, no randomness, no I/O.

Everything here is standard library only, so that a decision can be read, vendored and replayed
without installing anything. Import the package of a governor:
`from fairlead.core.cpu import clear`.
"""
