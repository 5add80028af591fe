"""What is measured of the control plane for `/metrics`: counts by state, waits, durations.

Counts are worked out from the projection when they are scraped. Histograms and the counter of
preemptions begin at zero with the process, as `rate()` expects: every wait is computed from
recorded times, so a restart loses what was counted, and never what is counted next.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

from fairlead.core.reasons import CutKind, LimitReason
from fairlead.engine.gpu.committer import Committer
from fairlead.engine.gpu.entries import RunPhase, RunReclaimed, decode
from fairlead.engine.gpu.projection import Projection, node_spec
from fairlead.engine.gpu.state import Phase
from fairlead.engine.gpu.utilisation import Utilisation
from fairlead.ports.ledger import Entry
from fairlead.schema.objects import after_of, foreign_of
from fairlead.schema.samples import Histogram, Samples

# Turns of a small lab take milliseconds; one of 10 000 runs must stay below its second.
DURATIONS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
WAITS_S = (1, 5, 15, 60, 300, 900, 3600, 4 * 3600, 12 * 3600, 86_400, 3 * 86_400, 7 * 86_400)
RESERVATIONS = ("Pending", "Blocked", "Active", "Released")
OUT_OF_SERVICE = ("Drained", "NodeFailed")
REASONS = (
    *(kind.value for kind in CutKind),
    *(reason.value for reason in LimitReason if reason is not LimitReason.WITHIN),
    *OUT_OF_SERVICE,
)
"""Why a run had to give back devices."""
_KINDS = (RunPhase.ENTRY, RunReclaimed.ENTRY)


class Measures:
    """Listens to what is recorded, and times what is done."""

    def __init__(self, committer: Committer, utilisation: Utilisation) -> None:
        self._committer, self._utilisation = committer, utilisation
        self._waits = Histogram(WAITS_S)
        self._admissions, self._turns = Histogram(DURATIONS_S), Histogram(DURATIONS_S)
        self._preemptions = Counter(dict.fromkeys((*REASONS, "other"), 0))
        with committer.current() as projection:
            self._leaving = {name for name, run in projection.live.items() if run.is_ending}
            """Runs that are counted already, and still hold what they give back."""
            committer.listen(self._note)

    @contextmanager
    def admission(self) -> Iterator[None]:
        """Time one pass over the queue."""
        with _timed(self._admissions):
            yield

    @contextmanager
    def turn(self) -> Iterator[None]:
        with _timed(self._turns):
            yield

    def samples(self) -> Samples:
        with self._committer.current() as projection:
            ledger = self._committer.ledger
            phases = Counter(state.phase for state in projection.runs.values())
            booked = Counter(row.state for row in projection.resolver.reservations.values())
            return {
                "fairlead_gpu_runs": [
                    ({"phase": phase.value}, float(phases[phase])) for phase in Phase
                ],
                "fairlead_gpu_queue_oldest_seconds": [({}, self._oldest_s(projection))],
                "fairlead_gpu_queue_wait_seconds": [({}, self._waits)],
                "fairlead_gpu_admission_seconds": [({}, self._admissions)],
                "fairlead_gpu_turn_seconds": [({}, self._turns)],
                "fairlead_gpu_devices": [
                    ({"flavor": flavor, "state": state}, float(count))
                    for (flavor, state), count in sorted(_devices(projection).items())
                ],
                "fairlead_gpu_devices_idle": [
                    ({"flavor": flavor}, float(count))
                    for flavor, count in sorted(self._idle(projection).items())
                ],
                "fairlead_gpu_reservations": [
                    ({"state": state}, float(booked[state])) for state in RESERVATIONS
                ],
                "fairlead_gpu_preemptions_total": [
                    ({"reason": reason}, float(count))
                    for reason, count in self._preemptions.items()
                ],
                "fairlead_ledger_entries_total": [({}, float(projection.seq))],
                "fairlead_ledger_writable": [({}, float(ledger.failure() is None))],
            }

    def _note(self, entry: Entry) -> None:
        if entry.kind not in _KINDS:
            return
        body = decode(entry)
        if isinstance(body, RunReclaimed):
            self._preemptions[body.reason if body.reason in REASONS else "other"] += 1
            self._leaving |= {body.run} if body.preempts else set()
        elif isinstance(body, RunPhase) and body.phase != Phase.RUNNING:
            if body.run not in self._leaving and body.reason in OUT_OF_SERVICE:
                self._preemptions[body.reason] += 1  # it had no process, and left at once
            self._leaving.discard(body.run)
        elif isinstance(body, RunPhase) and body.job:
            self._note_start(body.run, entry.time_ms)

    def _note_start(self, run: str, now_ms: int) -> None:
        """Only what waited in the queue, and not for other runs or for the time of a reservation:
        those wait as long as they asked for."""
        projection = self._committer.projection
        stored = projection.get("Run", run)
        if stored is None or projection.runs[run].attempt != 1:
            return
        if run not in projection.reserved and not after_of(projection.run_spec(run)):
            self._waits.observe((now_ms - stored.created_ms) / 1000)

    def _oldest_s(self, projection: Projection) -> float:
        now_ms = oldest_ms = self._committer.now()
        for name, state in projection.live.items():
            # The times first: of 10 000 runs that wait only those that are older get a closer look.
            if state.since_ms < oldest_ms and self._queues(projection, name):
                oldest_ms = state.since_ms
        return (now_ms - oldest_ms) / 1000

    def _queues(self, projection: Projection, run: str) -> bool:
        """Whether it waits for devices or funding, and not for its owner, other runs or a time."""
        paused = projection.live[run].paused
        return not paused and projection.is_pending(run) and not projection.waits_for_runs(run)

    def _idle(self, projection: Projection) -> Counter[str]:
        flavors = {node_spec(node).flavor: 0 for node in projection.of_kind("Node")}
        idle = Counter(flavors)
        for name, state in projection.running.items():
            use = self._utilisation.of(state)
            if use is not None and use.idle_since_ms is not None:
                idle[projection.run_spec(name).flavor] += state.width + state.spares
        return idle


def _devices(projection: Projection) -> Counter[tuple[str, str]]:
    """Each device once: leased, quarantined, in use by others, cordoned or free."""
    counts: Counter[tuple[str, str]] = Counter()
    for stored in projection.of_kind("Node"):
        spec, taken = node_spec(stored), projection.taken.get(stored.name, {})
        names = {f"{stored.name}#{i}" for i in range(spec.devices) if i not in taken}
        unclean = len(names & projection.withheld)
        foreign = min(foreign_of(spec), len(names) - unclean)
        rest = len(names) - unclean - foreign
        for state, count in (
            ("leased", len(taken)),
            ("quarantined", unclean),
            ("foreign", foreign),
            ("cordoned", rest if spec.cordoned else 0),
            ("free", 0 if spec.cordoned else rest),
        ):
            counts[spec.flavor, state] += count
    return counts


@contextmanager
def _timed(histogram: Histogram) -> Iterator[None]:
    began_s = perf_counter()
    try:
        yield
    finally:
        histogram.observe(perf_counter() - began_s)
