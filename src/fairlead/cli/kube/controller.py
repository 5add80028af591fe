"""`fairlead kube controller`, `fairlead kube restore` and `fairlead kube crds`."""

import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fairlead.cli.main import EXIT_FAULT
from fairlead.cli.options import policy_options, preemption_policy

if TYPE_CHECKING:
    from fairlead.api.cluster_server import ClusterListen


@click.command("controller")
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    help="Folder of the ledger and its keys.",
)
@click.option("--kubeconfig", type=click.Path(dir_okay=False, path_type=Path), help="As kubectl's.")
@click.option("--context", help="Of the kubeconfig; default: its current one.")
@click.option("-n", "--namespace", help="Where the election's Lease is; default: the context's.")
@click.option(
    "--ledger",
    envvar="FAIRLEAD_LEDGER",
    show_envvar=True,
    help="Address of a PostgreSQL database, for several replicas.",
)
@click.option("--admin-namespace", help="Namespace whose Queries are an admin's; default: none.")
@click.option(
    "--api-listen",
    metavar="HOST:PORT",
    help="Serve /healthz, /readyz, /metrics and the HTTP API here.",
)
@click.option(
    "--tls-cert",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Certificate of the HTTP server; read again when it changes.",
)
@click.option(
    "--tls-key", type=click.Path(dir_okay=False, path_type=Path), help="Key of the certificate."
)
@click.option("--tls-service", help="Issue and rotate the certificate of this Service instead.")
@click.option(
    "--max-runs",
    type=click.IntRange(1),
    default=20_000,
    show_default=True,
    help="Runs of one namespace that have not ended.",
)
@click.option("--image", help="Image of runs that have a command and no template.")
@click.option(
    "--resolver",
    type=click.Choice(["off", "dry-run", "enforce"]),
    default="dry-run",
    show_default=True,
    help="Preemption: never, previewed only, carried out.",
)
@click.option(
    "--may-resolve",
    metavar="OWNER",
    multiple=True,
    help="Owner that may preempt at once (repeatable).",
)
@policy_options
@click.option(
    "--qps",
    type=click.FloatRange(0),
    default=50.0,
    show_default=True,
    help="Requests to the API server a second; 0: no limit.",
)
@click.option(
    "--burst",
    type=click.IntRange(1),
    default=100,
    show_default=True,
    help="Requests that may come at once after a pause.",
)
def controller(
    *,
    resolver: Any,
    may_resolve: tuple[str, ...],
    qps: float,
    api_listen: str | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    **given: Any,
) -> None:
    """Run Fairlead's controller for a Kubernetes cluster.

    Watches Budgets, Runs, Reservations, OwnerBindings and nodes; decides as `fairlead up` does, on
    its own ledger; runs leases as pods. Finds the API server as kubectl does, or by the pod's
    service account. Of several replicas one leads; it ends with 3 when it leads no more, so that
    its supervisor starts it again.

    \b
      fairlead kube crds | kubectl apply -f -
      fairlead kube controller --data /var/lib/fairlead --resolver enforce
    """
    from fairlead.compose.kube import KubeConfig
    from fairlead.compose.kube import controller as made
    from fairlead.engine.gpu import Config

    listen = _listen(api_listen, tls_cert, tls_key)
    if given["tls_service"] and (listen is None or tls_cert is not None):
        raise click.UsageError("--tls-service belongs to --api-listen, without --tls-cert")
    policy = preemption_policy(given)
    engine = Config(
        max_grace_ms=given.pop("max_grace_ms"),
        resolver=resolver,
        may_resolve=frozenset(may_resolve),
        preemption=policy,
    )
    config = KubeConfig(engine=engine, qps=qps or None, listen=listen, **given)
    with made(config, say=lambda line: click.echo(line, err=True)) as running:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: running.stop())
        running.run()


def _listen(
    where: str | None, certificate: Path | None, key: Path | None
) -> "ClusterListen | None":
    from fairlead.api.cluster_server import ClusterListen

    if (certificate is None) != (key is None):
        raise click.UsageError("--tls-cert and --tls-key belong together")
    if where is None:
        if certificate is not None:
            raise click.UsageError("--tls-cert belongs to --api-listen")
        return None
    host, colon, port = where.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not (colon and host and port.isdigit() and int(port) < 65536):
        hint = "such as 0.0.0.0:8443 or [::]:8443"
        raise click.BadParameter(
            f"must be HOST:PORT {hint}, got {where!r}", param_hint="--api-listen"
        )
    return ClusterListen(host, int(port), certificate, key)


@click.command("restore")
@click.option("--node", help="Only the pods of this node.")
@click.option("--kubeconfig", type=click.Path(dir_okay=False, path_type=Path), help="As kubectl's.")
@click.option("--context", help="Of the kubeconfig; default: its current one.")
@click.option(
    "--timeout",
    type=click.FloatRange(0),
    default=60.0,
    show_default=True,
    help="Seconds to wait for the kubelets.",
)
def restore(
    *, node: str | None, kubeconfig: Path | None, context: str | None, timeout: float
) -> None:
    """Restore the CPU limits that pods had before Fairlead.

    Removes PodAllocations and resizes their pods to the resources of the annotation
    fairlead.dev/cpu-original. Works with and without a running controller. Remove the node
    agent first: a running one asks for limits again. Exits with 3 if a pod is left.

    \b
      kubectl -n fairlead delete daemonset fairlead-node
      fairlead kube restore
    """
    from fairlead.kube.client import KubeClient, connection
    from fairlead.kube.cpu.restore import restore as put_back

    client = KubeClient(connection(kubeconfig, context=context))
    done, left = put_back(client, node=node, within_s=timeout, say=_note)
    for name in done:
        click.echo(f"restored {name}")
    for name in left:
        _note(f"failed: {name} still has other limits")
    if not done and not left:
        _note("nothing to restore")
    if left:
        raise SystemExit(EXIT_FAULT)


def _note(line: str) -> None:
    click.echo(line, err=True)


@click.command("crds")
def crds() -> None:
    """Print the CustomResourceDefinitions of Fairlead's kinds.

    \b
      fairlead kube crds | kubectl apply -f -
    """
    import yaml

    from fairlead.kube.kinds import crds as made

    click.echo(yaml.safe_dump_all(made(), sort_keys=False), nl=False)
