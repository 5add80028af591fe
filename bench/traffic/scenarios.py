"""What happens to the group: how much load comes when, which backend is sick when.

Four equal backends of six workers each; a request takes 100 ms of a worker on average, so the group
can do 240 per second. Twice that stays below 500 per second, where the generator is never late.
Everything is drawn from the seed before the run: arrivals, the work of every request, the moments
at which a backend flaps. All arms see exactly the same.
"""

import random
from dataclasses import dataclass, replace

NAMES = ("b1", "b2", "b3", "b4")
SICK = "b4"
WORKERS = 6
MEAN_S, SIGMA = 0.1, 0.5
CAPACITY_PER_S = len(NAMES) * WORKERS / MEAN_S
USUAL_PER_S = 0.7 * CAPACITY_PER_S
SLO_S = 4 * MEAN_S
PATIENCE_S = 4.0
"""A client gives up after so long; what it waited for is then cancelled."""

PEERS = (
    "haproxy-roundrobin",
    "haproxy-leastconn",
    "haproxy-random2",
    "haproxy-maxconn",
    "envoy-roundrobin",
    "envoy-outlier",
    "envoy-admission",
    "envoy-adaptive",
    "nginx-random2",
    "envoy-expert",
    "nginx-expert",
)
OURS = ("ours-ebpf", "ours-haproxy", "ours-envoy")
TUNED = "haproxy-maxconn"
"""With limits that an expert who knows the capacity has set by hand."""
EXPERTS = (TUNED, "envoy-expert", "nginx-expert")
"""All of them with limits by hand, outlier detection where they have it, and retries."""
ALL = (*(arm for arm in PEERS if arm not in EXPERTS), *OURS)
BESIDE_EXPERTS = (*EXPERTS, *OURS)
PLAIN = "haproxy-leastconn"
BESIDE_PLAIN = ("healthy", "noisy")
"""Where a plain HAProxy is measured beside experts, too: for its CPU, and as the bar of `noisy`."""
SOME = ("haproxy-leastconn", "envoy-outlier", *OURS)
SHEDDING = ("haproxy-leastconn", "envoy-outlier", "envoy-admission", "envoy-adaptive", *OURS)
"""Those that refuse anything, and two that do not."""
LASTING = ("haproxy-leastconn", TUNED, "envoy-adaptive", *OURS)
"""Those that need no agent, and ours without theirs."""


@dataclass(frozen=True, slots=True)
class Fault:
    """From `at_s` on the backend takes `slow` times as long, answers 500 at once, has gone, or does
    not report its latency."""

    at_s: float
    slow: float = 1.0
    failing: bool = False
    gone: bool = False
    blind: bool = False


@dataclass(frozen=True, slots=True)
class Scenario:
    """Load and faults of one run. Figures are of the requests meant for `window`."""

    name: str
    title: str
    until_s: float
    window: tuple[float, float]
    rates: tuple[tuple[float, float], ...]
    """(until when, requests per second)."""
    arms: tuple[str, ...] = ALL
    faults: tuple[Fault, ...] = ()
    """Of the unhealthy backend."""
    everywhere: bool = False
    """The faults are those of all backends."""
    in_turn_s: float | None = None
    """With `everywhere`: each backend has them so much later than the one before."""
    sick: tuple[float, float] | None = None
    """From when to when its share should be small; None where that is not asked."""
    failing_share: float = 0.0
    """Of all requests, wherever they go."""
    kill_agent_s: float | None = None
    restart_agent_s: float | None = None
    backends: int = len(NAMES)
    tries: int = 1
    """How often a client tries; its timeout is divided among them, the pauses come on top."""
    calm_s: float | None = None
    """From when on the load is usual again; None where nothing has to recover."""

    @property
    def names(self) -> tuple[str, ...]:
        """The backends it has."""
        return NAMES[: self.backends]

    def faults_of(self, name: str) -> tuple[Fault, ...]:
        """What happens to a backend."""
        if not self.everywhere:
            return self.faults if name == SICK else ()
        later_s = (self.in_turn_s or 0.0) * self.names.index(name)
        return tuple(replace(fault, at_s=fault.at_s + later_s) for fault in self.faults)

    @property
    def capacity_per_s(self) -> float:
        """What they can do together."""
        return self.backends * WORKERS / MEAN_S


WARM_S = 6.0


