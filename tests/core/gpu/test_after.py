"""Whether a run that starts after others may start."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.gpu import AfterCondition, Dependencies, Dependency, after
from fairlead.core.gpu.after import RunProgress
from fairlead.core.reasons import AfterReason
from fairlead.schema.border import BadInput
from fairlead.schema.kinds import KINDS

ONE = st.tuples(st.sampled_from(AfterCondition), st.sampled_from(RunProgress))
ORDER = {RunProgress.OPEN: tuple(RunProgress)}


@given(st.lists(ONE, max_size=6))
def test_it_starts_when_all_are_met_and_never_when_one_cannot_be(
    given_: list[tuple[AfterCondition, RunProgress]],
) -> None:
    """And as runs come to their ends, what was decided for good stays decided."""
    asked = Dependencies(tuple(Dependency(f"r{i}", *one) for i, one in enumerate(given_)))
    found = after(asked)
    met = [
        progress is RunProgress.SUCCEEDED
        or (how is AfterCondition.ANY and progress is not RunProgress.OPEN)
        for how, progress in given_
    ]
    assert (found.reason is AfterReason.READY) == all(met)
    lost = [
        how is AfterCondition.OK and progress in (RunProgress.FAILED, RunProgress.GONE)
        for how, progress in given_
    ]
    assert (found.reason is AfterReason.FAILED) == any(lost)
    ends = [
        (how, RunProgress.SUCCEEDED if progress is RunProgress.OPEN else progress)
        for how, progress in given_
    ]
    later = after(Dependencies(tuple(Dependency(f"r{i}", *one) for i, one in enumerate(ends))))
    if found.reason is not AfterReason.WAITS:
        assert later.reason is found.reason
    assert later.reason is not AfterReason.WAITS


def test_a_document_is_checked() -> None:
    twice = {"run": "a", "condition": "afterOK", "progress": "open"}
    with pytest.raises(BadInput) as refused:
        KINDS["gpu.after"].run(json.dumps({"after": [twice, twice]}).encode())
    assert refused.value.path == "after[1].run"


def test_the_runs_that_decide_are_named_in_their_order() -> None:
    """Those that can no more be met; else those that it waits for; else all."""
    ok, any_ = AfterCondition.OK, AfterCondition.ANY
    lost, open_ = (
        Dependency("lost", ok, RunProgress.FAILED),
        Dependency("open", ok, RunProgress.OPEN),
    )
    done, gone = (
        Dependency("done", any_, RunProgress.FAILED),
        Dependency("gone", ok, RunProgress.GONE),
    )
    assert after(Dependencies((open_, lost, done, gone))).runs == ("lost", "gone")
    assert after(Dependencies((done, open_))).runs == ("open",)
    assert after(Dependencies((done,))).runs == ("done",)
