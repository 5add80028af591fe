"""Manifests: strict, with paths; defaults filled in; the same values in core."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.core import gpu
from fairlead.schema.border import BadInput
from fairlead.schema.kinds import KINDS
from fairlead.schema.objects import (
    API_VERSION,
    parse_duration,
    read_manifest,
    read_spec,
    spec_document,
    to_budget,
    to_request,
    to_shape,
)
from fairlead.schema.yaml import parse_yaml

RUN = {"owner": "a", "flavor": "H100", "totalGPUs": 8}
ENVELOPE = {"name": "west", "flavor": "H100", "concurrency": 8}


def manifest(kind: str, spec: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    return {
        "apiVersion": API_VERSION,
        "kind": kind,
        "metadata": {"name": "x", **metadata},
        "spec": spec,
    }


def run(**more: Any) -> dict[str, Any]:
    return manifest("Run", {**RUN, **more})


def budget(**more: Any) -> dict[str, Any]:
    return manifest("Budget", {"owner": "a", "envelopes": [{**ENVELOPE, **more}]})


def test_a_budget_from_yaml_becomes_cores() -> None:
    """Every field of the design, in the words of the design."""
    text = b"""
apiVersion: fairlead.dev/v1alpha1
kind: Budget
metadata: {name: vision, labels: {site: main}}
spec:
  owner: team-a
  parents: [org]
  envelopes:
    - name: west
      flavor: H100
      location: {region: us-west}
      concurrency: 8
      maxGPUHours: 100.5
      window: {start: "2026-01-01T00:00:00Z", end: "2026-02-01T00:00:00+01:00"}
      recurrence: weekly
      sharing: none
      lending: {allow: true, to: ["org:*"], maxConcurrency: 2, maxGPUHours: 10}
  aggregateCaps:
    - {name: all, flavor: H100, envelopes: [west], maxConcurrency: 10, maxGPUHours: 90}
