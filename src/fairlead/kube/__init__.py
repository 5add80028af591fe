"""Kubernetes: the programs of a cluster, built from pinned sources, and a cluster for development.

    pins       what is built, from which Go modules, in which version
    toolchain  the Go compiler: of the machine, else from PyPI
    assets     finds the programs, or builds them once, below the user's cache
    cluster    a control plane on loopback, with simulated GPU nodes

`fairlead kube` and the tests call it. Nothing is imported here.
"""
