"""The loops' own logic: snapshot → decide → record → apply, one package per governor.

Engines hold state but never touch the machine: readings and times come in as arguments, plans go
out as values. The simulator and the agents drive the same classes.
"""
