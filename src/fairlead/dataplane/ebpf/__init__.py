"""The eBPF dataplane: the kernel sends connections to their backend, before the first packet.

    build()                   compile the programs, once per machine
    missing()                 what this machine lacks, in words
    EbpfDataplane(cgroup)     the dataplane for all processes in a cgroup
    uninstall()               take it out of the kernel, whatever state it is in

`bpf/` holds the programs in C, `layout` what both sides share, `docs/operate/dataplane-ebpf.md` the
operator's view.
"""

from fairlead.dataplane.ebpf.dataplane import EbpfDataplane, uninstall
from fairlead.dataplane.ebpf.layout import Capacity
from fairlead.dataplane.ebpf.toolchain import (
    DEFAULT_PINS,
    build,
    default_cgroup,
    missing,
    object_file,
)

__all__ = [
    "DEFAULT_PINS",
    "Capacity",
    "EbpfDataplane",
    "build",
    "default_cgroup",
    "missing",
    "object_file",
    "uninstall",
]
