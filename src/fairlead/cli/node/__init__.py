"""`fairlead node`: the CPU governor of one machine."""
