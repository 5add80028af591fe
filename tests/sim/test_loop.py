"""How the closed loop behaves: it settles, follows, lets go, and never starves anybody."""

from typing import Any

import pytest

from fairlead.core.cpu import CpuMode, Policy
from fairlead.sim import PolicyRun, play
from tests.sim.scenarios import pod, scenario


def run_of(*pods: dict[str, Any], **fields: Any) -> PolicyRun:
    played = play(scenario(*pods, **fields))
    assert played.broken is None
    return played.runs[0]


def limits(run: PolicyRun, uid: str) -> list[int]:
    return [p.limit or 0 for f in run.frames for p in f.pods if p.uid == uid]


@pytest.mark.parametrize("want", [100, 300, 600, 1000, 1500])
def test_a_steady_want_settles_above_itself_and_stays(want: int) -> None:
    """No throttling, no reversal, no ratchet: ten minutes later the limit is still the same."""
    run = run_of(
        pod("a", {"kind": "constant", "millicores": want}),
        duration_s=600,
        node={"millicores": 4000},
    )
    settled = limits(run, "a")[60:]
    assert set(settled) == {settled[0]}
    assert want < settled[0] <= max(220, want * 1.3)
    assert run.pods[0].throttled_ratio == 0


@pytest.mark.parametrize("step", [(300, 1200), (1200, 300)])
def test_a_step_is_followed_within_half_a_minute(step: tuple[int, int]) -> None:
    """Up: no more throttling after 30 s. Down: the surplus is given back."""
    before, after = step
    points = [{"at_s": 0, "millicores": before}, {"at_s": 60, "millicores": after}]
    run = run_of(pod("a", {"kind": "points", "points": points}), duration_s=150)
    late = [p for f in run.frames if f.time_ms > 90_000 for p in f.pods]
    assert max(p.throttled for p in late) == 0
    assert (late[-1].limit or 0) <= after * 1.45


@pytest.mark.parametrize("policy", list(Policy))
def test_scarcity_is_shared_and_nobody_falls_below_its_minimum(policy: Policy) -> None:
    """Three greedy pods: congested throughout, all of the capacity handed out, no starvation."""
    greedy = {"kind": "constant", "millicores": 2000}
    run = run_of(*(pod(name, greedy) for name in "abc"), policies=[policy.value], duration_s=120)
    late = run.frames[30:]
    assert {frame.mode for frame in late} == {CpuMode.CONGESTED}
    assert {frame.limits_total for frame in late} == {1800}
    for frame in late:
        assert all(abs((p.limit or 0) - 600) <= 1 for p in frame.pods), "equals are treated equally"


def test_when_scarcity_ends_everything_returns() -> None:
    """After a minute of congestion the limits fall back to what a quiet pod needs."""
    points = [{"at_s": 0, "millicores": 1500}, {"at_s": 60, "millicores": 300}]
    run = run_of(
        *(pod(name, {"kind": "points", "points": points}) for name in "ab"), duration_s=180
    )
    assert run.frames[50].mode is CpuMode.CONGESTED
    assert run.frames[-1].mode is CpuMode.UNCONGESTED
    assert all(300 < (p.limit or 0) < 400 for p in run.frames[-1].pods)


def test_opted_out_pods_are_left_alone() -> None:
    """Their limits never move, and the others fit into what is left."""
    greedy = {"kind": "constant", "millicores": 2000}
    outside = pod("outside", opted_out=True, limit_millicores=700)
    run = run_of(pod("a", greedy), pod("b", greedy), outside)
    assert set(limits(run, "outside")) == {700}
    assert {frame.limits_total for frame in run.frames[20:]} == {1800 - 700}
    assert {frame.capacity for frame in run.frames[20:]} == {1100}
