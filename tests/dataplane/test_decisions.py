"""Every call that acts on a dataplane carries the id of the recorded decision behind it."""

import ast
import inspect
from pathlib import Path

import pytest

import fairlead
from fairlead.dataplane.ebpf import EbpfDataplane
from fairlead.dataplane.envoy import EnvoyDataplane, RunningEnvoyDataplane
from fairlead.dataplane.haproxy import HaproxyDataplane, RunningHaproxyDataplane
from fairlead.dataplane.memory import MemoryDataplane
from fairlead.ports.dataplane import Dataplane

ACTS = ("apply", "limit", "drain")
RUNNING = (RunningHaproxyDataplane, RunningEnvoyDataplane)
ADAPTERS = (HaproxyDataplane, EnvoyDataplane, EbpfDataplane, MemoryDataplane, *RUNNING)


@pytest.mark.parametrize("adapter", [Dataplane, *ADAPTERS], ids=lambda adapter: adapter.__name__)
@pytest.mark.parametrize("name", ACTS)
def test_an_act_cannot_be_asked_for_without_a_decision(adapter: type, name: str) -> None:
    """The parameter is named and has no default."""
    decision = inspect.signature(getattr(adapter, name)).parameters["decision"]
    assert decision.kind is inspect.Parameter.KEYWORD_ONLY
    assert decision.default is inspect.Parameter.empty


def test_the_loop_passes_the_decision_it_recorded() -> None:
    """No call of the engine passes None or a number of its own."""
    folder = Path(fairlead.__file__).parent / "engine" / "traffic"
    calls = [
        node
        for path in folder.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ACTS
        and ast.unparse(node.func.value) == "self.plane"
    ]
    assert {call.func.attr for call in calls if isinstance(call.func, ast.Attribute)} == set(ACTS)
    for call in calls:
        (passed,) = [word.value for word in call.keywords if word.arg == "decision"]
        assert not isinstance(passed, ast.Constant), ast.unparse(call)
