"""The command lines of a control plane: etcd, API server, controllers, scheduler, KWOK.

`cluster` starts them in this order, each with the cluster's directory as its working directory.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

HOST, SERVICE_NETWORK, SERVICE_ADDRESS = "127.0.0.1", "10.0.0.0/24", "10.0.0.1"
SERVER_NAMES = (
    *("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"),
    "kubernetes.default.svc.cluster.local",
)
# Relative names of Unix sockets, in the form that etcd insists on. Only the owner of the directory
# can reach them: etcd on a TCP port would make every local user an administrator.
_ETCD_CLIENTS, _ETCD_PEERS = "unix://client:1", "unix://peer:1"
ETCD_SOCKETS = ("client:1", "peer:1")
_QUOTA_BYTES = 4 * 2**30
# No cloud, and no addresses for nodes: the pods of simulated nodes get theirs from KWOK.
_CONTROLLERS = (
    "*,-node-ipam-controller,-node-route-controller,-cloud-node-lifecycle-controller,"
    "-service-lb-controller"
)
STAGES = Path(__file__).with_name("stages.yaml")
FAKE_NODE = "kwok.x-k8s.io/node"


SUPERVISED = ("kube-controller-manager", "kube-scheduler")
"""They end by themselves when what they know cannot be true, and rely on being started again: the
scheduler when it sees another pod of the same name after its watch was cut, which a rank that
starts anew may be (kubernetes/kubernetes#141078)."""


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """How a cluster differs from the usual one."""

    nodes: int = 0
    gpus: int = 8
    scheduler: bool = True
    controllers: bool = True
    """Off: the API server and etcd alone, as Kubernetes' own test environments are."""
    fsync: bool = False
    """Off: the cluster survives kill -9 but not a power cut, and starts a second earlier."""
    api_flags: tuple[str, ...] = ()
    """Further flags of the API server, such as an audit policy."""
    supervised: bool = False
    """Controllers and a scheduler that end by themselves are started again, as a kubelet does."""
    node_lease_s: int = 40
    """For so long a simulated node stands still when KWOK is started again."""
    stages: Path = STAGES
    """How simulated nodes and their pods behave, in KWOK's language."""
    real_node: bool = False
    """One node with a real kubelet, containerd and runc; needs root."""
    images: tuple[Path, ...] = ()
    """Archives of container images that the real node knows."""


def etcd(options: ClusterOptions) -> list[str]:
    return [
        "etcd",
        "--data-dir=etcd",
        f"--listen-client-urls={_ETCD_CLIENTS}",
        f"--advertise-client-urls={_ETCD_CLIENTS}",
        f"--listen-peer-urls={_ETCD_PEERS}",
        f"--initial-advertise-peer-urls={_ETCD_PEERS}",
        f"--initial-cluster=default={_ETCD_PEERS}",
        f"--quota-backend-bytes={_QUOTA_BYTES}",
        "--auto-compaction-mode=periodic",
        "--auto-compaction-retention=5m",
        *(() if options.fsync else ("--unsafe-no-fsync",)),
    ]


def api_server(options: ClusterOptions, port: int) -> list[str]:
    return [
        "kube-apiserver",
        f"--etcd-servers={_ETCD_CLIENTS}",
        f"--bind-address={HOST}",
        f"--advertise-address={HOST}",
        f"--secure-port={port}",
        "--endpoint-reconciler-type=none",
        f"--service-cluster-ip-range={SERVICE_NETWORK}",
        "--authorization-mode=Node,RBAC",
        "--allow-privileged=true",
        "--max-requests-inflight=5000",
        "--max-mutating-requests-inflight=2500",
        *_serving("pki/apiserver"),
        "--client-ca-file=pki/ca.crt",
        "--kubelet-certificate-authority=pki/ca.crt",
        "--kubelet-preferred-address-types=InternalIP",
        "--kubelet-client-certificate=pki/kubelet-client.crt",
        "--kubelet-client-key=pki/kubelet-client.key",
        "--proxy-client-cert-file=pki/front-proxy.crt",
        "--proxy-client-key-file=pki/front-proxy.key",
        "--requestheader-client-ca-file=pki/ca.crt",
        "--requestheader-allowed-names=front-proxy",
        "--requestheader-username-headers=X-Remote-User",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        "--service-account-issuer=https://kubernetes.default.svc",
        "--service-account-key-file=pki/sa.pub",
        "--service-account-signing-key-file=pki/sa.key",
        *options.api_flags,
    ]


def controller_manager() -> list[str]:
    return [
        "kube-controller-manager",
        *_client("controller-manager"),
        f"--controllers={_CONTROLLERS}",
        "--use-service-account-credentials=true",
        "--service-account-private-key-file=pki/sa.key",
        "--root-ca-file=pki/ca.crt",
        "--cluster-signing-cert-file=pki/ca.crt",
        "--cluster-signing-key-file=pki/ca.key",
    ]


def scheduler() -> list[str]:
    return ["kube-scheduler", *_client("scheduler")]


def kwok(options: ClusterOptions) -> list[str]:
    return [
        "kwok",
        "--kubeconfig=kubeconfigs/kwok",
        "--manage-all-nodes=false",
        f"--manage-nodes-with-annotation-selector={FAKE_NODE}=fake",
        f"--node-lease-duration-seconds={options.node_lease_s}",
        "--cidr=10.244.0.0/17",
        f"--config={options.stages}",
    ]


def _serving(name: str) -> Sequence[str]:
    return (f"--tls-cert-file={name}.crt", f"--tls-private-key-file={name}.key")


def _client(name: str) -> Sequence[str]:
    """No port of its own, no election: there is one of each."""
    return (
        f"--kubeconfig=kubeconfigs/{name}",
        "--secure-port=0",
        "--leader-elect=false",
        "--kube-api-qps=200",
        "--kube-api-burst=400",
    )


def fake_node(number: int, gpus: int) -> dict[str, object]:
    """A node of KWOK, as a machine with this many GPUs looks."""
    name = f"gpu-{number:04d}"
    amounts = {"cpu": "128", "memory": "1Ti", "pods": "110", "nvidia.com/gpu": str(gpus)}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "annotations": {FAKE_NODE: "fake"},
            "labels": {
                "type": "kwok",
                "kubernetes.io/hostname": name,
                "kubernetes.io/os": "linux",
                "kubernetes.io/arch": "amd64",
            },
        },
        "status": {
            "capacity": amounts,
            "allocatable": amounts,
            "addresses": [
                {"type": "InternalIP", "address": f"10.96.{number // 250}.{number % 250 + 1}"},
                {"type": "Hostname", "address": name},
            ],
        },
    }
