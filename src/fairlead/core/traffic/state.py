"""What a tick hands to the next one. Opaque to callers, frozen, and the same after a trip through
JSON; a state that no tick could have left behind is refused.

Times are on the group's own clock: it starts at 0 and advances by how much later each tick is than
the one before it. An equal or earlier time adds nothing, so a clock that is set back an hour does
not freeze the governor for that hour.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

from fairlead.core import units
from fairlead.core.traffic.config import SLOTS_MAX
from fairlead.core.units import INTEGER_MAX, OutOfRange


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
        """0, 1, 2: for comparing."""
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
    """Slots in force, the last weight, and the last error rate that counted, with its time."""

    id: str
    slots: int = 0
    weight: float = 0.0
    error_rate: float | None = None
    error_ms: int | None = None

    def fits(self, s_total: int, clock_ms: int) -> bool:
        """Could a tick have left this behind?"""
        rate, at = self.error_rate, self.error_ms
        known = rate is not None and at is not None
        return (
            type(self.slots) is int
            and 0 <= self.slots <= s_total
            and type(self.weight) in (float, int)
            and 0 <= self.weight <= 1
            and (known or (rate is None and at is None))
            and (rate is None or (type(rate) in (float, int) and 0 <= rate <= 1))
            and (at is None or (type(at) is int and 0 <= at <= clock_ms))
        )


@dataclass(frozen=True, slots=True)
class Trail:
    """The smoothed use of a resource: now, and at the times of the last window."""

    name: str
    ewma: float
    history: tuple[tuple[int, float], ...]
    """(clock, ewma), ascending; the first may lie outside the window."""


@dataclass(frozen=True, slots=True)
class NodeMemory:
    """Which of the last samples stalled, by their ordinals, and the trails of the resources."""

    id: str
    stalled: tuple[int, ...] = ()
    trails: tuple[Trail, ...] = ()


@dataclass(frozen=True, slots=True)
class StepGate:
    """Hysteresis of the group: since when the slots are off, and whether they may move."""

    since_ms: int | None = None
    stepping: bool = False


@dataclass(frozen=True, slots=True)
class Guard:
    """How often Δmax is halved, and since when it was quiet."""

    halvings: int = 0
    since_ms: int = 0


@dataclass(frozen=True, slots=True)
class AdmissionState:
    """Admission: since when the current level is calm (None: it is triggered), and the rate that
    recovery grows from.
    """

    mode: AdmissionMode = AdmissionMode.NORMAL
    regime: Regime = Regime.LAMINAR
    calm_since_ms: int | None = None
    rate_base: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """All that a tick remembers."""

    now_ms: int
    """Of the last tick, as it was given."""
    clock_ms: int
    samples: int
    """How many distinct samples were taken; their ordinals start at 1."""
    s_total: int
    parked: bool
    """No backend was routable."""
    backends: tuple[BackendMemory, ...] = ()
    nodes: tuple[NodeMemory, ...] = ()
    gate: StepGate = StepGate()
    guard: Guard = Guard()
    admission: AdmissionState = AdmissionState()

    def __post_init__(self) -> None:
        _whole(self.now_ms, "now_ms", 0, INTEGER_MAX)
        _whole(self.clock_ms, "clock_ms", 0, INTEGER_MAX)
        _whole(self.samples, "samples", 1, INTEGER_MAX)
        _whole(self.s_total, "s_total", 1, SLOTS_MAX)
        self._check_backends()
        _ascending([node.id for node in self.nodes], "nodes", "id")
        for index, node in enumerate(self.nodes):
            self._check_node(node, f"nodes[{index}]")
        self._check_times()
        self._check_admission()

    def _check_backends(self) -> None:
        _ascending([backend.id for backend in self.backends], "backends", "id")
        for index, memory in enumerate(self.backends):
            # The values first, their names only for a culprit: this is checked in every tick.
            if not memory.fits(self.s_total, self.clock_ms):
                self._name_culprit(memory, f"backends[{index}]")
        slots = sum(backend.slots for backend in self.backends)
        if slots != (self.s_total if self.backends else 0):
            raise OutOfRange("backends", f"must hold s_total slots together, got {slots}")
        if not self.backends and not self.parked:
            raise OutOfRange("parked", "must be true where there is no backend")

    def _name_culprit(self, memory: BackendMemory, path: str) -> None:
        _whole(memory.slots, f"{path}.slots", 0, self.s_total)
        units.ratio(memory.weight, f"{path}.weight")
        if memory.error_rate is not None:
            units.ratio(memory.error_rate, f"{path}.error_rate")
        if memory.error_ms is None or memory.error_rate is None:
            raise OutOfRange(f"{path}.error_ms", "must be given together with error_rate")
        _whole(memory.error_ms, f"{path}.error_ms", 0, self.clock_ms)

    def _check_node(self, node: NodeMemory, path: str) -> None:
        _ascending(node.stalled, f"{path}.stalled")
        for place, ordinal in enumerate(node.stalled):
            _whole(ordinal, f"{path}.stalled[{place}]", 1, self.samples)
        _ascending([trail.name for trail in node.trails], f"{path}.trails", "name")
        for place, trail in enumerate(node.trails):
            here = f"{path}.trails[{place}]"
            units.weight(trail.ewma, f"{here}.ewma")
            if not trail.history:
                raise OutOfRange(f"{here}.history", "must not be empty")
            _ascending([at for at, _ in trail.history], f"{here}.history")
            for at, value in trail.history:
                _whole(at, f"{here}.history.{at}", 0, self.clock_ms)
                units.weight(value, f"{here}.history.{at}")

    def _check_times(self) -> None:
        if self.gate.since_ms is not None:
            _whole(self.gate.since_ms, "gate.since_ms", 0, self.clock_ms)
        elif self.gate.stepping:
            raise OutOfRange("gate.since_ms", "must be known while slots are stepping")
        _whole(self.guard.halvings, "guard.halvings", 0, HALVINGS_MAX)
        _whole(self.guard.since_ms, "guard.since_ms", 0, self.clock_ms)

    def _check_admission(self) -> None:
        admission = self.admission
        if admission.regime not in _REGIMES[admission.mode]:
            raise OutOfRange(
                "admission.regime", f"must fit the mode {admission.mode}, got {admission.regime!r}"
            )
        if admission.calm_since_ms is not None:
            if admission.mode is AdmissionMode.NORMAL:
                raise OutOfRange("admission.calm_since_ms", "must be null in normal")
            _whole(admission.calm_since_ms, "admission.calm_since_ms", 0, self.clock_ms)
        if (admission.regime is Regime.RECOVERY) is not (admission.rate_base is not None):
            raise OutOfRange("admission.rate_base", "must be given in recovery, and only there")
        if admission.rate_base is not None:
            units.weight(admission.rate_base, "admission.rate_base")


def _whole(value: int, field: str, low: int, high: int) -> None:
    if type(value) is not int or not low <= value <= high:
        raise OutOfRange(field, f"must be an integer between {low} and {high}, got {value!r}")


def _ascending(keys: Sequence[str] | Sequence[int], field: str, what: str = "") -> None:
    for index, (before, after) in enumerate(pairwise(keys), start=1):
        if not before < after:  # type: ignore[operator]  # both strings or both integers
            where = f"{field}[{index}].{what}" if what else field
            raise OutOfRange(where, "must be above the one before it")
