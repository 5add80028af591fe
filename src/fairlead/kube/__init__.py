"""Kubernetes: the controller, and a cluster of our own for development and tests.

    kinds        the kinds that Fairlead adds, and their CRDs
    client       requests and watches; watch keeps a copy of what it tells
    front        objects become requests to the engine
    pods         the executor: runs as pods
    mirror       status, conditions, leases and events show what the ledger says
    election     who leads; controller orders one turn

    pins         what is built, from which Go modules, in which version
    toolchain    the Go compiler: of the machine, else from PyPI
    assets       finds the programs, or builds them once, below the user's cache
    cluster      a control plane on loopback, with simulated GPU nodes

`import fairlead.kube` loads none of them.
"""
