"""The resolver: frees GPUs by preemption, with a lottery that every tenant can check."""
