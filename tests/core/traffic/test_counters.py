"""Counters to signals: windows, outcomes, probes, queues, back-off."""

import pytest

from fairlead.core.traffic import Config, GroupRules, Liveness, Sighting
from fairlead.core.traffic.counters import (
    Signals,
    TrafficCounters,
    Window,
    add,
    counted,
    read_counters,
)
from fairlead.core.traffic.health import Cause
from fairlead.core.traffic.memory import BackendHistory
from fairlead.core.traffic.observe import BACKOFF_MOST_MS, _follow_isolation, _may_probe
from fairlead.core.traffic.sighting import BackendSeen, GroupSeen, OperatorCommand, Probed, Reading
from fairlead.core.traffic.state import AdmissionMode
from tests.core.traffic.lives import GroupLife


class Meter:
    """One counter over the window."""

    def __init__(self) -> None:
        self.window: Window = ()

    def add(self, clock_ms: int, total: int | None) -> int | None:
        self.window = add(self.window, clock_ms, total, 5_000)
        return counted(self.window)


class Meters:
    """The counters of one backend."""

    def __init__(self) -> None:
        self.counters = TrafficCounters()

    def see(
        self, clock_ms: int, seen: BackendSeen, reading: Reading, covered: tuple[str, ...]
    ) -> Signals:
        self.counters, signals = read_counters(self.counters, clock_ms, seen, reading, covered)
        return signals


def test_a_window_counts_its_seconds() -> None:
    """Five seconds, not more; the first reading is the beginning, not a burst."""
    meter = Meter()
    assert meter.add(0, 1_000) == 0
    counts = [meter.add(at * 200, 1_000 + at * 10) for at in range(1, 60)]
    assert counts[0] == 10
    assert counts[-1] == 250


def test_a_window_forgets_what_vanished_or_fell() -> None:
    """A missing counter is unknown; one that falls belongs to a new process."""
    meter = Meter()
    meter.add(0, 10)
    assert meter.add(200, None) is None
    assert meter.add(400, 50) == 0
    assert meter.add(600, 20) == 0
    assert meter.add(800, 25) == 5


def test_connects_that_fail_are_failures_on_every_dataplane() -> None:
    """Beside the errors that the dataplane or the application counts."""
    for covered, reading in (((), Reading()), (("requests", "errors"), Reading(100, 0))):
        meters = Meters()
        meters.see(0, BackendSeen(0, 0, 0, 0, 0, 0, 0), Reading(0, 0), covered)
        seen = meters.see(200, BackendSeen(100, 10, 10, 90, 0, 0, 0), reading, covered)
        assert seen.error_rate == pytest.approx(0.1, abs=0.01)


def test_errors_before_the_first_good_answer_of_a_probe_are_forgotten() -> None:
    """And those after it are not; the next one begins anew only after a bad answer."""
    life, both = GroupLife(GroupRules(Config())), ("requests", "errors")

    def rate(
        at_ms: int, requests: int, errors: int, *latencies: float | None, ordered: bool = True
    ) -> float | None:
        observed, _ = life.tick(
            Sighting(
                now_ms=at_ms,
                members={"a": None},
                seen=GroupSeen(
                    1, Liveness.NORMAL, AdmissionMode.NORMAL, 0, 0, 0, {"a": BackendSeen()}
                ),
                readings={"a": Reading(requests, errors)},
                covered=both,
                probed=tuple(
                    Probed("web", "a", latency is not None, latency) for latency in latencies
                ),
                commands={"a": OperatorCommand.ISOLATE} if ordered else {},
            )
        )
        return observed.snapshot.backends[0].error_rate

    rate(0, 0, 0)
    assert rate(200, 10, 10) == 1.0
    assert rate(400, 11, 11, None) == 1.0
    assert rate(600, 12, 11, 20.0) == 0.0
    assert rate(800, 14, 12) == 0.5
    assert rate(1_000, 14, 12, 20.0) == 0.5
    rate(1_200, 14, 12, *[20.0] * 5, ordered=False)
    assert not life.memory.isolated
    assert not life.memory.backends[0].answers
    rate(1_400, 14, 12)
    assert rate(1_600, 14, 12, 20.0) == 0.0


