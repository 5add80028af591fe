"""Runs on a cluster.

front        objects become requests to the engine
template     what a run's pod template may hold
pods         the executor: runs as pods
mirror       status, conditions, leases and events show what the ledger says
"""
