"""`fairlead kube controller`, `fairlead kube restore` and `fairlead kube crds`."""

import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fairlead.cli.main import EXIT_FAULT
from fairlead.cli.options import (
    NEW_FILE,
    NEW_FOLDER,
    Decorator,
    Integer,
    Number,
    option,
    policy_options,
    preemption_policy,
)

if TYPE_CHECKING:
    from fairlead.api.cluster_server import ClusterListen


RESOLVER = ("off", "dry-run", "enforce")


def cluster_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Which cluster."""
    context = option("--context", str, "Of the kubeconfig; default: its current one.")
    return option("--kubeconfig", NEW_FILE, "As kubectl's.")(context(command))


def _default(names: str, type: Any, text: str, value: Any) -> Decorator:
    return option(names, type, text, default=value, show_default=True)


@click.command("controller")
@option("--data", NEW_FOLDER, "Folder of the ledger and its keys.", required=True)
@cluster_options
@option("-n --namespace", str, "Where the election's Lease is; default: the context's.")
@option(
    "--ledger",
    str,
    "Address of a PostgreSQL database, for several replicas.",
    envvar="FAIRLEAD_LEDGER",
    show_envvar=True,
)
@option("--admin-namespace", str, "Namespace whose Queries are an admin's; default: none.")
@option("--api-listen=HOST:PORT", str, "Serve /healthz, /readyz, /metrics and the HTTP API here.")
@option("--tls-cert", NEW_FILE, "Certificate of the HTTP server; read again when it changes.")
@option("--tls-key", NEW_FILE, "Key of the certificate.")
@option("--tls-service", str, "Issue and rotate the certificate of this Service instead.")
@_default("--max-runs", Integer(1), "Runs of one namespace that have not ended.", 20_000)
@option("--image", str, "Image of runs that have a command and no template.")
@_default("--resolver", RESOLVER, "Preemption: never, previewed only, carried out.", "dry-run")
@option("--may-resolve=OWNER", str, "Owner that may preempt at once (repeatable).", multiple=True)
@policy_options
@_default("--qps", Number(0), "Requests to the API server a second; 0: no limit.", 50.0)
@_default("--burst", Integer(1), "Requests that may come at once after a pause.", 100)
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
    from fairlead.core.gpu.clock import ClockPolicy
    from fairlead.engine.gpu import Config
    from fairlead.host.process import on_signals

    listen = _listen(api_listen, tls_cert, tls_key)
    if given["tls_service"] and (listen is None or tls_cert is not None):
        raise click.UsageError("--tls-service belongs to --api-listen, without --tls-cert")
    policy = preemption_policy(given)
    engine = Config(
        max_grace_ms=given.pop("max_grace_ms"),
        clock=ClockPolicy(jump_ms=given.pop("max_clock_jump_ms")),
        resolver=resolver,
        may_resolve=frozenset(may_resolve),
        preemption=policy,
    )
    config = KubeConfig(engine=engine, qps=qps or None, listen=listen, **given)
    with made(config, say=lambda line: click.echo(line, err=True)) as running:
        on_signals((signal.SIGTERM, signal.SIGINT), running.stop)
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
@option("--node", str, "Only the pods of this node.")
@cluster_options
@_default("--timeout", Number(0), "Seconds to wait for the kubelets.", 60.0)
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
