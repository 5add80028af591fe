"""What is remembered of a group between two ticks, and the rules by which it is governed.

Frozen and bounded: windows are tuples of the last seconds. The agent keeps it across a restart, and
a record holds it whole where a life begins or goes on.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from fairlead.core.traffic.config import Config, LatencyMs
from fairlead.core.traffic.counters import WINDOW_MS, Streak, TrafficCounters, Window
from fairlead.core.traffic.health import BackendHealth, Cause, HealthRules
from fairlead.core.traffic.learn import FORMER_PART, PART, AdmissionBudget, InsideBound, Usual
from fairlead.core.traffic.retries import RetryMemory
from fairlead.core.traffic.sighting import NodeWindows
from fairlead.core.traffic.state import State

CHECK_FAILURES = 3
CONFIRMED, FIRM, PROVEN = 2, 3, 4
EDITION = PROVEN
"""Of the rules by which agents decide now."""


@dataclass(frozen=True, slots=True)
class GroupRules:
    """How a group is governed."""

    config: Config = field(default_factory=Config)
    health: HealthRules = field(default_factory=HealthRules)
    window_ms: int = WINDOW_MS
    own_budget: bool = False
    """The operator set no `bucket_rate`: the budget of soft admission follows what is served."""
    own_reference: bool = False
    """The operator set no `q_ref`: it follows the usual queue."""
    own_latency: bool = False
    """The operator set no `l_ref_ms`: it follows the usual latency."""
    own_bound: bool = False
    """The operator set no `inside_max`: it follows what is served."""
    own_flow: bool = False
    """The operator set no `g_min`: while what may be inside is bounded, conductance restricts
    admission only where requests fail."""
    check_failures: int | None = CHECK_FAILURES
    """So many failures in a row of a health check are believed; None: there is no check."""
    scrape_every_ms: int = 1_000
    scrape_timeout_ms: int = 800
    node_every_ms: Mapping[str, int] = field(default_factory=dict)
    """How often other machines are asked; this one is read in every tick."""
    edition: int = 1
    """1 is how records of `traffic.govern` up to version 3 were decided, so that they replay. From
    2 on group admission reacts only to what several backends, or our own counters, confirm, and a
    group that serves nothing of what piled up in it is bounded. From 3 on the rooms of backends
    add up to what may be inside, which is less than before. From 4 on a latency counts as far as
    so few requests prove that it differs from the others'."""

    retry: bool = False
    """The proxy may repeat idempotent requests at another backend."""

    @property
    def confirm(self) -> bool:
        return self.edition >= CONFIRMED

    @property
    def firm(self) -> bool:
        return self.edition >= FIRM

    @property
    def proven(self) -> bool:
        return self.edition >= PROVEN

    @property
    def part(self) -> float:
        """Of the reference latency, for which requests are to stay."""
        return PART if self.firm else FORMER_PART


@dataclass(frozen=True, slots=True)
class Backoff:
    """Isolations that came soon after a return.

    Each return that does not last makes the next one wait. Without it a backend whose probes are
    fine and whose traffic is not would come and go every few seconds. The first isolation is probed
    at once, as the health tracker asks.
    """

    times: int = 0
    isolated_ms: int = 0
    returned_ms: int | None = None


@dataclass(frozen=True, slots=True)
class BackendHistory:
    """What is remembered of one backend."""

    id: str
    counters: TrafficCounters = field(default_factory=TrafficCounters)
    queues: tuple[tuple[int, float], ...] = ()
    streak: Streak = field(default_factory=Streak)
    probe_ms: LatencyMs | None = None
    """Latency of its last good probe while it is isolated."""
    answers: bool = False
    """Its last probe was answered well."""
    probe_failures: int = 0
    """Probes in a row that could not connect."""
    failures_before: int = 0
    """Failed connects when it came back: those are forgiven."""
    still_warm_ms: int = 0
    """After a return: how much of the warm-up a short absence spares it."""
    backoff: Backoff | None = None
    check_failures: int | None = None
    """Of its health check, in a row; None: it has not been checked yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMemory:
    """All that is remembered of a group."""

    now_ms: int | None = None
    """Of the last sighting, as it was given."""
    clock_ms: int = 0
    """The group's own clock: it never goes back, whatever happens to the machine's."""
    state: State | None = None
    """Of the last tick, with the slots that are in force."""
    healths: tuple[BackendHealth, ...] | None = None
    pressures: Mapping[str, float] = field(default_factory=dict)
    """P of every backend in the last tick."""
    backends: tuple[BackendHistory, ...] = ()
    budget: AdmissionBudget = field(default_factory=AdmissionBudget)
    queue: Usual = field(default_factory=Usual)
    q_ref: float | None = None
    latency: Usual = field(default_factory=Usual)
    l_ref_ms: LatencyMs | None = None
    bound: InsideBound = field(default_factory=InsideBound)
    norms: tuple[float, ...] = ()
    """The median P of the last ticks in which all were in service and admission was open."""
    refused: Window = ()
    """Rejections of our own admission."""
    refused_soft: int | None = None
    nodes: Mapping[str, NodeWindows] = field(default_factory=dict)
    """Counters of the machines over the last seconds."""
    retry: RetryMemory = field(default_factory=RetryMemory)
    """Only where the rules ask for retries."""

    @property
    def isolated(self) -> dict[str, Cause]:
        return {
            health.id: health.cause for health in self.healths or () if health.cause is not None
        }
