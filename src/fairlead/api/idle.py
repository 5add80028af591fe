"""Devices that stood idle, over time: what a node had, less what was leased.

A lease that touches a stretch of time either is still open or was closed after the stretch began,
so closings since then are all that has to be read; how long a report takes depends on what
happened in it, not on what happened before.
"""

from bisect import bisect_right
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from fairlead.api.chargeback import period_row, periods
from fairlead.api.history import entries_of, known_since_ms
from fairlead.api.queries import Period
from fairlead.api.service import Service
from fairlead.ports.ledger import Archived, Ledger
from fairlead.schema.times import format_time, hours, parse_time

READ_AT_ONCE = 1_000


@dataclass(slots=True)
class _Node:
    """A node's devices as steps in time, and when each of them was leased."""

    steps: list[tuple[int, int]] = field(default_factory=list)
    """(from when on, devices), in order of time."""
    busy: dict[int, list[tuple[int, int]]] = field(default_factory=dict)

    def devices_at(self, time_ms: int) -> int:
        at = bisect_right(self.steps, (time_ms, 2**60))
        return self.steps[at - 1][1] if at else 0

    def idle_ms(self, start_ms: int, end_ms: int) -> int:
        """Device-milliseconds that nobody leased."""
        edges = sorted({start_ms, end_ms, *(at for at, _ in self.steps if start_ms < at < end_ms)})
        had = sum(self.devices_at(one) * (two - one) for one, two in pairwise(edges))
        used = sum(
            max(0, min(to, end_ms) - max(since, start_ms))
            for leased in self.busy.values()
            for since, to in leased
        )
        return max(0, had - used)

    def idle_at(self, end_ms: int, start_ms: int) -> list[int]:
        """Since when each device that is idle just before a time has been; not before `start`."""
        found = []
        for ordinal in range(self.devices_at(end_ms - 1)):
            leased = [each for each in self.busy.get(ordinal, ()) if each[0] < end_ms]
            if any(to >= end_ms for _, to in leased):
                continue
            there = next((at for at, devices in self.steps if devices > ordinal), start_ms)
            found.append(max([start_ms, there, *(to for _, to in leased)]))
        return found


def idle_rows(service: Service, period: Period, start_ms: int, end_ms: int) -> list[dict[str, Any]]:
    """A row for every period and node with idle devices: up to now, as far back as is known."""
    now_ms = service.now_ms()
    start_ms, end_ms = max(start_ms, known_since_ms(service.ledger)), min(end_ms, now_ms)
    nodes = _nodes(service, start_ms)
    _add_leases(service, nodes, start_ms, now_ms)
    rows = []
    for window in periods(period, start_ms, end_ms):
        since_ms, until_ms = max(window.start_ms, start_ms), min(window.end_ms, end_ms)
        for name, node in sorted(nodes.items()):
            idle_ms, idle = node.idle_ms(since_ms, until_ms), node.idle_at(until_ms, start_ms)
            if idle_ms:
                rows.append(
                    period_row(
                        "idle",
                        period,
                        window,
                        node=name,
                        idle_gpus=len(idle),
                        idle_gpu_hours=hours(idle_ms),
                        idle_since=format_time(min(idle)) if idle else None,
                    )
                )
    return rows


def _nodes(service: Service, start_ms: int) -> dict[str, _Node]:
    """Every node that there was, with its number of devices over time."""
    changes: dict[str, list[tuple[int, int, int]]] = {}
    for kind in ("object.applied", "object.deleted"):
        for entry in entries_of(service.ledger, kind, start_ms):
            if entry.body["kind"] == "Node":
                devices = entry.body["spec"]["devices"] if kind == "object.applied" else 0
                changes.setdefault(entry.body["name"], []).append(
                    (entry.seq, entry.time_ms, devices)
                )
    found: dict[str, _Node] = {}
    for each in service.plane.objects.list("Node"):
        created_ms = parse_time(each["metadata"]["creationTimestamp"], "creationTimestamp")
        if each["metadata"]["name"] not in changes:
            found[each["metadata"]["name"]] = _Node([(created_ms, each["spec"]["devices"])])
    for name, steps in changes.items():
        steps.sort()
        before = _devices_before(service.ledger, name, steps[0][0])
        found[name] = _Node([(0, before), *((time_ms, devices) for _, time_ms, devices in steps)])
    return found


def _devices_before(ledger: Ledger, name: str, seq: int) -> int:
    """What a node had before its first change in the report; a search, for the few that changed."""
    after, devices = ledger.archived_to(), 0
    while True:
        found = ledger.entries(after, READ_AT_ONCE, kind="object.applied")
        for entry in found:
            if entry.seq >= seq:
                return devices
            if (entry.body["kind"], entry.body["name"]) == ("Node", name):
                devices = entry.body["spec"]["devices"]
        if len(found) < READ_AT_ONCE:
            return devices
        after = found[-1].seq


def _add_leases(service: Service, nodes: dict[str, _Node], start_ms: int, now_ms: int) -> None:
    # The open ones first: one that closes meanwhile is met again among the closed, and known.
    taken: dict[str, tuple[list[str], int, int]] = {}
    for row in service.plane.reports.leases():
        taken[row["lease"]] = (row["slots"], parse_time(row["start"], "start"), now_ms)
    opened: dict[str, dict[str, Any]] = {}
    for entry in entries_of(service.ledger, "lease.open", start_ms):
        opened[entry.body["lease"]] = entry.body
    for entry in entries_of(service.ledger, "lease.close", start_ms):
        lease = entry.body["lease"]
        body = opened.get(lease) or _opening(service.ledger, lease)
        if body is not None:
            taken[lease] = (body["slots"], body["start_ms"], entry.body["end_ms"])
    for slots, since_ms, until_ms in taken.values():
        for slot in slots:
            name, _, ordinal = slot.partition("#")
            if name in nodes:
                nodes[name].busy.setdefault(int(ordinal), []).append((since_ms, until_ms))


def _opening(ledger: Ledger, lease: str) -> dict[str, Any] | None:
    """The birth of a lease that is older than the report; None when it was archived."""
    job = lease.rpartition(".")[0]
    try:
        found = ledger.entries(0, READ_AT_ONCE, kind="lease.open", plan_id=job)
    except Archived:
        return None
    return next((each.body for each in found if each.body["lease"] == lease), None)
