"""Whether a run whose command failed starts again."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.gpu import FailurePolicy, RestartBackoff, RestartPolicy, RunFailure, restart
from fairlead.core.reasons import EndCause, RestartReason
from fairlead.schema.border import BadInput
from fairlead.schema.kinds import KINDS

CODES = st.none() | st.integers(1, 255)


@given(st.integers(0, 20), st.sets(st.integers(1, 255), max_size=4), st.lists(CODES, max_size=30))
def test_a_run_restarts_as_often_as_its_policy_says(
    most: int, fatal: set[int], exits: list[int | None]
) -> None:
    """Never more often, and not at all after an exit code that it names."""
    policy, restarts = FailurePolicy(most, tuple(sorted(fatal))), 0
    for code in exits:
        found = restart(RunFailure(policy, restarts, code))
        if found.reason is not RestartReason.RESTARTS:
            assert found.restarts == restarts
            assert code in fatal or restarts == most
            return
        assert code not in fatal
        assert found.restarts == restarts + 1 <= most
        restarts = found.restarts


def test_a_document_decides_the_same() -> None:
    asked = {"policy": {"max_restarts": 2, "fail_exit_codes": [3]}, "restarts": 1, "exit_code": 1}
    found = KINDS["gpu.restart"].run(json.dumps(asked).encode())
    assert (found.result, found.refused) == ({"reason": "Restarts", "restarts": 2}, False)
    found = KINDS["gpu.restart"].run(json.dumps({**asked, "exit_code": 3}).encode())
    assert (found.result, found.refused) == ({"reason": "FailExitCode", "restarts": 1}, True)


@pytest.mark.parametrize(
    ("policy", "where"),
    [
        ({"max_restarts": -1, "fail_exit_codes": []}, "policy.max_restarts"),
        ({"max_restarts": 1, "fail_exit_codes": [0]}, "policy.fail_exit_codes[0]"),
        ({"max_restarts": 1, "fail_exit_codes": [3, 3]}, "policy.fail_exit_codes[1]"),
    ],
)
def test_a_policy_that_makes_no_sense_is_refused(policy: dict[str, object], where: str) -> None:
    asked = {"policy": policy, "restarts": 0, "exit_code": None}
    with pytest.raises(BadInput) as refused:
        KINDS["gpu.restart"].run(json.dumps(asked).encode())
    assert refused.value.path == where


@given(
    st.sampled_from(RestartPolicy),
    st.sampled_from(EndCause),
    st.integers(0, 5),
    st.integers(0, 5),
    CODES,
)
def test_a_restart_policy_starts_again_after_its_ends_alone(
    policy: RestartPolicy, cause: EndCause, most: int, restarts: int, code: int | None
) -> None:
    """What lost its devices waits again, what failed starts in place, and only preemption and used
    hours are free of charge."""
    found = restart(RunFailure(FailurePolicy(most), restarts, code, cause, policy))
    free = cause in (EndCause.PREEMPTED, EndCause.HOURS_USED)
    assert found.goes_on == (cause in policy.causes and (free or restarts < most))
    assert found.restarts == restarts + (found.goes_on and not free)
    in_place = cause in (EndCause.FAILED, EndCause.SUCCEEDED)
    if found.goes_on:
        assert (found.reason is RestartReason.RESTARTS) == in_place
    elif cause not in policy.causes:
        assert found.reason is RestartReason.POLICY


def test_each_policy_goes_on_after_more_than_the_one_before() -> None:
    order = [RestartPolicy.NEVER, RestartPolicy.ON_PREEMPTION, RestartPolicy.ON_FAILURE]
    for less, more in pairwise([*order, RestartPolicy.ALWAYS]):
        assert less.causes < more.causes


def test_restarts_wait_longer_each_time_until_a_command_ran_for_long() -> None:
    """10 s, doubled up to 5 minutes; ten minutes of work are no crash loop."""
    policy, delays, waited = FailurePolicy(100), 0, []
    for ran_ms in [1_000] * 7 + [600_000, 599_999]:
        asked = RunFailure(policy, 0, 1, backoff=RestartBackoff(), ran_ms=ran_ms, delays=delays)
        found = restart(asked)
        waited.append(found.delay_ms // 1000)
        delays = found.delays
    assert waited == [10, 20, 40, 80, 160, 300, 300, 10, 20]
    assert RestartBackoff().delay_ms(10**6) == 300_000


@pytest.mark.parametrize("cause", [EndCause.PREEMPTED, EndCause.INTERRUPTED, EndCause.MAX_RUNTIME])
def test_what_waits_for_devices_has_no_delay(cause: EndCause) -> None:
    asked = RunFailure(FailurePolicy(3), 0, None, cause, RestartPolicy.ALWAYS, RestartBackoff())
    assert (restart(asked).goes_on, restart(asked).delay_ms) == (True, 0)


def test_a_document_with_a_backoff_says_when() -> None:
    asked = {"policy": {"max_restarts": 2, "fail_exit_codes": []}, "restarts": 0, "exit_code": 1}
    found = KINDS["gpu.restart"].run(json.dumps({**asked, "backoff": {}, "delays": 2}).encode())
    assert found.result == {"reason": "Restarts", "restarts": 1, "delay_ms": 40_000, "delays": 3}
