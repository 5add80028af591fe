"""What a tick hands to the next one. Opaque to callers, frozen, and the same after a trip through
JSON; a state that no tick could have left behind is refused.

Times are on the group's own clock: it starts at 0 and advances by how much later each tick is than
the one before it. An equal or earlier time adds nothing, so a clock that is set back an hour does
not freeze the governor for that hour.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from fairlead.core import units
from fairlead.core.traffic.config import SLOTS_MAX, Measure, Share, TimeMs
from fairlead.core.traffic.remembered import check_state, within
from fairlead.core.units import OutOfRange, PositiveCount, Range, Series, Written

Slots = Annotated[int, Range(0, SLOTS_MAX)]


class AdmissionMode(StrEnum):
    """How requests are admitted. Ordered: each is stricter than the one before it."""

    NORMAL = "normal"
    """All of them."""
    SOFT = "soft"
    """As many as the bucket lets; the others are rejected and may try again."""
    HARD = "hard"
    """A drip, so that signals do not go blind; the others are refused."""

    @property
    def level(self) -> int:
        return _LEVELS[self]


_LEVELS = {mode: level for level, mode in enumerate(AdmissionMode)}
MODES = tuple(AdmissionMode)


class Regime(StrEnum):
    """What the group goes through, by its modes."""

    LAMINAR = "laminar"
    """Normal."""
    TRANSITION = "transition"
    """Soft, coming from normal."""
    CRISIS = "crisis"
    """Hard: slots may move four times as fast."""
    RECOVERY = "recovery"
    """Soft, coming from hard: the bucket reopens little by little."""


VERSION = 1
HALVINGS_MAX = 8
"""At 5 quiet seconds per doubling the guard lets go within 40 s."""

_REGIMES = {
    AdmissionMode.NORMAL: (Regime.LAMINAR,),
    AdmissionMode.SOFT: (Regime.TRANSITION, Regime.RECOVERY),
    AdmissionMode.HARD: (Regime.CRISIS,),
}


@dataclass(frozen=True, slots=True)
class BackendMemory:
    """Slots, weight and the last error rate that counted."""

    id: str
    slots: Slots = 0
    weight: Share = 0.0
    error_rate: Share | None = None
    error_ms: TimeMs | None = None


@dataclass(frozen=True, slots=True)
class Trail:
    """A resource's smoothed use. `history` is by clock: a tick adds one member and drops one."""

    name: str
    ewma: Measure
    history: Annotated[tuple[tuple[int, float], ...], Series()]
    """(clock, ewma), ascending; the first may lie outside the window."""


@dataclass(frozen=True, slots=True)
class NodeMemory:
    """Ordinals of stalled samples, and trails."""

    id: str
    stalled: tuple[PositiveCount, ...] = ()
    trails: tuple[Trail, ...] = ()


@dataclass(frozen=True, slots=True)
class StepGate:
    """Hysteresis."""

    since_ms: TimeMs | None = None
    """Since when the slots are off."""
    stepping: bool = False
    """Whether they may move."""


@dataclass(frozen=True, slots=True)
class Guard:
    """The monotonic guard."""

    halvings: Annotated[int, Range(0, HALVINGS_MAX)] = 0
    """How often Δmax is halved."""
    since_ms: TimeMs = 0
    """Since when it was quiet."""


@dataclass(frozen=True, slots=True)
class AdmissionState:
    """Admission."""

    mode: AdmissionMode = AdmissionMode.NORMAL
    regime: Regime = Regime.LAMINAR
    calm_since_ms: TimeMs | None = None
    """Since when the current level is calm; None: it is triggered."""
    rate_base: Measure | None = None
    """What recovery grows from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The `state` of an output of `traffic.tick`."""

    now_ms: TimeMs
    """Of the last tick, as it was given."""
    clock_ms: TimeMs
    samples: PositiveCount
    """How many distinct samples were taken; their ordinals start at 1."""
    s_total: Annotated[int, Range(1, SLOTS_MAX)]
    parked: bool
    """No backend was routable."""
    backends: tuple[BackendMemory, ...] = ()
    nodes: tuple[NodeMemory, ...] = ()
    gate: StepGate = StepGate()
    guard: Guard = Guard()
    admission: Annotated[AdmissionState, Written("door")] = AdmissionState()  # recorded format

    def __post_init__(self) -> None:
        units.check(self)
        for part in ("gate", "guard", "admission"):
            units.check(getattr(self, part), f"{part}.")
        check_state(self)
        self._check_admission()

    def _check_admission(self) -> None:
        admission = self.admission
        if admission.regime not in _REGIMES[admission.mode]:
            message = f"must fit the mode {admission.mode}, got {admission.regime!r}"
            raise OutOfRange("admission.regime", message)
        if admission.calm_since_ms is not None and admission.mode is AdmissionMode.NORMAL:
            raise OutOfRange("admission.calm_since_ms", "must be null in normal")
        within(admission.calm_since_ms, "admission.calm_since_ms", self.clock_ms)
        if (admission.regime is Regime.RECOVERY) is not (admission.rate_base is not None):
            raise OutOfRange("admission.rate_base", "must be given in recovery, and only there")
