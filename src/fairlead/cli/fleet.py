"""`get nodes` and `get groups`: machines with their CPU governors, route groups with theirs."""

from typing import Any

import click

from fairlead.cli.client import Client, ServerError, segment
from fairlead.cli.table import Column, Output, columns, moment, print_table, to_yaml

Row = dict[str, Any]


def _gpu(field: str) -> Any:
    return lambda row: None if row["gpu"] is None else row["gpu"][field]


def _cores(field: str) -> Any:
    return lambda row: None if row["cpu"] is None else f"{row['cpu'][field] / 1000:.2f}"


def _percent(share: float | None) -> str | None:
    return None if share is None else f"{share * 100:.1f}%"


def _age(heard: Row | None) -> str | None:
    """`live`, or since when nothing came."""
    if heard is None:
        return None
    since = heard["stale_since"]
    return "live" if since is None else f"stale since {moment(since)}"


def _flags(row: Row) -> str | None:
    gpu, cpu = row["gpu"] or {}, row["cpu"] or {}
    words = [word for word in ("cordoned", "virtual") if gpu.get(word)]
    words += ["observes only"] if cpu.get("observed_only") else []
    return ", ".join(words) or None


NODES: list[Column] = columns(
    "NAME=name",
    ("FLAVOR", _gpu("flavor")),
    ("GPUS", _gpu("devices")),
    ("FREE", _gpu("free")),
    ("CPU", lambda row: None if row["cpu"] is None else row["cpu"]["mode"]),
    ("CORES", _cores("capacity_millicores")),
    ("NEED", _cores("need_millicores")),
    ("USED", _cores("usage_millicores")),
    ("THROTTLED", lambda row: None if row["cpu"] is None else _percent(row["cpu"]["throttling"])),
    ("PODS", lambda row: None if row["cpu"] is None else row["cpu"]["pods"]),
    ("CPU-AGENT", lambda row: _age(row["cpu"])),
    ("NOTE", _flags),
    wide=[
        ("LOCATION", _gpu("location")),
        ("LIMITS", _cores("limits_millicores")),
        ("PRICE", lambda row: None if row["cpu"] is None else row["cpu"]["shadow_price"]),
        ("POLICY", lambda row: None if row["cpu"] is None else row["cpu"]["policy"]),
        ("DECISION", lambda row: None if row["cpu"] is None else row["cpu"]["decision"]),
        ("DROPPED", lambda row: None if row["cpu"] is None else row["cpu"]["dropped"]),
    ],
)
GROUPS: list[Column] = columns(
    "NAME=name",
    ("ADMISSION", lambda row: {"normal": "open"}.get(row["mode"], row["mode"])),
    ("BACKENDS", lambda row: f"{row['backends'] - len(row['ejected'])}/{row['backends']}"),
    "EJECTED=ejected",
    ("P95", lambda row: None if row["p95_ms"] is None else f"{row['p95_ms']:.0f}ms"),
    ("ERRORS", lambda row: _percent(row["error_rate"])),
    "ADMITTED=admitted REFUSED=refused",
    ("AGENT", _age),
    "REASONS=reasons",
    wide=["ON=agent PLANE=plane REGIME=regime DECISION=decision DROPPED=dropped FAULT=fault"],
)
_PODS = columns(
    "POD=pod NEED=need_millicores ALLOCATION=allocation_millicores LIMIT=limit_millicores",
    "USAGE=usage_millicores",
    ("THROTTLED", lambda pod: _percent(pod["throttling"])),
    "REASONS=reasons",
    wide=["MIN=min_millicores MAX=max_millicores BOUNDS=bounds"],
)
_BACKENDS = columns(
    "BACKEND=backend SLOTS=slots TARGET=target",
    ("PRESSURE", lambda row: f"{row['pressure'].get('total', 0):.2f}"),
    ("P95", lambda row: None if row["p95_ms"] is None else f"{row['p95_ms']:.0f}ms"),
    ("ERRORS", lambda row: _percent(row["error_rate"])),
    "QUEUE=queue EJECTED=isolated ORDER=order",
)


def list_nodes(client: Client, out: Output) -> None:
    """One list: machines with devices, machines with a CPU governor, and those with both.

    Programs get the Node objects, as `apply` takes them, with the governor in `status.cpu`; a
    machine without devices is a document of kind `CpuNode`.
    """
    rows = client.get("/v1/nodes")
    if out.is_table:
        out.rows(rows, NODES, empty="there are no nodes")
        return
    objects = client.objects("Node")
    out.rows(_documents(rows, objects), columns("NAME=metadata.name"))


def _documents(rows: list[Row], objects: list[Row]) -> list[Row]:
    cpus = {row["name"]: row["cpu"] for row in rows if row["cpu"] is not None}
    for document in objects:
        if (cpu := cpus.pop(document["metadata"]["name"], None)) is not None:
            document["status"]["cpu"] = cpu
    alone = [
        {"kind": "CpuNode", "metadata": {"name": name}, "status": {"cpu": cpu}}
        for name, cpu in sorted(cpus.items())
    ]
    return [*objects, *alone]


def list_groups(client: Client, out: Output) -> None:
    empty = "no traffic agent reports here (see `fairlead traffic run --help`)"
    out.rows(client.get("/v1/groups"), GROUPS, empty=empty)


def cpu_of(client: Client, name: str) -> Row | None:
    """A node with its CPU governor; None where no agent reports one."""
    try:
        detail: Row = client.get(f"/v1/nodes/{segment(name)}")
    except ServerError as error:
        if error.status != 404:
            raise
        return None
    return None if detail["cpu"] is None else detail


def print_cpu(detail: Row, out: Output) -> None:
    click.echo("cpu:")
    print_table([detail], NODES, wide=out.format == "wide")
    print_table(detail["state"]["pods"], _PODS, wide=out.format == "wide")


def describe_group(client: Client, out: Output, name: str) -> None:
    detail = client.get(f"/v1/groups/{segment(name)}")
    if not out.is_table:
        out.text(detail, lambda: ())
        return
    click.echo(to_yaml({key: value for key, value in detail.items() if key != "state"}), nl=False)
    print_table(detail["state"]["backends"], _BACKENDS, wide=out.format == "wide")
