"""Runs commands as local processes: a shim per job, confined, as the submitting user. README.md.

The shim process imports this package too and must stay small, so nothing is imported here.
"""
