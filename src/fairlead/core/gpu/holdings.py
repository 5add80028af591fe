"""Who holds which devices, and what is demanded of them: the input of a deficit."""

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from fairlead.core.gpu.conflict import Malleable, Role, Scope, ScopeCap
from fairlead.core.gpu.devices import FreeDevices
from fairlead.core.gpu.place import Gang, Node
from fairlead.core.gpu.policy import RunProtection, Standing
from fairlead.core.units import Count, GpuLimit, Name, OutOfRange, PositiveCount, repeats


class CapKind(StrEnum):
    """What limits a budget: an aggregate cap, or an envelope as a cap of its own."""

    AGGREGATE = "aggregate"
    ENVELOPE = "envelope"


@dataclass(frozen=True, slots=True)
class HoldingRun:
    """A run with open leases. `ending`: it stops, or is losing leases already."""

    id: Name
    owner: Name
    flavor: Name
    malleable: Malleable | None = None
    nominated: bool = False
    ending: bool = False
    started_ms: Count | None = None
    """From when its minimum runtime counts: its first start, or the first since others took its
    devices; None: not known."""
    preempted_ms: Count | None = None
    """When it was last preempted."""


@dataclass(frozen=True, slots=True)
class HeldLease:
    """An open lease with its devices as `node#ordinal`. `ending`: it is about to close."""

    id: Name
    run: Name
    role: Role
    group: Count
    slots: tuple[Name, ...]
    funded: bool
    budget: str
    envelope: str
    ending: bool = False
    recalled: bool = False
    """It began with funding, which the owner of its envelope recalled."""
    promised: bool = False
    """The run that it was recalled for still waits for its envelope."""

    def faults(self) -> Iterator[OutOfRange]:
        if not self.slots:
            yield OutOfRange("slots", "must have at least 1 item, got 0")
        if len(set(self.slots)) != len(self.slots):
            yield OutOfRange("slots", "names a device twice")


@dataclass(frozen=True, slots=True)
class Holdings:
    """Who holds which devices. Every lease's run and nodes are here; ids are unique."""

    nodes: tuple[Node, ...] = ()
    runs: tuple[HoldingRun, ...] = ()
    leases: tuple[HeldLease, ...] = ()
    protection: RunProtection | None = None
    """Which funded runs are no candidates for a gang; None: all are."""

    def standings(self) -> dict[str, Standing]:
        """How each run is paid for: by the lease that protects it least."""
        found = dict.fromkeys((run.id for run in self.runs), Standing.FUNDED)
        for lease in self.leases:
            if not lease.funded:
                standing = Standing.RECALLED if lease.recalled else Standing.UNFUNDED
                found[lease.run] = max(found[lease.run], standing)
        return found

    def after(self, ended: Set[str]) -> "Holdings":
        """The same when these leases have ended: their devices are free."""
        if not ended:
            return self
        gone = (lease for lease in self.leases if lease.id in ended)
        nodes = FreeDevices(self.nodes).after(slot for lease in gone for slot in lease.slots).nodes
        left = tuple(lease for lease in self.leases if lease.id not in ended)
        holding = {lease.run for lease in left}
        runs = tuple(run for run in self.runs if run.id in holding)
        return Holdings(tuple(nodes), runs, left, self.protection)

    def faults(self) -> Iterator[OutOfRange]:
        yield from repeats("nodes", "name", [node.name for node in self.nodes])
        yield from repeats("runs", "id", [run.id for run in self.runs])
        yield from repeats("leases", "id", [lease.id for lease in self.leases])
        runs = {run.id for run in self.runs}
        nodes = {node.name for node in self.nodes}
        for i, lease in enumerate(self.leases):
            if lease.run not in runs:
                yield OutOfRange(f"leases[{i}].run", f"names an unknown run, {lease.run!r}")
            for j, slot in enumerate(lease.slots):
                if slot.partition("#")[0] not in nodes:
                    yield OutOfRange(f"leases[{i}].slots[{j}]", f"is on no known node: {slot!r}")


@dataclass(frozen=True, slots=True)
class GuestEnvelope:
    """An envelope of another owner that would pay for a gang."""

    budget: Name
    envelope: Name


@dataclass(frozen=True, slots=True)
class GangDemand:
    """Room for a gang that is funded; `run` will be placed on it, and is no candidate itself."""

    TAG: ClassVar[str] = "gang"
    run: Name
    gang: Gang
    unfunded_only: bool = False
    """Only runs with an unfunded lease are candidates."""
    guest_of: tuple[GuestEnvelope, ...] = ()
    """Where one of these is promised to a run of its owner, nothing is preempted: the gang would
    take the devices of the leases that lost this funding, lose the funding itself, and they would
    take them back, at every turn and never for the owner."""


@dataclass(frozen=True, slots=True)
class CapDemand:
    """A cap of a budget: an aggregate cap, or an envelope as a cap of its own.

    `metered`: hours or loans are limited too, so leases may be unfunded because of this cap.
    """

    TAG: ClassVar[str] = "cap"
    kind: CapKind
    budget: Name
    name: Name
    flavor: Name
    envelopes: tuple[Name, ...]
    max_gpus: GpuLimit | None
    metered: bool

    @property
    def scope(self) -> Scope:
        """What its envelopes pay, anywhere."""
        return Scope(
            self.flavor, {}, ScopeCap(self.budget, self.name, tuple(sorted(self.envelopes)))
        )


@dataclass(frozen=True, slots=True)
class PlaceDemand:
    """So many GPUs of a place are to be freed, for maintenance."""

    TAG: ClassVar[str] = "place"
    flavor: Name
    location: Mapping[str, str]
    gpus: PositiveCount

    @property
    def scope(self) -> Scope:
        return Scope(self.flavor, self.location)


@dataclass(frozen=True, slots=True)
class NodeDemand:
    """A node is drained: whatever has a device there has to leave."""

    TAG: ClassVar[str] = "node"
    node: Name
    flavor: Name

    @property
    def scope(self) -> Scope:
        """Leases that touch the node, whatever else they touch."""
        return Scope(self.flavor, {"node": self.node})


Demand = GangDemand | CapDemand | PlaceDemand | NodeDemand
