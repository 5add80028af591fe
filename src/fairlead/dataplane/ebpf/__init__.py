"""The eBPF dataplane: the kernel sends connections to their backend, before the first packet.

`bpf/` holds the programs in C, `docs/operate/dataplane-ebpf.md` the operator's view.
"""

from fairlead.dataplane.ebpf.dataplane import EbpfDataplane as EbpfDataplane
from fairlead.dataplane.ebpf.dataplane import uninstall as uninstall
from fairlead.dataplane.ebpf.toolchain import DEFAULT_PINS as DEFAULT_PINS
from fairlead.dataplane.ebpf.toolchain import build as build
from fairlead.dataplane.ebpf.toolchain import default_cgroup as default_cgroup
from fairlead.dataplane.ebpf.toolchain import missing as missing
from fairlead.dataplane.ebpf.toolchain import object_file as object_file
