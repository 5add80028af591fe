"""The demo's simulated node and service: real decisions, at any pace, and well again afterwards."""

from pathlib import Path

import pytest

from fairlead.core.traffic import Cause
from fairlead.engine.traffic import TickRound
from fairlead.recorder import read, replay
from fairlead.schema.replay import Verdict
from fairlead.sim.live import LiveNode, LiveService


def seconds(live: LiveNode | LiveService, count: int) -> list[str]:
    return [crisis.text for _ in range(5 * count) for crisis in live.advance(200)]


@pytest.mark.parametrize(("promised", "mode"), [(False, "congested"), (True, "overloaded")])
def test_a_node_is_congested_by_guests_and_quiet_without_them(*, promised: bool, mode: str) -> None:
    node = LiveNode(seed=3)
    assert seconds(node, 20) == [], "quiet pods fit"
    node.congest(promised=promised)
    said = seconds(node, 10)
    assert said[0].startswith(f"{mode}: ")
    turn = node.agent.turn
    assert turn is not None
    assert turn.plan.mode.value == mode
    assert sum(turn.plan.allocations.values()) <= turn.plan.capacity_millicores
    node.settle()
    seconds(node, 20)
    assert node.agent.turn is not None
    assert node.agent.turn.plan.mode.value == "uncongested"


@pytest.mark.parametrize("fails", [False, True])
def test_a_sick_backend_is_ejected_and_returns(tmp_path: Path, *, fails: bool) -> None:
    rounds: list[TickRound] = []
    service = LiveService(3, tmp_path / "record", lambda round, _: rounds.append(round))
    assert seconds(service, 30) == [], "healthy backends stay"
    service.sicken(fails=fails)
    (said,) = seconds(service, 10)
    assert said.startswith("backend d is ejected as outlier (pressure ")
    (made,) = rounds[-1].groups.values()
    assert made.plan.slots["d"] == 0
    service.heal()
    assert seconds(service, 60) == []
    (made,) = rounds[-1].groups.values()
    assert made.plan.slots["d"] > 0, "it serves again"
    service.close()
    assert {entry.verdict for entry in replay(read(tmp_path / "record"))} == {Verdict.SAME}


def test_an_operators_order_is_obeyed_and_no_crisis(tmp_path: Path) -> None:
    rounds: list[TickRound] = []
    service = LiveService(3, tmp_path, lambda round, _: rounds.append(round))
    seconds(service, 10)
    service.obey({"a": "isolate"})
    assert seconds(service, 5) == [], "an operator ejected it, nobody is sick"
    (made,) = rounds[-1].groups.values()
    assert made.plan.slots["a"] == 0
    assert made.decision.observed.isolated == {"a": Cause.OPERATOR}
    service.obey({})
    seconds(service, 60)
    (made,) = rounds[-1].groups.values()
    assert made.plan.slots["a"] > 0, "it serves again"
    service.close()
