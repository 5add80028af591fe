"""The port on top of the kernel's programs.

Opening it takes over what an earlier agent left pinned, with its tables and counters, or installs
it. From then on every process in the cgroup that connects to a group's address reaches one of its
backends, whether this process lives or not.
"""

import errno
from collections.abc import Mapping, Sequence
from ctypes import Structure
from ipaddress import IPv6Address, ip_address
from pathlib import Path

from fairlead.core.traffic.limits import Concurrency, liveness
from fairlead.core.traffic.sighting import BackendSeen, GroupSeen, Liveness
from fairlead.dataplane import tables
from fairlead.dataplane.ebpf import layout
from fairlead.dataplane.ebpf.installation import Installation, as_faults
from fairlead.dataplane.ebpf.kernel import Maps
from fairlead.dataplane.ebpf.registry import RegisteredGroup, Registry
from fairlead.dataplane.ebpf.toolchain import DEFAULT_PINS, missing, object_file
from fairlead.ports.dataplane import SCHEMA_VERSION, GroupRefused, Proto, RouteGroup, Stale, Table
from fairlead.ports.faults import PermanentFault


class EbpfDataplane:
    """Moves connections in the kernel, before their first packet."""

    name = "ebpf"
    sources: Mapping[str, str] = {
        "requests": "connects and unconnected datagrams, counted in the connect and sendmsg hooks",
        "queue": "not seen by the kernel: scrape the application",
        "latency": "not seen by the kernel (srtt is the network's): scrape the application",
        "errors": "failed connects (sockops); errors of the application: scrape it",
    }

    def __init__(
        self,
        cgroup: Path,
        pins: Path = DEFAULT_PINS,
        *,
        capacity: Mapping[str, int] = layout.CAPACITY,
        soft_errno: int = errno.EAGAIN,
        program: Path | None = None,
    ) -> None:
        program = program or object_file()
        lacks = missing(cgroup, pins, program)
        if lacks:
            raise PermanentFault("the eBPF dataplane cannot run here: " + "; ".join(lacks))
        self._installation = Installation(pins)
        self._opened: tuple[Maps, Registry] | None = None
        self._groups: dict[str, RouteGroup] = {}
        try:
            self._installation.attach(cgroup, program, layout.CAPACITY | dict(capacity), soft_errno)
            if self.schema_version() == SCHEMA_VERSION:
                with as_faults(f"{pins}: cannot be opened"):
                    maps = Maps(self._installation.live)
                    self._opened = maps, Registry(maps)
        except BaseException:
            self.detach()
            raise

    def configure(self, groups: Sequence[RouteGroup]) -> None:
        tables.check_groups(groups)
        for index, group in enumerate(groups):
            try:
                _check_group(group, f"groups[{index}]")
            except PermanentFault as fault:
                raise GroupRefused(group.name, str(fault)) from fault
        _, registry = self._open()
        with as_faults("the eBPF dataplane cannot be configured"):
            registry.configure(groups)
        self._groups = {group.name: group for group in groups}
        self.heartbeat()

    def schema_version(self) -> int:
        with as_faults("the eBPF dataplane's version cannot be read"):
            return self._installation.schema_version()

    def apply(self, table: Table, *, decision: int | None) -> None:
        """Flip a group to a table: one compare-and-swap, judged by the kernel."""
        _, registry = self._open()
        tables.check_table(table, self._groups)
        if not 0 < table.epoch <= layout.EPOCH_MAX:
            problem = f"must be between 1 and {layout.EPOCH_MAX}, got {table.epoch}"
            raise PermanentFault(f"epoch: {problem}")
        if (total := sum(table.slots.values())) > layout.SLOTS_MAX:
            raise PermanentFault(f"slots: at most {layout.SLOTS_MAX} in all, got {total}")
        with as_faults(f"group {table.group!r} cannot be flipped"):
            answer = registry.flip(table, decision)
        if answer == layout.HookAnswer.HELD:
            raise Stale(f"the heartbeat is old: {self.liveness()}")
        if answer == layout.HookAnswer.OUTDATED:
            current = registry.placed[table.group].active.table.epoch
            raise Stale(f"epoch {table.epoch} is not after {current}")
        if answer == layout.HookAnswer.LOST:
            raise PermanentFault(f"group {table.group!r}: another agent changed it")

    def limit(self, group: str, bound: Concurrency, *, decision: int | None) -> None:
        """Shares are compared in the kernel, for every connection."""

    def heartbeat(self) -> None:
        maps, _ = self._open()
        with as_faults("the heartbeat cannot be written"):
            maps.command(layout.Command.BEAT)

    def liveness(self) -> Liveness:
        maps, _ = self._open()
        with as_faults("the heartbeat cannot be read"):
            _, age_ns = maps.command(layout.Command.LOOK)
        return liveness(age_ns // 1_000_000)

    def drain(self, group: str, backend: str, *, decision: int | None) -> None:
        """The kernel cannot ask a connection to end: kept ones move when they reconnect."""
        tables.check_backend(self._groups, group, backend)

    def read(self) -> Mapping[str, GroupSeen]:
        maps, registry = self._open()
        all_placed = registry.placed.values()
        groups = max((placed.index + 1 for placed in all_placed), default=0)
        backends = max((at + 1 for placed in all_placed for at in placed.at.values()), default=0)
        with as_faults("the counters cannot be read"):
            alive = self.liveness()
            counts = list(maps.group_counts.sums(groups))
            sent = list(maps.backend_counts.sums(backends))
            healths = maps.healths.first(backends)
            loads = maps.loads.first(backends)
        seen = {}
        for name, placed in registry.placed.items():
            at = placed.at.items()
            members = {id: _seen(placed, sent[n], healths[n], loads[n]) for id, n in at}
            seen[name] = tables.group_seen(placed.active, alive, counts[placed.index], members)
        return seen

    def detach(self) -> None:
        self._close()
        self._installation.close()

    def remove(self) -> None:
        self._close()
        self._installation.remove()

    def _close(self) -> None:
        if self._opened is not None:
            self._opened[0].close()
        self._opened = None

    def _open(self) -> tuple[Maps, Registry]:
        if self._opened is not None:
            return self._opened
        raise PermanentFault(
            f"the dataplane in {self._installation.pins} is closed, or its schema version is not "
            f"{SCHEMA_VERSION}: remove it and start again"
        )


def uninstall(pins: Path = DEFAULT_PINS) -> None:
    """Remove a dataplane without opening it: of any version, also when its cgroup is gone."""
    if pins.exists():
        Installation(pins).remove()


def _check_group(group: RouteGroup, path: str) -> None:
    """What this dataplane asks beyond the others: names that fit, and one family per group."""
    family = _family(group.vip, f"{path}.vip")
    named = [(f"{path}.name", group.name)]
    for index, backend in enumerate(group.backends):
        here = f"{path}.backends[{index}]"
        named.append((f"{here}.id", backend.id))
        if _family(backend.host, f"{here}.host") != family:
            problem = f"must be IPv{family} like the group's vip, got {backend.host!r}"
            raise PermanentFault(f"{here}.host: {problem}")
    for place, name in named:
        size = len(name.encode())
        if not 0 < size <= layout.NAME_BYTES or "\0" in name:
            raise PermanentFault(f"{place}: must be 1 to {layout.NAME_BYTES} bytes, got {size}")


def _family(host: str, path: str) -> int:
    address = ip_address(host)
    if isinstance(address, IPv6Address) and (address.ipv4_mapped or address.scope_id):
        raise PermanentFault(f"{path}: must be a plain address, got {host!r}")
    return address.version


def _seen(
    placed: RegisteredGroup, counts: list[int], health: Structure, load: Structure
) -> BackendSeen:
    admitted, established, failed, retransmitted = counts
    if placed.vip.proto == layout.PROTOCOLS[Proto.UDP]:
        return BackendSeen(admitted)  # a datagram's fate is known to the application alone
    return BackendSeen(
        admitted,
        connect_failures=failed,
        consecutive_failures=health.failures_in_a_row,
        successes=established,
        errors=failed,
        open=load.word & layout.UINT32_MAX,
        rtt_ms=health.srtt_eighths_us / 8_000 or None,
        retransmits=retransmitted,
        jitter_ms=health.off_eighths_us / 8_000 if health.srtt_eighths_us else None,
    )
