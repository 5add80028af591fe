"""End to end: the real command, real processes, real cgroups."""
