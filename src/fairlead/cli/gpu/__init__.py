"""Commands of the GPU governor: objects, budgets, preemption, access."""
