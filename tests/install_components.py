"""Installs what the tests need of the machine: Debian packages, as root on Debian, if missing.

`python -m tests.install_components` is quiet and quick where all is there; where it cannot install
it says what is missing and exits 0, because the tests name what they had to leave out themselves.
Under FAIRLEAD_STRICT=1 it also builds the programs of a Kubernetes cluster, and our image, once.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable

from fairlead.kube.dev.assets import ensure
from fairlead.kube.dev.pins import AssetSet
from fairlead.ports.faults import Fault
from tests.dataplane.ebpf.places import missing_ebpf_packages
from tests.kube.container_image import PACKAGES as IMAGE_PACKAGES
from tests.kube.container_image import build as build_image
from tests.kube.container_image import missing_image
from tests.kube.real_nodes import missing_busybox
from tests.ledger.postgres_server import missing_postgres
from tests.monitoring.prometheus import missing_prometheus
from tests.verify.node import missing_node
from tests.web.browser import missing_chromium

# Component, what is missing of it (None: nothing), the packages that bring it.
COMPONENTS: dict[str, tuple[Callable[[], str | None], tuple[str, ...]]] = {
    "node": (missing_node, ("nodejs",)),
    "postgres": (missing_postgres, ("postgresql", "postgresql-client")),
    "cc": (lambda: _missing_program("cc"), ("gcc", "libc6-dev")),
    "chromium": (missing_chromium, ("chromium",)),
    "systemd": (lambda: _missing_program("systemd-analyze"), ("systemd",)),
    "zsh": (lambda: _missing_program("zsh"), ("zsh",)),
    "fish": (lambda: _missing_program("fish"), ("fish",)),
    "haproxy": (lambda: _missing_program("haproxy"), ("haproxy",)),
    "ebpf": (missing_ebpf_packages, ("clang", "libbpf-dev", "libbpf1", "bpftool")),
    "image": (missing_image, IMAGE_PACKAGES),
    "prometheus": (missing_prometheus, ("prometheus",)),
    "iptables": (lambda: _missing_program("iptables"), ("iptables",)),
    "real-node": (missing_busybox, ("busybox-static", "iproute2")),
}
APT = ["apt-get", "-y", "-qq", "-o", "DPkg::Lock::Timeout=300"]


def _missing_program(name: str) -> str | None:
    return None if shutil.which(name) else f"{name} is not on PATH"


def main() -> int:
    """Install what is missing, as far as this user on this machine can."""
    strict = os.environ.get("FAIRLEAD_STRICT") == "1"
    if strict:
        _build_kubernetes()
    done = _install_packages()
    if strict and missing_image() is None:
        print("building the image of deploy/Dockerfile", flush=True)
        build_image()
    return done


def _build_kubernetes() -> None:
    try:
        ensure(frozenset({AssetSet.NODE, AssetSet.TOOLS}), lambda line: print(line, flush=True))
    except Fault as fault:
        print(f"could not build the programs of a cluster: {fault}", file=sys.stderr)


def _install_packages() -> int:
    missing = {name: packages for name, (find, packages) in COMPONENTS.items() if find()}
    if not missing:
        return 0
    names = ", ".join(missing)
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        print(
            f"missing, and only root on Debian can install it from here: {names}", file=sys.stderr
        )
        return 0
    packages = sorted({package for group in missing.values() for package in group})
    print(f"installing {' '.join(packages)}", flush=True)
    # The package would start a server of its own; the tests start theirs.
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    for command in (["update"], ["install", "--no-install-recommends", *packages]):
        done = subprocess.run([*APT, *command], check=False, env=environment)
        if done.returncode != 0:
            print(f"could not install: {names}", file=sys.stderr)
            return 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
