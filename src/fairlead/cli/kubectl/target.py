"""Which cluster and namespace a plugin talks to: --kubeconfig, --context and -n, as kubectl's.

They may stand before or after the subcommand; after wins.
"""

from pathlib import Path
from typing import Any

import click

from fairlead.cli.client import TRANSPORT
from fairlead.cli.kubectl.transport import KubeTransport
from fairlead.kube.client import KubeClient, connection

_CHOSEN, _MADE = "fairlead.kube", "fairlead.kube.transport"


def _keep(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    if value is not None:
        ctx.meta.setdefault(_CHOSEN, {})[param.name] = value
    ctx.meta[TRANSPORT] = transport


def options() -> list[click.Option]:
    """New ones for each command: a parameter belongs to one."""
    more: dict[str, Any] = {"expose_value": False, "callback": _keep, "is_eager": True}
    return [
        click.Option(["--context"], help="Context of the kubeconfig.", **more),
        click.Option(["-n", "--namespace"], help="Namespace [default: the context's].", **more),
        click.Option(
            ["--kubeconfig"],
            type=click.Path(dir_okay=False, path_type=Path),
            help="Kubeconfig [default: KUBECONFIG, ~/.kube/config].",
            **more,
        ),
    ]


def transport(ctx: click.Context | None = None) -> KubeTransport:
    """Of the command that runs; one for all of its requests."""
    ctx = ctx or click.get_current_context()
    if _MADE not in ctx.meta:
        chosen = ctx.meta.get(_CHOSEN, {})
        found = connection(chosen.get("kubeconfig"), context=chosen.get("context"))
        client, named = KubeClient(found), chosen.get("namespace")
        if named is not None and not named:
            raise click.BadParameter("must not be empty", param_hint="--namespace")
        where = f"kubernetes:{found.host}:{found.port}"
        made = KubeTransport(client, named or found.namespace, where, named=named is not None)
        ctx.meta[_MADE] = made
    transport: KubeTransport = ctx.meta[_MADE]
    return transport
