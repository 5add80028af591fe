"""The CPU governor's configuration, and what it keeps per pod.

The state is written to and read from JSON: the user's original bounds must survive a restart.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

import msgspec

from fairlead.core import cpu, units
from fairlead.core.cpu.model import Millicores, Pause, Ratio
from fairlead.core.units import OutOfRange
from fairlead.ports.cpu import ContainerSighting, PodSighting
from fairlead.schema.cpu import STYLE

if TYPE_CHECKING:  # the simulator's, and the agent's with its YAML reader
    from fairlead.schema.node import NodeAgentDocument
    from fairlead.schema.scenario import GovernorDocument

STATE_VERSION = 2


class BadState(ValueError):
    """A stored state that is not one of ours: refused whole rather than half believed."""


@dataclass(frozen=True, slots=True)
class CpuConfig:
    """How a node is governed. `reserve` is the share of the node that is never handed out."""

    node_millicores: Millicores
    policy: cpu.Policy = cpu.Policy.DEMAND_CAPPED
    reserve: Ratio = 0.10
    sample_ms: Pause = 1_000
    clear_ms: Pause = 5_000
    hysteresis_band: Ratio = 0.05
    headroom: cpu.Headroom = field(default_factory=cpu.Headroom)
    smoothing: cpu.Smoothing = field(default_factory=cpu.Smoothing)
    guardrails: cpu.Guardrails = field(default_factory=cpu.Guardrails)

    def __post_init__(self) -> None:
        units.check(self)
        if not 0 < self.sample_ms <= self.clear_ms:
            raise OutOfRange("sample_ms", "must be at least 1 and at most clear_ms")

    @classmethod
    def of(
        cls,
        settings: "NodeAgentDocument | GovernorDocument",
        node_millicores: int,
        policy: cpu.Policy,
    ) -> Self:
        return cls(
            node_millicores=node_millicores,
            policy=policy,
            reserve=settings.reserve,
            sample_ms=settings.sample_ms,
            clear_ms=settings.clear_ms,
            hysteresis_band=settings.hysteresis_band,
            headroom=STYLE.to_core(cpu.Headroom, settings.headroom),
            smoothing=STYLE.to_core(cpu.Smoothing, settings.smoothing),
            guardrails=STYLE.to_core(cpu.Guardrails, settings.guardrails),
        )

    @property
    def capacity_millicores(self) -> int:
        """What may be handed out while no pod is opted out."""
        return self.node_millicores - int(self.node_millicores * self.reserve)


class Smoothed(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """A smoothed signal (None until the first good reading) and its recent peaks."""

    mean: float | None
    peaks: cpu.Peaks

    @property
    def value(self) -> float:
        """What counts; 0 before the first reading."""
        return self.peaks[0][1] if self.peaks else 0.0

    def add(self, now_ms: int, reading: float, smoothing: cpu.Smoothing) -> None:
        self.mean = cpu.smooth(self.mean, reading, smoothing)
        self.peaks = cpu.hold_peak(self.peaks, now_ms, self.mean, smoothing.hold_ms)

    def not_after(self, now_ms: int) -> None:
        """Pull times out of the future, or a peak would be held until they come."""
        self.peaks = tuple((min(at_ms, now_ms), value) for at_ms, value in self.peaks)


class ContainerState(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """One container: its user's limit for good, the one in force, and its want in millicores."""

    original_limit_millicores: int | None
    current_millicores: int | None
    want: Smoothed

    @classmethod
    def at_first_sight(cls, sighting: ContainerSighting) -> Self:
        """The limit in force is the user's own."""
        return cls(sighting.limit_millicores, sighting.limit_millicores, Smoothed(None, ()))


class PodState(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What the governor remembers of one pod. The first block is frozen at first sight.

    `adopted`: a grant was applied whole, so that every limit in force is ours. `touched`: a limit
    of it was written; from here on it counts against the capacity.
    """

    uid: str
    min_millicores: int
    max_millicores: int
    weight: float
    original_limit_millicores: int | None
    started_ms: int
    identity: str

    current_millicores: int | None
    adopted: bool
    touched: bool
    changed_ms: int | None
    demand: Smoothed
    throttling: float | None
    misses: int
    missed_ms: int | None
    containers: dict[str, ContainerState]

    @classmethod
    def at_first_sight(cls, sighting: PodSighting, config: CpuConfig, now_ms: int) -> Self:
        """Freeze the user's bounds: the current limit as ceiling would make every cut permanent."""
        low, high = cpu.pod_bounds(
            sighting.request_millicores,
            sighting.limit_millicores,
            capacity_millicores=config.capacity_millicores,
        )
        return cls(
            uid=units.name(sighting.uid, "uid"),
            min_millicores=low,
            max_millicores=high,
            weight=cpu.pod_weight(sighting.request_millicores, sighting.priority),
            original_limit_millicores=sighting.limit_millicores,
            started_ms=now_ms if sighting.started_ms is None else sighting.started_ms,
            identity=sighting.identity,
            current_millicores=sighting.limit_millicores,
            adopted=False,
            touched=False,
            changed_ms=None,
            demand=Smoothed(None, ()),
            throttling=None,
            misses=0,
            missed_ms=None,
            containers={},
        )

    def not_after(self, now_ms: int) -> None:
        """Pull times out of the future, or a cooldown would last until they come."""
        self.started_ms = min(self.started_ms, now_ms)
        self.changed_ms = None if self.changed_ms is None else min(self.changed_ms, now_ms)
        self.missed_ms = None if self.missed_ms is None else min(self.missed_ms, now_ms)
        self.demand.not_after(now_ms)
        for container in self.containers.values():
            container.want.not_after(now_ms)

    def governed(self, usage: list[int]) -> cpu.GovernedPod:
        """The pod of a snapshot. The signal is good if any reading since the last one was."""
        return cpu.GovernedPod(
            uid=self.uid,
            min_millicores=self.min_millicores,
            max_millicores=self.max_millicores,
            demand=self.demand.value,
            first_seen_ms=self.started_ms,
            containers=tuple(
                cpu.Container(
                    name,
                    int(container.want.value),
                    container.current_millicores,
                    container.original_limit_millicores,
                )
                for name, container in sorted(self.containers.items())
            ),
            weight=self.weight,
            usage_millicores=sum(usage) // len(usage) if usage else None,
            headroom_misses=self.misses,
            signal_ok=bool(usage),
            changed_ms=self.changed_ms,
            adopted=self.adopted,
            missed_ms=self.missed_ms,
            throttling=self.throttling,
        )


class GovernorState(msgspec.Struct, forbid_unknown_fields=True):
    """All that survives a restart."""

    version: int
    mode: cpu.CpuMode | None
    reserved_millicores: int
    pods: list[PodState]


def read_state(stored: Mapping[str, Any]) -> GovernorState:
    if stored.get("version") != STATE_VERSION:
        raise BadState(f"the state's version must be {STATE_VERSION}")
    try:
        return msgspec.convert(stored, GovernorState)
    except msgspec.ValidationError as error:
        raise BadState(f"the state cannot be read: {error}") from error
