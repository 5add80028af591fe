"""Which limit of a run is over: its time, the hours of a hard envelope, idle devices."""

import json

from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.gpu import Enforcement, IdleLimit, PaidLease, RunLimits, limit
from fairlead.core.reasons import LimitReason
from fairlead.schema.kinds import KINDS

TIMES = st.integers(0, 1000)


def lease(name: str, over_ms: int | None, enforcement: Enforcement = Enforcement.HARD) -> PaidLease:
    return PaidLease(name, "b", "west", enforcement, over_ms)


@given(TIMES, TIMES, st.none() | st.integers(1, 1000))
def test_a_run_ends_when_its_time_is_over_and_not_before(
    now: int, since: int, most: int | None
) -> None:
    found = limit(RunLimits(now, "r", since, most))
    over = most is not None and now >= since + most
    assert found.ends == over
    assert (found.reason is LimitReason.MAX_RUNTIME) == over
    assert found.since_ms == (None if most is None or not over else since + most)


def test_only_a_hard_envelope_ends_its_runs() -> None:
    soft = lease("a", 5, Enforcement.SOFT)
    assert limit(RunLimits(9, "r", 0, None, (soft, lease("b", None)))).reason is LimitReason.WITHIN
    found = limit(RunLimits(9, "r", 0, None, (soft, lease("c", 7), lease("b", 7))))
    assert (found.reason, found.ends) == (LimitReason.HOURS_USED, True)
    assert (found.since_ms, found.lease) == (7, "b")


def test_an_idle_run_is_warned_once_or_ended() -> None:
    def asked(now: int, **idle: object) -> RunLimits:
        return RunLimits(now, "r", 0, idle=IdleLimit(10, **idle))  # type: ignore[arg-type]

    assert limit(asked(50)).reason is LimitReason.WITHIN, "it works, or nothing is known"
    assert limit(asked(14, since_ms=5)).reason is LimitReason.WITHIN
    warned = limit(asked(15, since_ms=5))
    assert (warned.reason, warned.ends, warned.since_ms) == (LimitReason.IDLE, False, 5)
    assert limit(asked(99, since_ms=5, warned=True)).reason is LimitReason.WITHIN
    assert limit(asked(99, since_ms=5, warned=True, releases=True)).ends


def test_its_time_comes_before_its_hours() -> None:
    found = limit(RunLimits(9, "r", 0, 4, (lease("a", 5),), IdleLimit(1, True, 0)))
    assert found.reason is LimitReason.MAX_RUNTIME


def test_a_document_decides_the_same() -> None:
    asked = {"now": "2026-01-01T02:00:00Z", "run": "r", "running_since": "2026-01-01T00:00:00Z"}
    found = KINDS["gpu.limit"].run(json.dumps({**asked, "max_runtime_ms": 3_600_000}).encode())
    assert found.result == {
        "reason": "MaxRuntimeOver",
        "ends": True,
        "since": "2026-01-01T01:00:00Z",
        "lease": None,
    }


def test_a_run_ends_at_the_moment_its_time_is_over() -> None:
    assert limit(RunLimits(60, "r", 10, 50)).reason is LimitReason.MAX_RUNTIME
    assert limit(RunLimits(59, "r", 10, 50)).reason is LimitReason.WITHIN


def test_a_lease_that_is_there_twice_is_refused_with_its_place() -> None:
    (fault,) = RunLimits(9, "r", 0, None, (lease("a", 5), lease("b", 5), lease("a", 7))).faults()
    assert (fault.field, fault.message) == ("leases[2].lease", "repeats another lease's lease, 'a'")
