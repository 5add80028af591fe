"""Simulations: the real decision code against simulated pods and backends, in virtual time.

played = play(read_scenario(data), seed=7)
played.digest, played.runs[0].pods
"""

from importlib.resources import files

from fairlead.sim.checkers import Broken
from fairlead.sim.simulation import PolicyRun, ScenarioResult, Simulation, play

__all__ = [
    "Broken",
    "PolicyRun",
    "ScenarioResult",
    "Simulation",
    "bundled_names",
    "play",
    "read_bundled",
]


def bundled_names(package: str = "fairlead.sim") -> list[str]:
    entries = files(package).joinpath("scenarios").iterdir()
    return sorted(e.name.removesuffix(".yaml") for e in entries if e.name.endswith(".yaml"))


def read_bundled(name: str, package: str = "fairlead.sim") -> bytes:
    """The bytes of one of `bundled_names`."""
    return files(package).joinpath("scenarios", f"{name}.yaml").read_bytes()
