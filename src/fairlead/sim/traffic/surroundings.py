"""What surrounds the loop in virtual time: a plane with a curtain, applications, one machine."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from fairlead.core.traffic import Resource, StallTotals
from fairlead.dataplane.memory import MemoryDataplane
from fairlead.ports.dataplane import BackendSeen, GroupSeen
from fairlead.ports.traffic import NodeReading, Probed, Reading
from fairlead.schema.traffic_scenario import Blind
from fairlead.sim.clock import VirtualClock
from fairlead.sim.traffic.service import Call, SimBackend
from fairlead.sim.traffic.story import GROUP, Outcome

MEMORY_BYTES = 16 * 2**30


class CurtainedPlane(MemoryDataplane):
    """The in-memory plane, of which some signals can be hidden."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(lambda: clock.now_ms)
        self.hidden: dict[str, Blind] = {}

    def read(self) -> Mapping[str, GroupSeen]:
        """What may still be seen."""
        return {
            name: replace(
                group, backends={id: self._seen_of(id, each) for id, each in group.backends.items()}
            )
            for name, group in super().read().items()
        }

    def _seen_of(self, id: str, seen: BackendSeen) -> BackendSeen:
        blind = self.hidden.get(id, Blind.NOTHING)
        if blind is Blind.ERRORS:
            return replace(seen, errors=None, successes=None, connect_failures=None)
        if blind is Blind.LATENCY:
            return replace(seen, p95_ms=None)
        return replace(seen, queue=None) if blind is Blind.QUEUE else seen


class Around:
    """Everything that the loop sees beside its plane and its machine."""

    def __init__(self, backends: Mapping[str, SimBackend], *, retried: bool) -> None:
        self._backends, self._retried = backends, retried
        self._answers: list[Probed] = []

    def covers(self, group: str) -> Collection[str]:
        """Retries, where clients retry."""
        return ("retries",) if self._retried else ()

    def read(self, now_ms: int) -> Mapping[tuple[str, str], Reading]:
        """What the applications count."""
        return {
            (GROUP, name): Reading(retries=each.retries) for name, each in self._backends.items()
        }

    def probe(self, group: str, backends: Sequence[str]) -> None:
        """A knock is a request of its own that goes past the plane."""
        for name in backends:
            self._knock(name, self._backends[name])

    def results(self) -> Sequence[Probed]:
        """Answers so far."""
        found, self._answers[:] = list(self._answers), []
        return found

    def _knock(self, name: str, backend: SimBackend) -> None:
        if not backend.reachable:
            self._answers.append(Probed(GROUP, name, ok=False))
            return

        def done(call: Call, outcome: Outcome) -> None:
            ok = outcome is Outcome.OK
            took_ms = float(backend.now_ms - call.began_ms)
            self._answers.append(Probed(GROUP, name, ok, took_ms))

        backend.take(Call(backend.now_ms, done))

    def check_ok(self, group: str, backend: str) -> bool | None:
        """There are no health checks here."""
        return None


class Machine:
    """The one machine under all backends."""

    def __init__(self, clock: VirtualClock, *, memory: bool) -> None:
        self._clock, self._memory = clock, memory
        self.stall = 0.0
        self.memory_used, self.memory_per_s = 0.3, 0.0
        self._stalled_us, self._at_ms = 0, 0

    def read(self, now_ms: int) -> Sequence[NodeReading]:
        """Counters of stalled time, and memory where the scenario is about it: its trail would be
        most of every record."""
        self.advance()
        totals = StallTotals(now_ms * 1000, {"cpu_some": self._stalled_us})
        memory = Resource("memory", MEMORY_BYTES, self.memory_used * MEMORY_BYTES)
        return [NodeReading("n1", totals, (memory,) if self._memory else ())]

    def advance(self) -> None:
        """Up to now."""
        elapsed_ms = self._clock.now_ms - self._at_ms
        self._at_ms = self._clock.now_ms
        self._stalled_us += round(elapsed_ms * 1000 * self.stall)
        grown = self.memory_used + self.memory_per_s * elapsed_ms / 1000
        self.memory_used = min(1.0, max(0.0, grown))
