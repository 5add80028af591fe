"""`apply`, `submit`, `get`, `describe`, `delete`, and verbs such as `cancel` and `drain`."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any

import click

from fairlead.cli.client import Client, ServerError, changes_api, reads_api
from fairlead.cli.completion import (
    DESCRIBED,
    GROUP,
    KIND,
    NAME,
    OBJECT,
    POLICY,
    RUN,
    find_object,
    listed_kind,
    name_of,
    owner_option,
)
from fairlead.cli.fleet import cpu_of, describe_group, list_groups, list_nodes, print_cpu
from fairlead.cli.gpu.arrays import open_runs_named, runs_named
from fairlead.cli.gpu.render import (
    forecast_of,
    print_forecast,
    print_plan,
    print_preview,
    slots_text,
    told,
    wait_text,
)
from fairlead.cli.input import object_name, read_manifests
from fairlead.cli.options import Decorator, Integer, file_option, flag, option
from fairlead.cli.table import Column, Output, cell, columns, moment, print_table, show, to_yaml
from fairlead.core.units import counted

EVENTS_SEARCHED, EVENTS_SHOWN = 1000, 10
_NAME = ("NAME", "metadata.name")


def _why(run: dict[str, Any]) -> str:
    """The reason of a run's phase; of one that waits in a sentence, and its place in the queue."""
    status = run["status"]
    queue, why = status.get("queue"), "Paused" if status["paused"] else str(status["reason"])
    restart = status.get("restartTime")
    if restart and datetime.now(UTC) < datetime.fromisoformat(restart):
        why = f"{why}, starts again at {moment(restart)}"
    elif status.get("phase") in ("Pending", "Reserved"):
        why = wait_text(run)
    return f"{why} ({queue['position']}/{queue['waiting']})" if queue else why


def _gpus(run: dict[str, Any]) -> str:
    """`2/4`: those that it has, and that it asked for."""
    status = run["status"]
    virtual = " (virtual)" if status.get("virtual") else ""
    return f"{status['width']}/{run['spec']['totalGPUs']}{virtual}"


COLUMNS: dict[str, list[Column]] = {
    "Budget": columns(
        "NAME=metadata.name OWNER=spec.owner PARENTS=spec.parents",
        ("ENVELOPES", lambda o: [e["name"] for e in o["spec"]["envelopes"]]),
        (
            "CONDITIONS",
            lambda o: [c["type"] for c in o["status"]["conditions"] if c["status"] == "True"],
        ),
        wide=["LABELS=metadata.labels CREATED@metadata.creationTimestamp"],
    ),
    "Run": columns(
        "NAME=metadata.name OWNER=spec.owner FLAVOR=spec.flavor",
        ("GPUS", _gpus),
        "PHASE=status.phase",
        ("REASON", _why),
        "SINCE@status.since",
        wide=[
            ("GPU%", lambda o: (o["status"].get("use") or {}).get("utilisationPercent")),
            ("GPU-MEMORY", lambda o: _gibibytes((o["status"].get("use") or {}).get("memoryBytes"))),
            ("IDLE", lambda o: (o["status"].get("use") or {}).get("idleSince")),
            "NOMINATED=status.nominated",
            ("MESSAGE", lambda o: told(o["status"]["message"])),
        ],
    ),
    "Node": columns(
        "NAME=metadata.name FLAVOR=spec.flavor LOCATION=spec.location DEVICES=spec.devices",
        "FREE=status.free CORDONED=spec.cordoned",
        ("VIRTUAL", lambda o: "virtual" if o["status"]["virtual"] else None),
        wide=["LABELS=metadata.labels CREATED@metadata.creationTimestamp"],
    ),
    "Reservation": columns(
        "NAME=metadata.name RUN=spec.run START@spec.earliestStart STATE=status.state",
        "REASON=status.reason",
        ("SHORT", lambda o: o["status"]["shortfallGPUs"] or None),
        "OUTCOME=status.outcome SINCE@status.since",
        wide=["MESSAGE=status.message"],
    ),
    "Lease": columns(
        "NAME=metadata.name RUN=spec.run OWNER=spec.owner ROLE=spec.role",
        (
            "SLOTS",
            lambda o: slots_text(o["spec"]["slots"], virtual=o["status"].get("virtual", False)),
        ),
        ("PAYER", lambda o: f"{o['spec']['payer']['budget']}/{o['spec']['payer']['envelope']}"),
        "FUNDED=status.funded GPU-HOURS=status.gpuHours",
        wide=["BORROWED=spec.borrowed START@spec.start"],
    ),
}


