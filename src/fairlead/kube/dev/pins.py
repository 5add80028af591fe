"""What is built, from which Go modules and in which version.

`go/<source>/go.mod` pins the versions of a source and everything it imports, `go.sum` their
content. The folders ship with the package, so that every installation builds the same programs.
`assets` builds them; `docs/kubernetes.md` says how to change a version.
"""

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

GO_DIRECTORY = Path(__file__).parent / "go"
TOOLCHAIN_PINS = GO_DIRECTORY / "toolchain.txt"
GO_MIN = (1, 26)
"""What the newest of the pinned modules asks for."""


class AssetSet(StrEnum):
    """Programs that are wanted together."""

    CLUSTER = "cluster"
    NODE = "node"
    TOOLS = "tools"
    PEERS = "peers"


@dataclass(frozen=True, slots=True)
class GoSource:
    """A project: one Go module with its programs, pinned together."""

    name: str
    """The folder of its pins."""
    wanted_for: AssetSet
    module: str
    programs: dict[str, str]
    """Name of the program, and its package below the module."""
    stamps: tuple[str, ...] = ()
    """Variables of the linker: VERSION is the source's, MINOR that of Kubernetes 1."""
    seccomp: bool = False
    """Needs a C compiler and libseccomp."""
    data: tuple[str, ...] = ()
    """Folders of the module that are needed beside the programs."""
    ours: bool = False
    """The source is in the folder itself."""

    @property
    def folder(self) -> Path:
        return GO_DIRECTORY / self.name

    @property
    def version(self) -> str:
        """As go.mod pins it, without the `v`; our own source has Kubernetes' version."""
        if self.ours:
            return KUBERNETES.version
        line = rf"^(?:require)?\s*{re.escape(self.module)} v(\S+)"
        found = re.search(line, (self.folder / "go.mod").read_text(), re.MULTILINE)
        if found is None:
            raise ValueError(f"{self.folder}/go.mod does not require {self.module}")
        return found.group(1)

    def linker_flags(self) -> str:
        minor = KUBERNETES.version.split(".")[1]
        values = (stamp.replace("VERSION", self.version) for stamp in self.stamps)
        stamps = (f"-X {value.replace('MINOR', minor)}" for value in values)
        static = ("-extldflags -static",) if self.seccomp else ()
        return " ".join(("-s -w", *stamps, *static))

    def digest(self) -> str:
        """Changes when anything changes that a program of this source is built from."""
        pins = b"".join(path.read_bytes() for path in sorted(self.folder.iterdir()))
        rest = repr((self.programs, self.linker_flags(), self.seccomp, self.data))
        return hashlib.sha256(pins + rest.encode()).hexdigest()[:24]


def _kubernetes_stamps() -> Iterator[str]:
    # Without these a server calls itself v0.0.0-master and clients refuse its version.
    for package in ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version"):
        yield f"{package}.gitVersion=vVERSION"
        yield f"{package}.gitMajor=1"
        yield f"{package}.gitMinor=MINOR"
        yield f"{package}.gitTreeState=clean"
        yield f"{package}.gitCommit={'0' * 40}"
        yield f"{package}.buildDate=2026-01-01T00:00:00Z"


_KUBERNETES = (
    *("kube-apiserver", "kubectl", "kube-controller-manager", "kube-scheduler", "kubelet"),
)
_CONTAINERD = ("containerd", "ctr", "containerd-shim-runc-v2")

SOURCES = (
    GoSource(
        "kubernetes",
        AssetSet.CLUSTER,
        "k8s.io/kubernetes",
        {name: f"cmd/{name}" for name in _KUBERNETES},
        stamps=tuple(_kubernetes_stamps()),
    ),
    GoSource("etcd", AssetSet.CLUSTER, "go.etcd.io/etcd/server/v3", {"etcd": ""}),
    GoSource("kwok", AssetSet.CLUSTER, "sigs.k8s.io/kwok", {"kwok": "cmd/kwok"}),
    GoSource(
        "containerd",
        AssetSet.NODE,
        "github.com/containerd/containerd/v2",
        {name: f"cmd/{name}" for name in _CONTAINERD},
    ),
    GoSource(
        "runc",
        AssetSet.NODE,
        "github.com/opencontainers/runc",
        {"runc": ""},
        stamps=("main.version=VERSION",),
        seccomp=True,
    ),
    GoSource(
        "cni",
        AssetSet.NODE,
        "github.com/containernetworking/plugins",
        {
            "bridge": "plugins/main/bridge",
            "loopback": "plugins/main/loopback",
            "host-local": "plugins/ipam/host-local",
        },
    ),
    GoSource("pause", AssetSet.NODE, "fairlead.dev/kube/pause", {"pause": ""}, ours=True),
    GoSource(
        "helm",
        AssetSet.TOOLS,
        "helm.sh/helm/v3",
        {"helm": "cmd/helm"},
        stamps=(
            "helm.sh/helm/v3/internal/version.version=vVERSION",
            # The Kubernetes that `helm template` and `helm lint` assume; 1.20 otherwise.
            "helm.sh/helm/v3/pkg/chartutil.k8sVersionMinor=MINOR",
            "helm.sh/helm/v3/pkg/lint/rules.k8sVersionMinor=MINOR",
        ),
    ),
    GoSource("kustomize", AssetSet.TOOLS, "sigs.k8s.io/kustomize/kustomize/v5", {"kustomize": ""}),
    GoSource(
        "kueue",
        AssetSet.PEERS,
        "sigs.k8s.io/kueue",
        {
            "kueue": "cmd/kueue",
            "minimalkueue": "test/performance/scheduler/minimalkueue",
            "kueue-perf-runner": "test/performance/scheduler/runner",
        },
        stamps=("sigs.k8s.io/kueue/pkg/version.GitVersion=vVERSION",),
        data=("config", "test/performance/scheduler"),
    ),
)
KUBERNETES = SOURCES[0]


def sources_of(wanted: frozenset[AssetSet]) -> tuple[GoSource, ...]:
    """The sources of these sets; every set needs the cluster."""
    return tuple(source for source in SOURCES if source.wanted_for in wanted | {AssetSet.CLUSTER})
