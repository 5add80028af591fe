"""`fairlead audit`: the ledger, its proofs and the outcomes of preemption."""