@dataclass(frozen=True, slots=True)
class Length:
    """How many seconds the parts of a scenario last."""

    warm_s: float = WARM_S
    healthy_s: float = 10.0
    slow_s: float = 25.0
    errors_s: float = 15.0
    restored_s: float = 22.0
    """After a fault of one backend."""
    overload_s: float = 25.0
    noisy_s: float = 60.0
    retries_s: float = 20.0
    monopoly_s: float = 20.0
    brown_out_s: float = 20.0
    recovery_s: float = 25.0
    """After a brown-out: refusals count from the tenth second on."""
    latency_lost_s: float = 20.0


LENGTHS = {
    "full": Length(),
    "quick": Length(
        healthy_s=6.0,
        slow_s=12.0,
        errors_s=8.0,
        restored_s=14.0,
        overload_s=12.0,
        noisy_s=25.0,
        retries_s=8.0,
        monopoly_s=10.0,
        brown_out_s=10.0,
        recovery_s=16.0,
        latency_lost_s=12.0,
    ),
    "short": Length(
        warm_s=4.0,
        healthy_s=5.0,
        slow_s=6.0,
        errors_s=4.0,
        restored_s=0.5,
        overload_s=8.0,
        noisy_s=12.0,
        brown_out_s=3.0,
        recovery_s=12.5,
    ),
}
"""`short` is for the scenarios of `SHORT`: three repetitions beside experts in one sitting."""
SHORT = ("healthy", "slow", "errors", "overload", "brown-out", "noisy")


def scenarios(seed: int, length: str = "full") -> dict[str, Scenario]:
    lasts = LENGTHS[length]
    listed = (
        _slow(lasts),
        _errors(lasts),
        _overload(lasts),
        _healthy(lasts),
        _killed(20.0),
        _dead(),
        _noisy(seed, lasts),
        _retries(lasts.retries_s),
        _monopoly(lasts.monopoly_s),
        _brown_out(lasts),
        _rolling(),
        _latency_lost(lasts.latency_lost_s),
    )
    return {scenario.name: scenario for scenario in listed}


def _healthy(lasts: Length) -> Scenario:
    begin_s, end_s = lasts.warm_s, lasts.warm_s + lasts.healthy_s
    rates = ((end_s, USUAL_PER_S),)
    return Scenario("healthy", "healthy, 70 % load", end_s, (begin_s, end_s), rates, SOME)


def _slow(lasts: Length) -> Scenario:
    well_s = lasts.warm_s + lasts.slow_s
    end_s = well_s + lasts.restored_s
    return Scenario(
        "slow",
        "one of four slow ×10, 70 % load",
        end_s,
        (lasts.warm_s, well_s),
        ((end_s, USUAL_PER_S),),
        faults=(Fault(lasts.warm_s, slow=10.0), Fault(well_s)),
        sick=(lasts.warm_s, well_s),
    )


def _errors(lasts: Length) -> Scenario:
    well_s = lasts.warm_s + lasts.errors_s
    end_s = well_s + lasts.restored_s
    return Scenario(
        "errors",
        "one of four answers 500 at once, 70 % load",
        end_s,
        (lasts.warm_s, well_s),
        ((end_s, USUAL_PER_S),),
        faults=(Fault(lasts.warm_s, failing=True), Fault(well_s)),
        sick=(lasts.warm_s, well_s),
    )


def _overload(lasts: Length) -> Scenario:
    end_s = lasts.warm_s + lasts.overload_s
    return Scenario(
        "overload",
        "twice the capacity",
        end_s,
        (lasts.warm_s, end_s),
        ((lasts.warm_s, USUAL_PER_S), (end_s, 2 * CAPACITY_PER_S)),
    )


def _noisy(seed: int, lasts: Length) -> Scenario:
    """Load between 45 and 85 %, half a percent of errors, one backend slow for moments."""
    chance = random.Random(f"noisy/{seed}")
    end_s = lasts.warm_s + lasts.noisy_s
    rates, at_s = [], 0.0
    while at_s < end_s:
        at_s = min(end_s, at_s + chance.uniform(0.5, 2.0))
        rates.append((at_s, chance.uniform(0.45, 0.85) * CAPACITY_PER_S))
    faults, at_s = [], lasts.warm_s
    while at_s < end_s:
        well_s = at_s + chance.uniform(1.0, 3.0)
        faults += [Fault(at_s, slow=10.0), Fault(well_s)]
        at_s = well_s + chance.uniform(2.0, 5.0)
    return Scenario(
        "noisy",
        "one of four flaps, load between 45 and 85 %",
        end_s,
        (lasts.warm_s, end_s),
        tuple(rates),
        SOME,
        tuple(faults),
        failing_share=0.005,
    )


