"""Process 1 of a real node: private mounts, then containerd and the kubelet until one of them ends.

`real_node` starts it in mount and process namespaces of its own:
`python -m fairlead.kube.dev.node_init SPEC`. When it ends, the kernel ends every process of the
node, containers included. Nothing that it mounts is seen outside.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

CONTAINERD_S, LINES_SHOWN = 30.0, 5
# What the kubelet would write for the whole machine; it finds its own value and writes nothing.
SYSCTLS = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
    "net/ipv4/ip_forward": "1",
}


def main() -> NoReturn:
    """Prepare, start both, and collect what ends."""
    spec = json.loads(Path(sys.argv[1]).read_text())
    _mount_private(Path(spec["directory"]), Path(spec["sockets"]))
    environment = {**os.environ, "PATH": f"{spec['programs']}:{os.environ['PATH']}"}
    containerd = _start(spec["containerd"], spec["log"], "containerd", environment)
    _import_images(spec, environment)
    kubelet = _start(spec["kubelet"], spec["log"], "kubelet", environment)
    while True:
        pid, status = os.wait()  # orphans of containers too: we are process 1
        if pid in (containerd, kubelet):
            name = "kubelet" if pid == kubelet else "containerd"
            text = (Path(spec["log"]) / f"{name}.log").read_text("utf-8", "replace")
            lines = "\n".join(text.splitlines()[-LINES_SHOWN:])
            sys.exit(f"{name} ended with {os.waitstatus_to_exitcode(status)}\n{lines}")


def _mount_private(directory: Path, sockets: Path) -> None:
    _mount("--make-rprivate", "/")
    _mount("-t", "proc", "proc", "/proc")
    for name in ("run", "var-lib", "sysctl"):
        (directory / name).mkdir(exist_ok=True)
    _mount_run(directory / "run", sockets)
    # Paths below /var/lib/kubelet are fixed in the kubelet, such as that of device plugins.
    _mount("--bind", str(directory / "var-lib"), "/var/lib")
    for name, value in SYSCTLS.items():
        copy = directory / "sysctl" / name.replace("/", ".")
        copy.write_text(f"{value}\n")
        _mount("--bind", str(copy), f"/proc/sys/{name}")
    # Volumes of pods propagate between the kubelet and containers.
    _mount("--make-rshared", "/")


def _mount_run(run: Path, sockets: Path) -> None:
    """An empty /run but for the folder of sockets, which is reached from outside too."""
    _mount("-t", "tmpfs", "tmpfs", str(run))
    for name in ("netns", sockets.name):
        (run / name).mkdir()
    _mount("--bind", str(sockets), str(run / sockets.name))
    _mount("--rbind", str(run), "/run")


def _mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True)


def _start(command: list[str], log: str, name: str, environment: dict[str, str]) -> int:
    with open(Path(log) / f"{name}.log", "ab") as output:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
        ).pid


def _import_images(spec: dict[str, Any], environment: dict[str, str]) -> None:
    ctr = spec["ctr"]
    deadline = time.monotonic() + CONTAINERD_S
    while subprocess.run([*ctr, "version"], capture_output=True, check=False).returncode:
        if time.monotonic() > deadline:
            sys.exit(f"containerd does not answer after {CONTAINERD_S:g} s")
        time.sleep(0.1)
    for image in spec["images"]:
        command = [*ctr, "-n", "k8s.io", "images", "import", "--local", image]
        subprocess.run(command, check=True, env=environment)


if __name__ == "__main__":
    main()
