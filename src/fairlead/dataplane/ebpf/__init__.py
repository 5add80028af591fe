"""The eBPF plane: connections are sent to their backend by the kernel, before the first packet.

    build()                 compile the programs, once per machine (`fairlead traffic build-ebpf`)
    missing()               what this machine lacks, in words
    EbpfPlane(cgroup)       the plane for all processes in a cgroup
    uninstall()             take it out of the kernel, whatever state it is in

`bpf/` holds the programs in C, `layout` what both sides share, `docs/operate/dataplane-ebpf.md` the
operator's view.
"""

from fairlead.dataplane.ebpf.build import build, object_file
from fairlead.dataplane.ebpf.layout import Capacity
from fairlead.dataplane.ebpf.plane import EbpfPlane, uninstall
from fairlead.dataplane.ebpf.requirements import DEFAULT_PINS, default_cgroup, missing

__all__ = [
    "DEFAULT_PINS",
    "Capacity",
    "EbpfPlane",
    "build",
    "default_cgroup",
    "missing",
    "object_file",
    "uninstall",
]