def _killed(lasts_s: float) -> Scenario:
    """Long enough for hold (3 s) and fallback (15 s) after the agent's death."""
    end_s = WARM_S + lasts_s
    return Scenario(
        "killed",
        "the agent is killed, 70 % load",
        end_s,
        (WARM_S, end_s),
        ((end_s, USUAL_PER_S),),
        OURS,
        kill_agent_s=WARM_S,
    )


def _dead() -> Scenario:
    """The agent dies at twice the capacity. Figures are of the time from 30 s after its death on;
    then the load falls to half the capacity, and the agent is started again.
    """
    killed_s = WARM_S + 6.0
    calm_s = killed_s + 45.0
    end_s = calm_s + 25.0
    return Scenario(
        "dead",
        "the agent is killed at twice the capacity, and comes back at half of it",
        end_s,
        (killed_s + 30.0, calm_s),
        ((WARM_S, USUAL_PER_S), (calm_s, 2 * CAPACITY_PER_S), (end_s, 0.5 * CAPACITY_PER_S)),
        LASTING,
        kill_agent_s=killed_s,
        restart_agent_s=calm_s,
        calm_s=calm_s,
    )


def _retries(after_s: float) -> Scenario:
    """Half as much again as the group can do, for 6 s, by clients who wait a second and try again.
    It is a storm: what comes then is several times what is meant.
    """
    calm_s = WARM_S + 6.0
    end_s = calm_s + after_s
    return Scenario(
        "retries",
        "half too much for 6 s, clients try up to four times",
        end_s,
        (WARM_S, end_s),
        ((WARM_S, USUAL_PER_S), (calm_s, 1.5 * CAPACITY_PER_S), (end_s, USUAL_PER_S)),
        SHEDDING,
        tries=4,
        calm_s=calm_s,
    )


def _brown_out(lasts: Length) -> Scenario:
    """Figures are of all the time from the first slow moment on, recovery included."""
    well_s = lasts.warm_s + lasts.brown_out_s
    end_s = well_s + lasts.recovery_s
    return Scenario(
        "brown-out",
        "all are slow ×3 for a while, 70 % load",
        end_s,
        (lasts.warm_s, end_s),
        ((end_s, USUAL_PER_S),),
        SHEDDING,
        faults=(Fault(lasts.warm_s, slow=3.0), Fault(well_s)),
        everywhere=True,
        calm_s=well_s,
    )


def _rolling() -> Scenario:
    """One after the other they refuse connections for 2 s, as at a new release, and come back."""
    turn_s = 5.0
    end_s = WARM_S + turn_s * len(NAMES) + 4.0
    return Scenario(
        "rolling",
        "one after the other is replaced, 50 % load",
        end_s,
        (WARM_S, end_s),
        ((end_s, 0.5 * CAPACITY_PER_S),),
        SOME,
        faults=(Fault(WARM_S, gone=True), Fault(WARM_S + 2.0)),
        everywhere=True,
        in_turn_s=turn_s,
    )


def _latency_lost(lasts_s: float) -> Scenario:
    """Applications do not report latency any more; a dataplane that measures it still knows."""
    end_s = WARM_S + lasts_s
    return Scenario(
        "latency-lost",
        "latency is not reported any more, 70 % load",
        end_s,
        (WARM_S, end_s),
        ((end_s, USUAL_PER_S),),
        SOME,
        faults=(Fault(WARM_S, blind=True),),
        everywhere=True,
    )


def _monopoly(lasts_s: float) -> Scenario:
    """A single backend: only admission can help."""
    end_s, alone_per_s = WARM_S + lasts_s, CAPACITY_PER_S / len(NAMES)
    return Scenario(
        "monopoly",
        "a single backend, twice what it can do",
        end_s,
        (WARM_S, end_s),
        ((WARM_S, 0.7 * alone_per_s), (end_s, 2 * alone_per_s)),
        SHEDDING,
        backends=1,
    )
