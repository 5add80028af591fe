"""What this machine can do for Fairlead: `checks` has what `fairlead doctor` checks."""