def _gibibytes(amount: int | None) -> str | None:
    return None if amount is None else f"{amount / 2**30:.1f}Gi"


_EVENTS = columns("seq TIME@time kind reason message")


def print_effects(out: Output, change: dict[str, Any]) -> None:
    """What was changed, and what a dry run of `apply` would lead to."""
    document, preview = change["object"], change["preview"] or {}
    out.done(change, f"{object_name(document)} {change['change']}")
    if document["kind"] == "Run" and preview:
        print_plan(preview, indent="  ")
    unfunded = preview.get("unfunded", ())
    for row in unfunded:
        over = f"{'hours' if row['hours'] else 'GPUs'} of {row['cap']} {cell(row['name'])}"
        click.echo(
            f"  run {row['run']} of {cell(row['owner'])}: {counted(row['gpus'], 'GPU')} would be "
            f"unfunded ({over}, lease {row['lease']})"
        )
    if unfunded:
        cap = f"{document['metadata']['name']}/{cell(unfunded[0]['name'])}"
        click.echo(
            "  These leases keep running and are preempted first; after the change, "
            f"`fairlead resolve --cap {cap}` ends them."
        )
    if preview.get("forecast") is not None:
        print_preview(preview["forecast"], "  ", reserved=True)
    for lease in preview.get("leases", ()):
        click.echo(f"  lease {lease} runs on it")


@click.command("apply")
@file_option
@changes_api
def apply(client: Client, out: Output, *, files: tuple[str, ...]) -> None:
    """Create or change objects; all of the files or none.

    Budgets, runs, nodes and reservations, in any order. An error names the file, the document and
    the field. --dry-run shows what each object would lead to: the payers of a run, the leases that
    a smaller budget would no longer fund.

    \b
      fairlead apply -f lab.yaml
      fairlead apply -f nodes.yaml -f budgets/ --dry-run
      fairlead get budgets -o yaml | sed s/128/256/ | fairlead apply -f -

    \b
    A budget, in a file:
      apiVersion: fairlead.dev/v1alpha1
      kind: Budget
      metadata: {name: team-a}
      spec: {owner: team-a, envelopes: [{name: main, flavor: H100, concurrency: 8}]}
    """
    changes = client.apply(read_manifests(files))
    out.each(changes, lambda change: print_effects(out, change))


def _label(text: str) -> str:
    if not text.partition("=")[0] or "=" not in text:
        raise click.BadParameter(f"must be KEY=VALUE, got {text!r}")
    return text


@click.command("get")
@click.argument("kind", type=KIND)
@click.argument("name", type=NAME, required=False)
@owner_option
@option("-l --label=KEY=VALUE", _label, "Show only objects with this label.")
@reads_api
def get(
    client: Client,
    out: Output,
    *,
    kind: str,
    name: str | None,
    owner: str | None,
    label: str | None,
) -> None:
    """List objects of a kind, or show one.

    Kinds: budgets, runs, nodes, reservations, leases, groups. `apply` accepts the documents of
    -o yaml. `nodes` lists machines with GPU devices, with a CPU governor, or with both; `groups`
    lists route groups. Node and traffic agents report them: where reports stop, the list says since
    when.

    \b
      fairlead get runs
      fairlead get runs --owner team-a -o json | jq -r '.[].metadata.name'
      fairlead get run train-7 -o yaml
      fairlead get runs -l fairlead.dev/array=sweep
      fairlead get nodes -o wide
      fairlead get groups
    """
    if "/" in kind and name is None:
        kind, _, name = kind.partition("/")
    kind = listed_kind(kind)
    if label is not None and (name is not None or kind not in ("Budget", "Run", "Reservation")):
        raise click.UsageError("-l is for lists of budgets, runs and reservations")
    if kind == GROUP and name is not None:
        describe_group(client, out, name)
        return
    if name is None and kind in ("Node", GROUP):
        (list_nodes if kind == "Node" else list_groups)(client, out)
        return
    if name is None:
        items = client.objects(kind, owner=owner, label=label)
        empty = f"there are no {kind.lower()}s" + (f" of owner {owner!r}" if owner else "")
        empty += f" with label {label!r}" if label else ""
        out.rows(items, COLUMNS[kind], empty=empty)
        return
    one = client.get_object(kind, name)
    out.text(one, lambda: out.rows([one], COLUMNS[kind]))


