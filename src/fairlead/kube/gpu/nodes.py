"""A node of the cluster as the engine's, and whether it is out of service."""

from fairlead.kube.client import Document
from fairlead.kube.gpu.ranks import GPU, whole
from fairlead.kube.kinds import GROUP
from fairlead.schema.objects import API_VERSION

UID = f"{GROUP}/uid"
"""The label of what is in the ledger: which object of the cluster it was made from."""
FLAVOR = f"{GROUP}/flavor"
PRODUCT = "nvidia.com/gpu.product"
OUT_OF_SERVICE = "node.kubernetes.io/out-of-service"
LOCATION = {
    "topology.kubernetes.io/region": "region",
    "topology.kubernetes.io/zone": "zone",
    f"{GROUP}/cluster": "cluster",
    f"{GROUP}/fabric": "fabric",
}


def is_out(document: Document) -> bool:
    """Whether a node is declared out of service, or is being deleted."""
    taints = {taint["key"] for taint in document.get("spec", {}).get("taints") or ()}
    return OUT_OF_SERVICE in taints or "deletionTimestamp" in document["metadata"]


def is_another(before: Document, document: Document | None) -> bool:
    """Whether a node of the ledger was deleted, and one made under its name, perhaps while no
    controller ran: what ran on the one does not run on the other."""
    known = before["metadata"]["labels"].get(UID)
    return document is not None and known not in (None, document["metadata"]["uid"])


def is_as(before: Document, manifest: Document) -> bool:
    """Whether the ledger's node is what the manifest says."""
    same = before["metadata"]["labels"] == manifest["metadata"]["labels"]
    spec = {"foreign": 0, **before["spec"]}
    return bool(same and spec == {**spec, "foreign": 0, **manifest["spec"]})


def node_manifest(document: Document, foreign: int = 0) -> Document | None:
    """A node of the cluster as the engine's; None without GPUs. `foreign`: those that pods of
    others hold."""
    meta, spec = document["metadata"], document.get("spec", {})
    devices = whole(document.get("status", {}).get("allocatable", {}).get(GPU, "0"))
    if not devices:
        return None
    labels = meta.get("labels", {})
    return {
        "apiVersion": API_VERSION,
        "kind": "Node",
        "metadata": {"name": meta["name"], "labels": {UID: meta["uid"]}},
        "spec": {
            "flavor": labels.get(FLAVOR) or labels.get(PRODUCT) or "gpu",
            "devices": devices,
            "location": {
                name: labels[label] for label, name in LOCATION.items() if labels.get(label)
            },
            "cordoned": bool(spec.get("unschedulable", False)),
            **({"foreign": min(foreign, devices)} if foreign else {}),
        },
    }
