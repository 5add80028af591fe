"""What no sensor can have meant becomes a missing signal, and everything else stays as it is."""

from dataclasses import replace
from typing import Any

import pytest

from fairlead.core.traffic import (
    AdmissionMode,
    OperatorCommand,
    Resource,
    Sighting,
    StallTotals,
    plausible,
)
from fairlead.core.traffic.sighting import (
    BackendSeen,
    CpuTimes,
    GroupSeen,
    Liveness,
    Look,
    NodeReading,
    Probed,
    Reading,
)
from fairlead.core.units import FLOAT_MAX, SIZE_MAX

NAN = float("nan")
LEAST = BackendSeen(0, 0, 0, 0, 0, 0, 0, 0.0, 0.0, 0, 0.0, (0, 0))
MOST = BackendSeen(*[SIZE_MAX] * 7, FLOAT_MAX, FLOAT_MAX, SIZE_MAX, FLOAT_MAX, inside=(SIZE_MAX, 7))
READING = Reading(
    requests=7, errors=0, retries=2, queue=0.0, p95_ms=0.5, looks=(Look(5, 4, 3),), at_ms=9
)
NODE = NodeReading(
    "n",
    StallTotals(8, {"cpu_some": 0, "io_full": SIZE_MAX}),
    (Resource("memory", 10, 5),),
    CpuTimes(3, 2.5, 0.0),
    7,
)
SIGHTING = Sighting(
    now_ms=10,
    members={"a": "n", "b": None, "c": None},
    seen=GroupSeen(
        epoch=3,
        liveness=Liveness.HOLD,
        mode=AdmissionMode.SOFT,
        admitted=9,
        refused_soft=2,
        refused_hard=1,
        backends={"a": LEAST, "b": MOST, "c": BackendSeen()},
        decision=5,
        retries=4,
    ),
    readings={"a": READING, "b": Reading()},
    covered=("queue",),
    asked_ms=3,
    nodes=(NODE, NodeReading("silent")),
    probed=(Probed("web", "a", ok=True, latency_ms=0.5), Probed("web", "b", ok=False)),
    checked=(Probed("web", "c", ok=True, latency_ms=1.5),),
    commands={"a": OperatorCommand.DRAIN},
    early=True,
)


def test_what_a_sensor_can_mean_stays_as_it_is() -> None:
    """From nothing at all up to the largest number, and what is missing stays missing."""
    assert plausible(SIGHTING) == SIGHTING
    blind = replace(SIGHTING, seen=None, nodes=None)
    assert plausible(blind) == blind


@pytest.mark.parametrize(
    "field", ["connect_failures", "consecutive_failures", "successes", "errors", "retransmits"]
)
@pytest.mark.parametrize("bad", [-1, SIZE_MAX + 1])
def test_an_impossible_count_is_missing(field: str, bad: int) -> None:
    """Of one backend; the others keep theirs."""
    assert of_backend(**{field: bad}) == {field: None}


@pytest.mark.parametrize("field", ["p95_ms", "rtt_ms", "jitter_ms"])
@pytest.mark.parametrize("bad", [-0.5, NAN, float("inf")])
def test_an_impossible_measurement_is_missing(field: str, bad: float) -> None:
    assert of_backend(**{field: bad}) == {field: None}


def test_an_impossible_queue_is_missing() -> None:
    assert of_backend(queue=-1) == {"queue": None}


def test_what_is_inside_is_cut_to_its_range() -> None:
    """A gauge that is read while it changes may be below nothing: it is nothing then."""
    assert of_backend(admitted=-5, open=-1) == {}
    assert of_backend(inside=(-1, 0)) == {}
    assert of_backend(inside=(SIZE_MAX + 1, 3)) == {"inside": (SIZE_MAX, 3)}
    assert of_backend(admitted=SIZE_MAX + 1, open=SIZE_MAX + 2) == {
        "admitted": SIZE_MAX,
        "open": SIZE_MAX,
    }


def of_backend(**spoiled: Any) -> dict[str, Any]:
    """How a backend that has nothing differs after one of its values was spoiled."""
    assert SIGHTING.seen is not None
    backends = {**SIGHTING.seen.backends, "a": replace(LEAST, **spoiled)}
    made = plausible(replace(SIGHTING, seen=replace(SIGHTING.seen, backends=backends)))
    assert made.seen is not None
    assert made.seen.backends["b"] == MOST
    found = made.seen.backends["a"]
    return {
        name: getattr(found, name)
        for name in BackendSeen.__slots__
        if getattr(found, name) != getattr(LEAST, name)
    }


@pytest.mark.parametrize(
    ("field", "bad"),
    [("requests", -1), ("errors", -1), ("retries", -1), ("queue", NAN), ("p95_ms", -1.0)],
)
def test_an_impossible_report_is_missing(field: str, bad: float) -> None:
    """Only the value, not the report."""
    spoiled = replace(SIGHTING, readings={"a": replace(READING, **{field: bad})})
    assert plausible(spoiled).readings == {"a": replace(READING, **{field: None})}


def test_impossible_latencies_of_probes_and_retries_of_groups_are_missing() -> None:
    assert SIGHTING.seen is not None
    spoiled = replace(
        SIGHTING,
        seen=replace(SIGHTING.seen, retries=-1),
        probed=(Probed("web", "a", ok=True, latency_ms=NAN),),
        checked=(Probed("api", "b", ok=False, latency_ms=-1.0),),
    )
    made = plausible(spoiled)
    assert made.seen == replace(SIGHTING.seen, retries=None)
    assert made.probed == (Probed("web", "a", ok=True),)
    assert made.checked == (Probed("api", "b", ok=False),)
