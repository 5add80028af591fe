"""The traffic loop on the memory plane: see, decide, record, beat, apply, mark."""

from pathlib import Path

from fairlead.recorder import FileRecorder, read, replay
from tests.engine.traffic_worlds import TrafficWorld


def test_a_slow_backend_loses_its_flow_and_the_record_replays(tmp_path: Path) -> None:
    """Two backends, one turns slow by 10: at most 5 % of the slots within 8 s, byte for byte."""
    with FileRecorder(tmp_path, sync_each=False) as recorder:
        world = TrafficWorld(recorder=recorder)
        world.ticks(2)
        assert world.governor.state is not None
        assert {memory.slots for memory in world.governor.state.backends} == {128}
        world.backends["b"].latency_ms = 200
        rounds = world.ticks(8)
        assert rounds[-1].groups["web"].plan.slots["b"] <= 256 * 0.05
        assert recorder.unapplied() == []
    verdicts = [each.verdict for each in replay(read(tmp_path))]
    assert len(verdicts) == 50
    assert set(verdicts) == {"same"}
