"""`kubectl runs` and `kubectl fairlead`: the commands of `fairlead` for a cluster."""
