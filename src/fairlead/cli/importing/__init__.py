"""`fairlead import`: budgets from what other schedulers have, and a report of what they lose."""
