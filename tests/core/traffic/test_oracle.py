"""The core agrees with an implementation that shares nothing with it but the specification."""

import math
import random
from collections import Counter
from typing import Any

import pytest

from fairlead.core.reasons import TrafficReason
from fairlead.core.traffic import Regime
from fairlead.schema.border import BadInput
from tests.core.traffic import cases, oracle
from tests.core.traffic.play import by_core
from tests.core.traffic.spoil import spoil

SAMPLE = 80  # `make soak` compares 10 000 sequences
SPOILED = 300  # and as many documents with a defect


def compare(count: int, seed: int) -> dict[str, int]:
    """Play `count` sequences twice, every tick compared; returns what was met how often."""
    met: Counter[str] = Counter()
    for case in range(count):
        world = cases.World(random.Random(f"{seed}/{case}"))  # any failing case can be run alone
        mine: dict[str, Any] | None = None
        yours: dict[str, Any] | None = None
        slots: dict[str, int] | None = None
        for tick in range(world.ticks):
            document = world.tick(slots)
            core = by_core({**document, "state": mine})
            other = oracle.tick({**document, "state": yours})
            mine, yours, slots = core["state"], other["state"], core["slots"]
            different = differences(comparable(core), comparable(other))
            assert not different, f"case {seed}/{case}, tick {tick}: {different}"
            met.update([*core["reasons"], core["regime"], "ticks"])
    return dict(sorted(met.items()))


def comparable(output: dict[str, Any]) -> dict[str, Any]:
    """Everything but the state."""
    return {**output, "state": None}


def differences(core: Any, other: Any, at: str = "") -> list[str]:
    """Paths and values that differ; doubles may differ in their last digits only."""
    if isinstance(core, dict) and isinstance(other, dict) and core.keys() == other.keys():
        return [d for key in core for d in differences(core[key], other[key], f"{at}.{key}")]
    if isinstance(core, float) and isinstance(other, float | int):
        same = math.isclose(core, other, rel_tol=1e-9, abs_tol=1e-9)
    else:
        same = core == other and isinstance(core, bool) == isinstance(other, bool)
    return [] if same else [f"{at}: core {core!r}, oracle {other!r}"]


def refusals(count: int, seed: int) -> dict[str, int]:
    """Spoil `count` documents and compare where they are refused."""
    met: Counter[str] = Counter()
    for case in range(count):
        rng = random.Random(f"{seed}/{case}")
        document, path = spoil(rng, cases.World(rng).tick())
        with pytest.raises(BadInput) as refused:
            by_core(document)
        assert refused.value.path == path, f"case {seed}/{case}: {refused.value}"
        with pytest.raises(oracle.Bad) as refused_too:
            oracle.tick(document)
        assert refused_too.value.path == path, f"case {seed}/{case}"
        met[path.split("[")[0].split(".")[0]] += 1
    return dict(sorted(met.items()))


def test_same_ticks_as_the_independent_implementation() -> None:
    """Slots, weights, terms, admission, budgets and reasons; every regime and kind of reason."""
    met = compare(SAMPLE, seed=7)
    said = {reason.value for reason in TrafficReason} - {"failsafe", "full"}  # the agent's
    assert {*Regime, *said} <= set(met)


def test_same_refusals_as_the_independent_implementation() -> None:
    """One defect in a document: refused, at the exact path."""
    assert set(refusals(SPOILED, seed=7)) >= {"config", "backends", "nodes", "now_ms", "group"}
