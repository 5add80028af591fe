"""Tests of the eBPF plane: real programs in the kernel, real connections on loopback."""