@click.command("describe")
@click.argument("which", type=DESCRIBED)
@reads_api
def describe(client: Client, out: Output, *, which: tuple[str, str]) -> None:
    """Show one object in full, with its latest events.

    A reservation comes with its preemption preview: the earliest start, how many GPUs are missing,
    which leases would end by rule, and which runs are at risk with which odds. `policy` is the
    operator's: the notice and quota of reservations, which runs are no candidates yet, and what a
    tenant may submit and ask for.

    \b
      fairlead describe run/train-7
      fairlead describe reservation/monday
      fairlead describe policy
      fairlead describe group/web
      fairlead describe budget/team-a -o json | jq .object.status.headroom
    """
    if which == POLICY:
        rules = client.get("/v1/policy")
        out.text(rules, lambda: click.echo(to_yaml(rules), nl=False))
        return
    if which[0] == GROUP:
        describe_group(client, out, which[1])
        return
    kind, name = find_object(client, which)
    cpu = cpu_of(client, name) if kind == "Node" else None
    if cpu is not None and cpu["gpu"] is None:  # a machine without devices is no object
        out.text(cpu, lambda: print_cpu(cpu, out))
        return
    document = client.get_object(kind, name)
    size = client.get("/v1/head")["size"]
    after = max(0, size - EVENTS_SEARCHED)
    recent = client.get("/v1/events", after=after, limit=EVENTS_SEARCHED)["items"]
    events = [event for event in recent if event["object"] == {"kind": kind, "name": name}]
    events = events[-EVENTS_SHOWN:]
    forecast = forecast_of(client, name)[0] if kind == "Reservation" else None
    if not out.is_table:
        more = {"forecast": forecast} if kind == "Reservation" else {}
        more |= {"cpu": cpu["cpu"], "pods": cpu["state"]["pods"]} if cpu is not None else {}
        show({"object": document, **more, "events": events}, out.format)
        return
    click.echo(to_yaml(document), nl=False)
    if forecast is not None:
        click.echo("forecast:")
        print_preview(forecast, "  ", reserved=True)
    click.echo(f"events: {'' if events else f'none in the last {EVENTS_SEARCHED}'}".rstrip())
    if events:
        print_table(events, _EVENTS)
    if cpu is not None:
        print_cpu(cpu, out)


@click.command("delete")
@click.argument("which", type=OBJECT, nargs=-1, required=True)
@changes_api
def delete(client: Client, out: Output, *, which: tuple[tuple[str, str], ...]) -> None:
    """Delete objects that nothing uses, one by one.

    The first refusal stops it. Cancel an active run, drain a node and end a budget's leases before
    you delete them. Charges and the event log stay.

    \b
      fairlead delete run/train-7 budget/team-a
      fairlead delete node/gpu-1 --dry-run
    """
    deleted = (client.change_object("DELETE", kind, name) for kind, name in which)
    out.each(deleted, lambda one: out.done(one, f"{object_name(one['object'])} deleted"))


# --- verbs on runs and nodes


def _act_on_all(
    client: Client,
    out: Output,
    kind: str,
    names: Sequence[str],
    *,
    verb: str,
    done: str,
    **query: Any,
) -> None:
    act = partial(client.change_object, "POST", kind, action=f"/actions/{verb}", **query)
    changes = (act(name=name) for name in names)
    out.each(changes, lambda change: _print_change(out, done, change))


def _print_change(out: Output, done: str, change: dict[str, Any]) -> None:
    before = ", as before" if change["change"] == "unchanged" else ""
    out.done(change, f"{object_name(change['object'])} {done}{before}")
    preview = change["preview"] or {}
    for run in preview.get("runs", ()):
        message = f": {told(run['message'])}" if run["message"] else ""
        click.echo(f"  run {run['run']} would be {run['phase']} ({run['reason']}){message}")
    for lease in preview.get("leases", ()):
        click.echo(f"  lease {lease} would end")
    if preview.get("forecast") is not None:
        print_forecast(preview["forecast"], "  ")


