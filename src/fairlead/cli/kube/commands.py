"""The commands of `fairlead kube`."""

import sys

import click

from fairlead.cli.main import EXIT_REFUSED


@click.group("kube")
def command() -> None:
    """Build and run Kubernetes clusters for development."""


@command.command("assets")
@click.option("--node", is_flag=True, help="Also containerd, runc and CNI plugins.")
@click.option("--tools", is_flag=True, help="Also Helm and kustomize.")
@click.option("--peers", is_flag=True, help="Also Kueue and its benchmark.")
@click.option("--check", is_flag=True, help="Build nothing; exit 1 if one is missing.")
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
    from fairlead.kube.assets import ensure, explain_missing
    from fairlead.kube.pins import AssetSet

    wanted = frozenset(AssetSet(name) for name, given in sets.items() if given)
    lacking = explain_missing(wanted) if check else None
    if lacking is not None:
        click.echo(lacking, err=True)
        sys.exit(EXIT_REFUSED)
    programs = ensure(wanted, lambda line: click.echo(line, err=True))
    click.echo(programs.directory)
