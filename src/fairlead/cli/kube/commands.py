"""The commands of `fairlead kube`."""

import signal
import sys
import sysconfig
import time
from pathlib import Path

import click

from fairlead.cli.kube.controller import controller, crds, restore
from fairlead.cli.main import EXIT_REFUSED
from fairlead.cli.options import NEW_FOLDER, Integer, flag, option

CHECK_S = 1.0


@click.group("kube")
def command() -> None:
    """Run Fairlead on Kubernetes, and clusters for development."""


command.add_command(controller)
command.add_command(crds)
command.add_command(restore)


@command.command("assets")
@flag("--node", "Also containerd, runc and CNI plugins.")
@flag("--tools", "Also Helm and kustomize.")
@flag("--peers", "Also Kueue and its benchmark.")
@flag("--check", "Build nothing; exit 1 if one is missing.")
def assets(*, check: bool, **sets: bool) -> None:
    """Find the programs of a cluster, or build them.

    Takes them from KUBEBUILDER_ASSETS if all are there, else from the user's cache. Builds what is
    missing with Go from pinned sources: 11 minutes on 2 cores, once. Ctrl-C keeps what is built.
    Prints their folder.

    \b
      fairlead kube assets
      fairlead kube assets --node --tools
      PATH=$(fairlead kube assets):$PATH kubectl version --client
    """
    from fairlead.kube.dev.assets import ensure, explain_missing
    from fairlead.kube.dev.pins import AssetSet

    wanted = frozenset(AssetSet(name) for name, given in sets.items() if given)
    lacking = explain_missing(wanted) if check else None
    if lacking is not None:
        click.echo(lacking, err=True)
        sys.exit(EXIT_REFUSED)
    programs = ensure(wanted, _note)
    click.echo(programs.directory)


@command.command("dev")
@option("--nodes", Integer(0, 5000), "Simulated nodes.", default=4)
@option("--gpus", Integer(0, 64), "GPUs of each node.", default=8)
@flag("--real-node", "Add a real kubelet with containerd, as root.")
@option("--dir directory", NEW_FOLDER, "Keep the cluster here and continue it next time.")
@flag("--no-controller bare", "Without Fairlead's kinds and controller.")
def dev(*, nodes: int, gpus: int, real_node: bool, bare: bool, directory: Path | None) -> None:
    """Run a Kubernetes cluster with Fairlead until Ctrl-C.

    On loopback: a real API server, etcd, controllers and scheduler; nodes and pods are simulated by
    KWOK. Fairlead's kinds are installed and its controller runs, with preemption; with --real-node
    its node agent, too, which sets CPU limits. The programs are built first where they are missing.
    Prints the kubeconfig, which only you can read. Without --dir the cluster is removed when it
    stops.

    \b
      fairlead kube dev --nodes 16
      export KUBECONFIG=~/.local/state/fairlead/kube/kubeconfig    # as it prints
      kubectl apply -f deploy/kube/example.yaml && kubectl get runs -A -w
    """
    from fairlead.host.paths import user_state_directory
    from fairlead.kube.dev.assets import ensure
    from fairlead.kube.dev.cluster import Cluster
    from fairlead.kube.dev.components import ClusterOptions
    from fairlead.kube.dev.pins import AssetSet
    from fairlead.kube.kinds import crds as crds_of
    from fairlead.kube.roles import tenant_role

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    programs = ensure(frozenset({AssetSet.NODE} if real_node else ()), _note)
    where = directory or user_state_directory() / "kube"
    options = ClusterOptions(nodes=nodes, gpus=gpus, real_node=real_node)
    with Cluster(programs, where, options, keep=directory is not None, report=_note) as cluster:
        if not bare:
            cluster.apply([*crds_of(), tenant_role()])
            cluster.run("fairlead-controller", _controller(cluster.directory, cluster.kubeconfig))
        if real_node and not bare:
            command = node_agent_command(cluster.directory / "node-agent", cluster.kubeconfig)
            cluster.run("fairlead-node", command)
        click.echo(f"export KUBECONFIG={cluster.kubeconfig}")
        click.echo(f"export PATH={':'.join(_path(Path(programs.directory)))}:$PATH")
        kept = "stays" if directory else "is removed"
        _note(f"Ctrl-C stops it; {where} {kept}. Logs: {where}/log")
        try:
            while True:
                time.sleep(CHECK_S)
                cluster.check()
        except KeyboardInterrupt:
            _note("stopping")


def _path(programs: Path) -> list[str]:
    """Where kubectl and its plugins are: those of this installation, if it has them."""
    scripts = Path(sysconfig.get_path("scripts"))
    return [str(programs), *([str(scripts)] if (scripts / "kubectl-runs").exists() else [])]


def _controller(directory: Path, kubeconfig: Path) -> list[str]:
    """Its ledger is with the cluster, and as long-lived."""
    command = [sys.executable, "-m", "fairlead", "kube", "controller", "--qps", "0"]
    command += ["--resolver", "enforce", "--image", "busybox", "--admin-namespace", "default"]
    # To try things out a reservation needs no hour of notice.
    command += ["--min-notice", "0s", "--min-runtime", "0s", "--cooldown", "0s"]
    return [*command, "--kubeconfig", str(kubeconfig), "--data", str(directory / "ledger")]


def node_agent_command(directory: Path, kubeconfig: Path) -> list[str]:
    """The node agent of a cluster's real node."""
    from fairlead.kube.dev.real_node import CGROUP, NAME

    command = [sys.executable, "-m", "fairlead", "node", "run", "--kube", "--node-name", NAME]
    command += ["--root", CGROUP, "--kubeconfig", str(kubeconfig)]
    return [*command, "--state-dir", str(directory)]


def _note(line: str) -> None:
    click.echo(line, err=True)