"""
    found = read_manifest(parse_yaml(text))
    made = to_budget(found.metadata.name, found.spec)
    (west,), (cap,) = made.envelopes, made.aggregate_caps
    assert (made.name, made.owner, made.parents) == ("vision", "team-a", ("org",))
    assert (west.gpus, west.max_hours_ms) == (8, 361_800_000)
    assert (west.recurrence, west.sharing) == (gpu.Recurrence.WEEKLY, gpu.Sharing.NONE)
    assert west.lending == gpu.Lending(True, ("org:*",), 2, 36_000_000)
    assert west.window is not None
    assert west.window.end_ms - west.window.start_ms == (31 * 24 - 1) * gpu.HOUR_MS
    assert (cap.envelopes, cap.max_gpus) == (("west",), 10)


def test_defaults_are_filled_in_and_a_document_reads_back() -> None:
    """Equal specs have equal documents, however much was left out."""
    short = read_manifest(run()).spec
    document = spec_document(short)
    assert document["funding"] == {"allowBorrow": False, "maxBorrowGPUs": None, "sponsors": []}
    assert read_spec("Run", json.loads(json.dumps(document))) == short
    assert spec_document(read_manifest(manifest("Run", document)).spec) == document
    lending = spec_document(read_manifest(budget()).spec)["envelopes"][0]["lending"]
    assert lending == {"allow": False, "to": [], "maxConcurrency": None, "maxGPUHours": None}


def test_what_the_server_wrote_is_ignored() -> None:
    """status, uid, generation: so that what was read can be applied."""
    given = {**run(), "status": {"phase": "Running", "anything": [1]}}
    given["metadata"] |= {
        "uid": "u",
        "generation": 3,
        "creationTimestamp": "t",
        "resourceVersion": 7,
    }
    assert read_manifest(given).metadata.resource_version == 7


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ({}, "apiVersion"),
        ([], "$"),
        ({**run(), "apiVersion": "v1"}, "apiVersion"),
        ({**run(), "kind": "Lease"}, "kind"),
        ({**run(), "surprise": 1}, "surprise"),
        (manifest("Run", RUN, name="Bad Name"), "metadata.name"),
        (manifest("Run", RUN, name="a#1"), "metadata.name"),
        (manifest("Run", RUN, name="-a"), "metadata.name"),
        (manifest("Run", RUN, name="a\n"), "metadata.name"),
        (run(workingDirectory="data"), "spec.workingDirectory"),
        (run(secretEnv={"A": {"file": "/f"}, "B": {"file": 1}}), "spec.secretEnv.B.file"),
        (run(secretEnv={"A": {"file": "/f"}, "B": {}}), "spec.secretEnv.B.file"),
        (manifest("Run", {"owner": "a", "flavor": "H100"}), "spec.totalGPUs"),
        (run(totalGPUs=0), "spec.totalGPUs"),
        (run(totalGPUs=2.5), "spec.totalGPUs"),
        (run(totalGPUs=True), "spec.totalGPUs"),
        (run(owner=""), "spec.owner"),
        (run(priority=1001), "spec.priority"),
        (run(duration=""), "spec.duration"),
        (run(duration="2"), "spec.duration"),
        (run(duration="0h"), "spec.duration"),
        (run(duration="400d"), "spec.duration"),
        (run(duration="9" * 5000 + "h"), "spec.duration"),
        (run(duration="1h 30m"), "spec.duration"),
        (run(groupGPUs=9), "spec.groupGPUs"),
        (run(malleable={"minTotalGPUs": 9}), "spec.malleable.minTotalGPUs"),
        (run(malleable={"minTotalGPUs": 3, "stepGPUs": 2}), "spec.totalGPUs"),
        (run(malleable={"minTotalGPUs": 4}, sparesPerGroup=1), "spec.groupGPUs"),
        (run(malleable={"minTotalGPUs": 4, "stepGPUs": 4}), "spec.groupGPUs"),
        (run(groupGPUs=3, sparesPerGroup=1), "spec.totalGPUs"),
        (
            run(groupGPUs=4, sparesPerGroup=1, malleable={"minTotalGPUs": 2, "stepGPUs": 6}),
            "spec.malleable.minTotalGPUs",
        ),
        (
            run(groupGPUs=4, sparesPerGroup=1, malleable={"minTotalGPUs": 4, "stepGPUs": 2}),
            "spec.malleable.stepGPUs",
        ),
        (run(env={"A B": "x"}), "spec.env"),
        (run(env={"A": 1}), "spec.env"),
        (run(secretEnv={"": {"file": "/run/s"}}), "spec.secretEnv"),
        (run(secretEnv={"A": "the secret itself"}), "spec.secretEnv"),
        (run(env={"A": "x"}, secretEnv={"A": {"file": "f"}}), "spec.secretEnv"),
        (run(command=["", "x"]), "spec.command[0]"),
        (run(command="train.sh"), "spec.command"),
        (run(funding={"maxBorrowGPUs": -1}), "spec.funding.maxBorrowGPUs"),
        (budget(concurrency=0), "spec.envelopes[0].concurrency"),
        (budget(maxGPUHours=float("nan")), "spec.envelopes[0].maxGPUHours"),
        (budget(maxGPUHours=3e9), "spec.envelopes[0].maxGPUHours"),
        (budget(sharing="all"), "spec.envelopes[0].sharing"),
        (budget(window={"start": "2026-01-01", "end": "x"}), "spec.envelopes[0].window.start"),
        (
            budget(window={"start": "2026-01-01T00:00:00Z", "end": "2026-01-01T00:00:00"}),
            "spec.envelopes[0].window.end",
        ),
        (
            budget(window={"start": "2026-01-02T00:00:00Z", "end": "2026-01-01T00:00:00Z"}),
            "spec.envelopes[0].window.end",
        ),
        (
            manifest("Budget", {"owner": "a", "envelopes": [ENVELOPE, ENVELOPE]}),
            "spec.envelopes[1].name",
        ),
        (manifest("Budget", {"owner": "a", "parents": ["a"]}), "spec.parents"),
        (
            manifest(
                "Budget",
                {
                    "owner": "a",
                    "aggregateCaps": [{"name": "c", "flavor": "H100", "envelopes": ["gone"]}],
                },
            ),
            "spec.aggregateCaps[0].envelopes[0]",
        ),
        (
            manifest(
                "Budget",
                {
                    "owner": "a",
                    "envelopes": [ENVELOPE],
                    "aggregateCaps": [
                        {"name": "c", "flavor": "A100", "envelopes": [ENVELOPE["name"]]}
                    ],
                },
            ),
            "spec.aggregateCaps[0].envelopes[0]",
        ),
        (manifest("Node", {"flavor": "H100", "devices": 2000}), "spec.devices"),
        (run(owner="a\0b"), "spec.owner"),
        (run(command=["x", "\0"]), "spec.command[1]"),
        (run(location={"zone\0": "z"}), "spec.location"),
    ],
)
def test_bad_input_is_refused_with_its_path(given: Any, path: str) -> None:
    """Nothing past the border, and the user knows where."""
    with pytest.raises(BadInput) as refused:
        read_manifest(given)
    assert refused.value.path.startswith(path)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            manifest("Run", RUN, name="Train_1"),
            "must be lower-case letters, digits, dots and dashes, a letter or digit at both ends, "
            'got "Train_1"',
        ),
        (manifest("Run", RUN, name=""), 'must be a non-empty string, got ""'),
        (manifest("Run", RUN, name="x" * 64), "must have at most 63 characters"),
        (run(owner="x" * 254), "must have at most 253 characters"),
        (run(secretEnv={"A": "the secret itself"}), "must be an object, got "),
        (run(env={"Ü": "x"}), "must have names of letters, digits and _, with no digit first, got"),
    ],
)
def test_the_message_says_what_would_be_right(given: Any, said: str) -> None:
    """Not only where, but what is wrong there."""
    with pytest.raises(BadInput) as refused:
        read_manifest(given)
    assert refused.value.message.startswith(said)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("90m", 5_400_000),
        ("2h", 7_200_000),
        ("1h30m", 5_400_000),
        ("1d", 86_400_000),
        ("45s", 45_000),
        ("500ms", 500),
        ("1m1ms", 60_001),
    ],
)
def test_durations(text: str, expected: int) -> None:
    """As people write them."""
    assert parse_duration(text, "spec.duration") == expected


def test_a_request_pays_for_spares_too() -> None:
    """Width, minimum and step each with the spares of their groups."""
    spec = read_manifest(
        run(
            groupGPUs=4,
            sparesPerGroup=1,
            malleable={"minTotalGPUs": 4, "stepGPUs": 4},
            duration="1h",
        )
    ).spec
    request = to_request(spec)
    assert (request.gpus, request.min_gpus, request.step_gpus) == (10, 5, 5)
    assert request.duration_ms == 3_600_000
    gang = to_shape(spec).gang(request, gpu.Plan(10, ()))
    assert (gang.gpus, gang.group_gpus, gang.spares_per_group, gang.elsewhere) == (8, 4, 1, False)


@given(st.integers(1, 20), st.integers(1, 8), st.integers(0, 4))
def test_spares_added_are_spares_taken_away(groups: int, size: int, spares: int) -> None:
    """For whole groups, and for a run that is one group."""
    for more in ({"groupGPUs": size}, {}):
        spec = read_manifest(run(totalGPUs=groups * size, sparesPerGroup=spares, **more)).spec
        shape = to_shape(spec)
        assert shape.without_spares(shape.with_spares(spec.gpus)) == spec.gpus


def fund(**more: Any) -> dict[str, Any]:
    request = {
        "owner": "a",
        "flavor": "H100",
        "gpus": 4,
        "min_gpus": None,
        "step_gpus": None,
        "location": {},
        "duration_ms": None,
        "allow_borrow": False,
        "max_borrow_gpus": None,
        "sponsors": [],
    }
    document: dict[str, Any] = {
        "now": "2026-01-01T00:00:00Z",
        "budgets": [],
        "usage": [],
        "request": request,
    }
    for key, value in more.items():
        (request if key in request else document)[key] = value
    return document


USAGE = {
    "budget": "b",
    "envelope": "e",
    "gpus": 1,
    "used_ms": 0,
    "held_ms": 0,
    "lent_gpus": 0,
    "lent_used_ms": 0,
    "lent_held_ms": 0,
}
PAYER = {
    "name": "b",
    "owner": "a",
    "parents": [],
    "aggregate_caps": [],
    "envelopes": [
        {
            "name": "e",
            "flavor": "H100",
            "location": {},
            "concurrency": 1,
            "max_gpu_hours": None,
            "window": None,
            "sharing": "family",
            "lending": {"allow": False, "to": [], "max_concurrency": None, "max_gpu_hours": None},
        }
    ],
}


@pytest.mark.parametrize(
    ("kind", "document", "path"),
    [
        ("gpu.fund", fund(usage=[USAGE]), "usage[0].envelope"),
        ("gpu.fund", fund(budgets=[PAYER], usage=[USAGE, USAGE]), "usage[1].envelope"),
        ("gpu.fund", fund(min_gpus=2), "request.step_gpus"),
        ("gpu.fund", fund(min_gpus=3, step_gpus=3), "request.gpus"),
        ("gpu.fund", fund(now="today"), "now"),
        ("gpu.place", {"nodes": [], "gang": {"flavor": "x", "gpus": 0}}, "gang.gpus"),
        (
            "gpu.place",
            {
                "nodes": [{"name": "n", "flavor": "x", "location": {}, "free": [1, 1]}],
                "gang": {"flavor": "x", "gpus": 1},
            },
            "nodes[0].free",
        ),
        (
            "gpu.place",
            {
                "nodes": [{"name": "n", "flavor": "x", "location": {}, "free": []}] * 2,
                "gang": {"flavor": "x", "gpus": 1},
            },
            "nodes[1].name",
        ),
    ],
)
def test_decisions_refuse_bad_input_with_its_path(kind: str, document: Any, path: str) -> None:
    """The recorded kinds are kinds like any other."""
    with pytest.raises(BadInput) as refused:
        KINDS[kind].run(json.dumps(document).encode())
    assert refused.value.path == path
