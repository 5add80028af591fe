"""A node belongs to a host: this one's own, or a virtual one. Two nodes over the same devices would
lease each of them twice, and no process can be started on another machine."""

from collections.abc import Iterable

from fairlead.core.units import counted
from fairlead.engine.gpu.projection import Projection, node_spec
from fairlead.engine.gpu.values import HostNodes, Refused
from fairlead.schema.objects import NodeManifest, NodeSpec

SEVERAL = "several GPU hosts: run Fairlead on Kubernetes (docs/kubernetes.md)"
VIRTUAL = "for a tutorial or a test: spec.virtual: true"


def foreign(host: HostNodes | None, name: str, spec: NodeSpec) -> str | None:
    """Why a node can be none here; None: it can. Without a host, nodes come from a cluster."""
    if host is None or spec.virtual is True:
        return None
    devices = host.devices.get(name)
    if devices is None:
        here = ", ".join(sorted(host.devices)) or f"no NVIDIA device ({host.note or 'none found'})"
        return f"node {name!r} is not of this host, which has {here}; {SEVERAL}; {VIRTUAL}"
    if spec.devices > devices:
        has = counted(devices, "device")
        return f"node {name!r} has {has}, not {spec.devices}; {SEVERAL}; {VIRTUAL}"
    return None


def refuse_foreign(host: HostNodes | None, manifests: Iterable[object]) -> None:
    for manifest in manifests:
        if isinstance(manifest, NodeManifest):
            why = foreign(host, manifest.metadata.name, manifest.spec)
            if why is not None:
                raise Refused("NotThisHost", why)


def foreign_nodes(projection: Projection, host: HostNodes | None) -> dict[str, str]:
    """Nodes that an earlier version let in, and why they are none."""
    nodes = {stored.name: node_spec(stored) for stored in projection.of_kind("Node")}
    found = {name: foreign(host, name, spec) for name, spec in nodes.items()}
    return {name: why for name, why in found.items() if why is not None}
