"""When a group is to be scaled: time to failure, and the only backend that is not enough."""

from dataclasses import replace

import pytest

from fairlead.core.reasons import TrafficReason
from fairlead.core.traffic import Admission, AdmissionMode, Backend, Config, Snapshot, tick
from fairlead.core.traffic.scale import scale_hint


@pytest.mark.parametrize(
    ("ttf_s", "alone", "mode", "expected"),
    [
        (None, False, "normal", None),
        (120.0, False, "normal", None),
        (119.9, False, "normal", TrafficReason.TTF),
        (0.0, True, "hard", TrafficReason.TTF),
        (None, True, "normal", None),
        (None, True, "soft", TrafficReason.MONOPOLY),
        (None, False, "hard", None),
    ],
)
def test_a_hint_has_a_reason(
    ttf_s: float | None, alone: bool, mode: str, expected: TrafficReason | None
) -> None:
    """A single healthy backend is no reason: there is nothing to wait for."""
    plan = tick(Snapshot(now_ms=0, group="web", backends=(Backend("a"),)))
    admission = Admission(AdmissionMode(mode), None, None)
    plan = replace(plan, ttf_s=ttf_s, scale_hint=alone, admission=admission)
    assert scale_hint(plan, Config()) is expected
