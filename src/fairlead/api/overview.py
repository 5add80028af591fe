"""The three governors at a glance, and what needs attention now; `fairlead status` prints the same.

Computed here and not in the page, so that a page with ten thousand runs loads none of them.
"""

from collections.abc import Iterable, Iterator
from urllib.parse import quote

from msgspec import field
from msgspec.structs import asdict

from fairlead.api.endpoint import Call, Routes
from fairlead.api.fleet import cpu_row, group_row
from fairlead.api.fleet_shapes import CpuRow, GroupRow, Heard
from fairlead.api.service import Service
from fairlead.api.shapes import Shape
from fairlead.engine.gpu.overview import AttentionLine, GpuCounts, Severity, line, short
from fairlead.schema.times import format_time

routes = Routes()


class HourSums(Shape):
    """GPU-hours of all envelopes in their current periods; `held` is promised to leases."""

    used: float
    held: float
    overdraft: float


class GpuSums(GpuCounts, rename="camel"):
    """The GPU governor."""

    hours: HourSums


class CpuSums(Shape, rename="camel"):
    """The CPU governors of the nodes that agents report; those that are stale count as nothing
    else. In millicores."""

    nodes: int
    congested: int
    overloaded: int
    stale: int
    capacity_millicores: int
    need_millicores: int
    usage_millicores: int
    throttling: float | None
    """Of the worst pod."""


class TrafficSums(Shape, rename="camel"):
    """The route groups that agents report. `soft` shed load, `hard` admit nothing."""

    groups: int
    soft: int
    hard: int
    stale: int
    backends: int
    ejected: int
    p95_ms: float | None = field(name="p95Ms")
    error_rate: float | None
    """Of the worst backend in service."""


class Overview(Shape):
    """The governors at a glance."""

    time: str
    gpu: GpuSums
    cpu: CpuSums
    traffic: TrafficSums
    attention: list[AttentionLine]


@routes("GET /v1/overview", Overview)
def overview(service: Service, call: Call) -> Overview:
    """Show the governors at a glance, and what needs attention."""
    plane = service.plane
    rows = plane.reports.budgets()
    hours = HourSums(
        used=sum(row["used_gpu_hours"] for row in rows),
        held=sum(row["held_gpu_hours"] for row in rows),
        overdraft=sum(row["overdraft_gpu_hours"] for row in rows),
    )
    nodes, groups = governors(service)
    return Overview(
        time=format_time(service.now_ms()),
        gpu=GpuSums(**asdict(plane.overview.counts()), hours=hours),
        cpu=_cpu(nodes),
        traffic=_traffic(groups),
        attention=[
            *_troubles(service),
            *short(_of_nodes(nodes), "lines about nodes", "/cpu"),
            *short(_of_groups(groups), "lines about services", "/traffic"),
            *plane.overview.attention(),
        ],
    )


# --- what agents reported


def governors(service: Service) -> tuple[list[tuple[str, CpuRow]], list[GroupRow]]:
    """The newest report of each node's CPU governor and of each route group."""
    cpus = [
        (subject.key.name, row)
        for subject in service.fleet.subjects("node", service.now_ms())
        if (row := cpu_row(service, subject)) is not None
    ]
    groups = service.fleet.subjects("group", service.now_ms())
    return cpus, [GroupRow(**group_row(service, subject)) for subject in groups]


def _cpu(nodes: list[tuple[str, CpuRow]]) -> CpuSums:
    live = [row for _, row in nodes if row.stale_since is None]
    return CpuSums(
        nodes=len(nodes),
        congested=sum(row.mode == "congested" for row in live),
        overloaded=sum(row.mode == "overloaded" for row in live),
        stale=len(nodes) - len(live),
        capacity_millicores=sum(row.capacity_millicores for row in live),
        need_millicores=sum(row.need_millicores for row in live),
        usage_millicores=sum(row.usage_millicores for row in live),
        throttling=_worst(row.throttling for row in live),
    )


def _traffic(groups: list[GroupRow]) -> TrafficSums:
    live = [row for row in groups if row.stale_since is None]
    return TrafficSums(
        groups=len(groups),
        soft=sum(row.mode == "soft" for row in live),
        hard=sum(row.mode == "hard" for row in live),
        stale=len(groups) - len(live),
        backends=sum(row.backends for row in live),
        ejected=sum(len(row.ejected) for row in live),
        p95_ms=_worst(row.p95_ms for row in live),
        error_rate=_worst(row.error_rate for row in live),
    )


def _worst(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _of_nodes(nodes: list[tuple[str, CpuRow]]) -> list[AttentionLine]:
    made = []
    for name, row in nodes:
        path = f"/cpu/{quote(name, safe='')}"
        if row.stale_since is not None:
            made.append(_stale(f"Node {name}", row, path))
            continue
        if row.mode != "uncongested":
            cores = f"{row.need_millicores / 1000:.1f} of {row.capacity_millicores / 1000:.1f}"
            severity: Severity = "bad" if row.mode == "overloaded" else "warn"
            text = f"Node {name} is {row.mode}: its pods need {cores} cores"
            made.append(line("cpu", severity, text, path))
        made += [line("cpu", "bad", f"Node {name}: {why}", path) for why in row.problems[:1]]
    return made


def _of_groups(groups: list[GroupRow]) -> list[AttentionLine]:
    made = []
    for row in groups:
        path = f"/traffic/{quote(row.name, safe='')}"
        if row.stale_since is not None:
            made.append(_stale(f"Service {row.name}", row, path))
            continue
        if row.mode != "normal":
            what = {"soft": "sheds load", "hard": "admits nothing"}[row.mode]
            why = ", ".join(row.reasons)
            severity: Severity = "bad" if row.mode == "hard" else "warn"
            made.append(line("traffic", severity, f"Service {row.name} {what}: {why}", path))
        if row.ejected:
            some = f"{len(row.ejected)} of {row.backends} backends"
            text = f"Service {row.name}: {some} ejected, {', '.join(row.ejected[:5])}"
            made.append(line("traffic", "warn", text, path))
        if row.fault:
            text = f"Service {row.name}: the last plan was not applied: {row.fault}"
            made.append(line("traffic", "bad", text, path))
    return made


def _stale(what: str, row: Heard, path: str) -> AttentionLine:
    text = f"{what}: its agent {row.agent} does not report"
    return AttentionLine("agent", "bad", text, path, row.stale_since)


def _troubles(service: Service) -> Iterator[AttentionLine]:
    """The ledger, the clock and the executor: nothing else is right while these are wrong."""
    failure = service.ledger.failure() or service.fault
    if failure:
        yield line("ledger", "bad", f"Nothing is recorded now: {failure}", "/ledger")
    for name, why in sorted(service.plane.faults.items()):
        if name == "*clock":
            yield line("clock", "bad", f"Clock: {why}", "/ledger")
        elif name.startswith("*"):
            yield line("fault", "bad", f"{name[1:]}: {why}", "/gpu")
        else:
            yield line("fault", "warn", f"Run {name}: {why}", f"/runs/{name}")
