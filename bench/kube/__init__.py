"""Fairlead beside Kueue on the same kind of API server: Kueue's published baseline."""
