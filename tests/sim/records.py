"""Flight records of simulated nodes, as node agents would have written them."""

import json
from pathlib import Path

from fairlead.core.cpu import Policy
from fairlead.recorder import FileRecorder
from fairlead.schema.scenario import ScenarioDocument
from fairlead.sim import Simulation


def record_of(
    scenario: ScenarioDocument, folder: Path, *, seed: int = 1, policy: Policy = Policy.NASH
) -> Path:
    """Play a scenario to its end; returns the folder, which now holds its record."""
    simulation = Simulation(scenario, seed=seed, policy=policy)
    simulation.advance(scenario.duration_s * 1000)
    with FileRecorder(folder, sync_each=False) as recorder:
        for made in simulation.record.decisions:
            sequence = recorder.append(
                "cpu.allocate",
                version=1,
                time_ms=made.time_ms,
                input=json.loads(made.input),
                output=json.loads(made.result),
            )
            recorder.mark(sequence, "applied", time_ms=made.time_ms)
    return folder


def append(folder: Path, kind: str, time_ms: int, input: object, output: object) -> None:
    """One entry of any kind."""
    with FileRecorder(folder, sync_each=False) as recorder:
        recorder.append(kind, version=1, time_ms=time_ms, input=input, output=output)  # type: ignore[arg-type]  # wrong on purpose in some tests