def _names_argument(kind: str) -> Decorator:
    metavar = f"{kind.upper()}..."
    return click.argument("names", type=name_of(kind), nargs=-1, required=True, metavar=metavar)


def _verb(kind: str, verb: str, done: str, *text: str) -> click.Command:
    """One command for one verb; they differ in words only."""
    example = {"Run": "train-7", "Node": "gpu-1"}[kind]
    lines = [*text, f"\b\n  fairlead {verb} {example}\n  fairlead {verb} {example} --dry-run"]

    @click.command(verb, help="\n\n".join(lines))
    @_names_argument(kind)
    @changes_api
    def command(client: Client, out: Output, *, names: tuple[str, ...]) -> None:
        _act_on_all(client, out, kind, names, verb=verb, done=done)

    return command


@click.command("cancel")
@_names_argument("Run")
@flag("--force", "Kill at once, also runs that are being cancelled.")
@changes_api
def cancel(client: Client, out: Output, *, names: tuple[str, ...], force: bool) -> None:
    """Cancel runs: SIGTERM, then SIGKILL after the grace period.

    The owner is charged for what the run used, grace period included. No run survives the grace
    period of `fairlead up --grace`; --force does not wait for it. The name of an array cancels
    every task that has not ended, the last one first.

    \b
      fairlead cancel train-7
      fairlead cancel train-7 --dry-run
      fairlead cancel train-7 --force
      fairlead cancel sweep                       # an array: all of its tasks
    """
    query = {"force": "true"} if force else {}
    done = "is being killed" if force else "is being cancelled"
    changes = _cancelled(client, list(open_runs_named(client, names)), query)
    out.each(changes, lambda change: _print_change(out, done, change))


def _cancelled(
    client: Client, runs: list[tuple[str, bool]], query: dict[str, str]
) -> Iterator[dict[str, Any]]:
    for name, is_task in runs:
        try:
            yield client.change_object("POST", "Run", name, "/actions/cancel", **query)
        except ServerError as error:
            if not is_task or error.code != "RunEnded":  # it may end meanwhile
                raise


pause = _verb(
    "Run",
    "pause",
    "paused",
    "Pause the processes of runs.",
    "The run keeps its devices, so its leases and charges continue.",
)
resume = _verb("Run", "resume", "resumed", "Resume paused runs.")
cordon = _verb(
    "Node", "cordon", "cordoned", "Cordon nodes: place nothing new there.", "Running runs stay."
)
uncordon = _verb("Node", "uncordon", "uncordoned", "Uncordon nodes: allow placement again.")
drain = _verb(
    "Node",
    "drain",
    "drained",
    "Cordon nodes and move their runs off.",
    "A gang continues on its spares if they suffice; otherwise it becomes Pending. With `fairlead "
    "up --resolver enforce` malleable runs shrink first. --dry-run lists the runs.",
)


@click.command("nominate")
@_names_argument("Run")
@flag("--withdraw", "Withdraw the nomination.")
@changes_api
def nominate(client: Client, out: Output, *, names: tuple[str, ...], withdraw: bool) -> None:
    """Nominate your runs to be preempted before your others.

    Unfunded runs are preempted first, then nominated ones, then the rest. Within a group the
    lottery selects.

    \b
      fairlead nominate sweep-3 sweep-4
      fairlead nominate sweep-3 --withdraw
    """
    verb, done = ("withdraw", "no longer nominated") if withdraw else ("nominate", "nominated")
    _act_on_all(client, out, "Run", list(runs_named(client, names)), verb=verb, done=done)


@click.command("shrink")
@click.argument("name", type=RUN, metavar="RUN")
@option("--to width", Integer(1, 100_000), "Number of GPUs to keep.", required=True)
@changes_api
def shrink(client: Client, out: Output, *, name: str, width: int) -> None:
    """Shrink a malleable run to fewer GPUs.

    The process gets SIGWINCH and the file that FAIRLEAD_WIDTH_FILE names, and has its
    `checkpointGrace`; then the groups with the highest numbers are released. The run does not grow
    again. Not below `malleable.minTotalGPUs`, and by whole steps and groups.

    \b
      fairlead shrink train-7 --to 16
      fairlead shrink train-7 --to 16 --dry-run
    """
    done = f"shrinks to {counted(width, 'GPU')}"
    _act_on_all(client, out, "Run", [name], verb="shrink", done=done, width=width)
