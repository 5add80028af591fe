"""Kubernetes: the controller, and a cluster of our own for development and tests.

    kinds        the kinds that Fairlead adds, and their CRDs; specs: what only they hold
    client       requests and watches; watch keeps a copy of what it tells
    election     who leads; controller orders one turn
    cpu/         pods resized by their load
    gpu/         runs: objects become requests to the engine, leases become pods
    traffic/     RouteGroups become groups of the traffic agent
    dev/         the programs of a cluster, and a cluster on this machine

`import fairlead.kube` loads none of them.
"""
