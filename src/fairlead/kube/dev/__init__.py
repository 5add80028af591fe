"""A cluster of our own, for development and tests.

pins         what is built, from which Go modules, in which version
toolchain    the Go compiler: of the machine, else from PyPI
assets       finds the programs, or builds them once, below the user's cache
cluster      a control plane on loopback, with simulated GPU nodes
real_node    a kubelet with containerd and runc on this machine
"""