def test_probes_that_are_not_answered_are_counted_until_one_is() -> None:
    """An answer that is an error ends the row, too; it is no good answer."""
    life, seen = GroupLife(GroupRules(Config())), []
    isolated = {"a": OperatorCommand.ISOLATE}
    group = GroupSeen(1, Liveness.NORMAL, AdmissionMode.NORMAL, 0, 0, 0, {"a": BackendSeen()})
    for at_ms, ok, latency_ms in (
        (200, False, None),
        (400, False, None),
        (600, False, 20.0),
        (800, True, 20.0),
        (1_000, False, 20.0),
    ):
        life.tick(
            Sighting(
                now_ms=at_ms,
                members={"a": None},
                seen=group,
                probed=(Probed("web", "a", ok, latency_ms),) if at_ms > 200 else (),
                commands=isolated,
            )
        )
        history = life.memory.backends[0]
        seen.append((history.probe_failures, history.answers))
    assert seen == [(0, False), (1, False), (0, False), (0, True), (0, False)]


def test_where_a_queue_cannot_be_seen_open_connections_are_none() -> None:
    """Idle connections wait for nothing."""
    meters = Meters()
    assert meters.see(0, BackendSeen(1, open=7), Reading(), ()).queue is None
    assert meters.see(0, BackendSeen(1, open=7, queue=2), Reading(), ()).queue == 9.0


def test_retransmits_are_per_connection() -> None:
    """Nothing sent, nothing known."""
    meters = Meters()
    assert meters.see(0, BackendSeen(0, retransmits=0), Reading(), ()).retrans_rate is None
    assert meters.see(200, BackendSeen(50, retransmits=5), Reading(), ()).retrans_rate == 0.1


def test_what_piled_up_and_how_fast_it_is_worked_off() -> None:
    """Per second of the time that is covered, from the source that counts; unknown at first."""
    life, backends = GroupLife(GroupRules(Config())), []
    for at_ms, seen in (
        (0, BackendSeen(successes=10)),
        (500, BackendSeen(successes=30, open=7, queue=2)),
    ):
        group = GroupSeen(1, Liveness.NORMAL, AdmissionMode.NORMAL, 0, 0, 0, {"a": seen})
        observed, _ = life.tick(Sighting(now_ms=at_ms, members={"a": None}, seen=group))
        backends.append(observed.snapshot.backends[0])
    assert [(b.queue, b.drain_per_s) for b in backends] == [(None, None), (9.0, 40.0)]
    assert backends[1].debt == 9.0
    both, meters = ("requests", "errors"), Meters()
    meters.see(0, BackendSeen(), Reading(0, 0), both)
    assert meters.see(1_000, BackendSeen(), Reading(50, 10), both).drain_per_s == 40.0
    assert meters.see(2_000, BackendSeen(), Reading(), both).drain_per_s is None


def test_returns_that_do_not_last_make_the_next_one_wait() -> None:
    """Twice as long each time, a minute at most; a return that lasts is forgiven."""
    histories, clock_ms, waits = {"a": BackendHistory("a")}, 0, []

    def change(before: dict[str, Cause], now: dict[str, Cause]) -> None:
        _follow_isolation(histories, before, now, None, clock_ms=clock_ms, warmup_ms=0)

    out = {"a": Cause.OUTLIER}
    for _ in range(9):
        change({}, out)
        began = clock_ms
        while not _may_probe(histories["a"], clock_ms):
            clock_ms += 100
        waits.append(clock_ms - began)
        change(out, {})
        clock_ms += 1_000
    assert waits[:4] == [0, 2_000, 4_000, 8_000]
    assert max(waits) == BACKOFF_MOST_MS
    clock_ms += 60_000
    change({}, out)
    assert _may_probe(histories["a"], clock_ms)
