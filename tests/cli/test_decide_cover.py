"""`fairlead decide gpu.cover` as a user calls it: exit codes, streams, bad input and its path."""

import copy
import json
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from fairlead.core.canonical import canonical
from tests.cli.shells import run_inside

Document = dict[str, Any]
ENVELOPE: Document = {
    "name": "west",
    "flavor": "H100",
    "location": {"region": "us-west"},
    "concurrency": 8,
    "max_gpu_hours": None,
    "window": None,
    "sharing": "family",
    "lending": {"allow": True, "to": ["org:*"], "max_concurrency": 2, "max_gpu_hours": None},
}
CAP: Document = {
    "name": "all",
    "flavor": "H100",
    "envelopes": ["west"],
    "max_concurrency": 10,
    "max_gpu_hours": None,
}
BUDGET: Document = {
    "name": "a",
    "owner": "team-a",
    "parents": ["org"],
    "envelopes": [ENVELOPE],
    "aggregate_caps": [CAP],
}
LEASE: Document = {
    "id": "l1",
    "owner": "team-a",
    "budget": "a",
    "envelope": "west",
    "gpus": 4,
    "start": "2025-12-31T22:00:00Z",
    "end": None,
    "expected_end": None,
    "borrowed": False,
}
EXAMPLE: Document = {
    "now": "2026-01-01T00:00:00Z",
    "budgets": [BUDGET],
    "leases": [LEASE],
    "request": {
        "owner": "team-a",
        "flavor": "H100",
        "gpus": 12,
        "min_gpus": None,
        "step_gpus": None,
        "location": {"region": "us-west"},
        "duration_hours": None,
        "allow_borrow": False,
        "max_borrow_gpus": None,
        "sponsors": [],
    },
}
REFUSED = {
    "funded": False,
    "gpus": 0,
    "plan": [],
    "refusal": {
        "code": "ConcurrencyCapExceeded",
        "message": "8 GPUs short: too many GPUs at once",
        "shortfall_gpus": 8,
        "binding": [{"kind": "envelope", "budget": "a", "name": "west", "limit": 8, "used": 4}],
        "remedy": None,
    },
}
FUNDED = {
    "funded": True,
    "gpus": 4,
    "plan": [
        {
            "budget": "a",
            "envelope": "west",
            "owner": "team-a",
            "gpus": 4,
            "tier": "own",
            "borrowed": False,
        }
    ],
    "refusal": None,
}


def decide(*arguments: str, data: bytes) -> subprocess.CompletedProcess[bytes]:
    return run_inside("decide", "gpu.cover", *arguments, input=data)


def edited(edit: Callable[[Document], object]) -> bytes:
    """The contract's example after one edit."""
    document = copy.deepcopy(EXAMPLE)
    edit(document)
    return json.dumps(document).encode()


def put(where: str, value: Any) -> bytes:
    """The example with one field set: `budgets.0.owner`."""

    def edit(document: Document) -> None:
        *path, last = [int(step) if step.isdigit() else step for step in where.split(".")]
        holder: Any = document
        for step in path:
            holder = holder[step]
        holder[last] = value

    return edited(edit)


SMALL = put("request.gpus", 4)


def test_a_refusal_is_a_result_with_exit_code_1() -> None:
    """The contract's example: 12 asked, 4 of 8 free. Canonical bytes on stdout, nothing else."""
    result = decide(data=json.dumps(EXAMPLE).encode())
    assert (result.returncode, result.stdout, result.stderr) == (1, canonical(REFUSED) + b"\n", b"")


def test_a_covered_request_exits_with_0() -> None:
    """The 4 that are free."""
    result = decide(data=SMALL)
    assert (result.returncode, result.stdout, result.stderr) == (0, canonical(FUNDED) + b"\n", b"")


def test_refusals_in_a_stream_exit_with_0() -> None:
    """With --jsonl a refusal is a line like any other."""
    result = decide("--jsonl", data=json.dumps(EXAMPLE).encode() + b"\n\n" + SMALL + b"\n")
    assert (result.returncode, result.stderr) == (0, b"")
    assert result.stdout.splitlines() == [canonical(REFUSED), canonical(FUNDED)]


def without(where: str, field: str) -> bytes:
    """The example without one field."""

    def edit(document: Document) -> None:
        holder: Any = document
        for step in where.split(".") if where else ():
            holder = holder[int(step) if step.isdigit() else step]
        del holder[field]

    return edited(edit)


TWIN = {**BUDGET, "parents": [], "name": "b"}
HOSTILE = {
    # what the contract lists
    "unknown payer": (put("leases.0.budget", "zzz"), "leases[0].budget"),
    "unknown paying envelope": (put("leases.0.envelope", "east"), "leases[0].envelope"),
    "payer without envelopes": (
        edited(lambda d: d["budgets"][0].update(envelopes=[], aggregate_caps=[])),
        "leases[0].envelope",
    ),
    "empty budget owner": (put("budgets.0.owner", ""), "budgets[0].owner"),
    "empty lease owner": (put("leases.0.owner", ""), "leases[0].owner"),
    "empty request owner": (put("request.owner", ""), "request.owner"),
    "empty parent": (put("budgets.0.parents", [""]), "budgets[0].parents[0]"),
    "empty sponsor": (put("request.sponsors", ["x", ""]), "request.sponsors[1]"),
    "0 GPUs asked": (put("request.gpus", 0), "request.gpus"),
    "0 GPUs leased": (put("leases.0.gpus", 0), "leases[0].gpus"),
    "0 GPUs in an envelope": (
        put("budgets.0.envelopes.0.concurrency", 0),
        "budgets[0].envelopes[0].concurrency",
    ),
    "0 as a minimum": (put("request.min_gpus", 0), "request.min_gpus"),
    "lease starts after now": (put("leases.0.start", "2026-01-01T00:00:01Z"), "leases[0].start"),
    "lease ends after now": (put("leases.0.end", "2026-01-01T01:00:00+00:30"), "leases[0].end"),
    "lease ends before its start": (put("leases.0.end", "2025-12-31T21:59:59Z"), "leases[0].end"),
    "now without a zone": (put("now", "2026-01-01T00:00:00"), "now"),
    "start without a zone": (put("leases.0.start", "2025-12-31T22:00:00"), "leases[0].start"),
    "end without a zone": (put("leases.0.end", "2025-12-31T23:00:00"), "leases[0].end"),
    "expected end without a zone": (
        put("leases.0.expected_end", "2026-01-02T00:00:00"),
        "leases[0].expected_end",
    ),
    "window without a zone": (
        put(
            "budgets.0.envelopes.0.window",
            {"start": "2025-01-01T00:00:00Z", "end": "2027-01-01T00:00:00"},
        ),
        "budgets[0].envelopes[0].window.end",
    ),
    # times that are none
    "a date": (put("now", "2026-01-01"), "now"),
    "30 February": (put("now", "2026-02-30T00:00:00Z"), "now"),
    "seconds since 1970": (put("now", 1767225600), "now"),
    "a year that ends no period": (put("now", "9999-12-31T00:00:00Z"), "now"),
    "a year before the first": (put("now", "0001-01-01T00:00:00+10:00"), "now"),
    "window ends at its start": (
        put(
            "budgets.0.envelopes.0.window",
            {"start": "2026-01-01T00:00:00Z", "end": "2026-01-01T01:00:00+01:00"},
        ),
        "budgets[0].envelopes[0].window.end",
    ),
    "window without an end": (
        put("budgets.0.envelopes.0.window", {"start": "2026-01-01T00:00:00Z"}),
        "budgets[0].envelopes[0].window.end",
    ),
    # names
    "repeated budget": (put("budgets", [BUDGET, BUDGET]), "budgets[1].name"),
    "repeated envelope": (
        put("budgets.0.envelopes", [ENVELOPE, ENVELOPE]),
        "budgets[0].envelopes[1].name",
    ),
    "repeated cap": (
        put("budgets.0.aggregate_caps", [CAP, CAP]),
        "budgets[0].aggregate_caps[1].name",
    ),
    "repeated lease": (put("leases", [LEASE, LEASE]), "leases[1].id"),
    "cap over an unknown envelope": (
        put("budgets.0.aggregate_caps.0.envelopes", ["west", "east"]),
        "budgets[0].aggregate_caps[0].envelopes[1]",
    ),
    "one's own parent": (put("budgets.0.parents", ["org", "team-a"]), "budgets[0].parents"),
    "a circle of two": (
        put("budgets", [BUDGET, {**TWIN, "owner": "org", "parents": ["team-a"]}]),
        "budgets[0].parents",
    ),
    "a circle through an owner's second budget": (
        put(
            "budgets",
            [
                {**BUDGET, "parents": ["x"]},
                {**TWIN, "parents": ["org"]},
                {**TWIN, "name": "c", "owner": "org", "parents": ["team-a"]},
            ],
        ),
        "budgets[1].parents",
    ),
    # numbers
    "NaN hours": (
        put("budgets.0.envelopes.0.max_gpu_hours", float("nan")),
        "budgets[0].envelopes[0].max_gpu_hours",
    ),
    "infinite duration": (put("request.duration_hours", float("inf")), "request.duration_hours"),
    "negative duration": (put("request.duration_hours", -1), "request.duration_hours"),
    "negative hours": (
        put("budgets.0.aggregate_caps.0.max_gpu_hours", -0.1),
        "budgets[0].aggregate_caps[0].max_gpu_hours",
    ),
    "1.0 as an integer": (put("request.gpus", 12.0), "request.gpus"),
    "1.0 as a lending cap": (
        put("budgets.0.envelopes.0.lending.max_concurrency", 1.0),
        "budgets[0].envelopes[0].lending.max_concurrency",
    ),
    "negative borrow limit": (put("request.max_borrow_gpus", -1), "request.max_borrow_gpus"),
    "true as an integer": (put("leases.0.gpus", True), "leases[0].gpus"),
    "1 as a flag": (put("leases.0.borrowed", 1), "leases[0].borrowed"),
    "a number as text": (put("request.gpus", "12"), "request.gpus"),
    "oversized": (put("request.gpus", 10**12 + 1), "request.gpus"),
    "more GPUs than JSON can count": (
        put("leases", [{**LEASE, "id": str(i), "gpus": 10**12} for i in range(9_008)]),
        "leases",
    ),
    # malleable
    "min without step": (put("request.min_gpus", 4), "request.step_gpus"),
    "step without min": (put("request.step_gpus", 4), "request.min_gpus"),
    "width off the steps": (
        edited(lambda d: d["request"].update(min_gpus=4, step_gpus=3)),
        "request.gpus",
    ),
    "min above the width": (
        edited(lambda d: d["request"].update(min_gpus=13, step_gpus=1)),
        "request.min_gpus",
    ),
    # fields
    "unknown top field": (put("bogus", 1), "bogus"),
    "unknown envelope field": (
        put("budgets.0.envelopes.0.bogus", 1),
        "budgets[0].envelopes[0].bogus",
    ),
    "priority": (put("request.priority", 1), "request.priority"),
    "missing request": (without("", "request"), "request"),
    "missing window": (
        without("budgets.0.envelopes.0", "window"),
        "budgets[0].envelopes[0].window",
    ),
    "missing null": (without("request", "min_gpus"), "request.min_gpus"),
    "null lending": (put("budgets.0.envelopes.0.lending", None), "budgets[0].envelopes[0].lending"),
    "null list": (put("request.sponsors", None), "request.sponsors"),
    "unknown sharing": (
        put("budgets.0.envelopes.0.sharing", "all"),
        "budgets[0].envelopes[0].sharing",
    ),
    "unknown recurrence": (
        put("budgets.0.envelopes.0.recurrence", "hourly"),
        "budgets[0].envelopes[0].recurrence",
    ),
    "a number in a selector": (
        put("budgets.0.envelopes.0.location", {"region": "us-west", "rack": 7}),
        "budgets[0].envelopes[0].location.rack",
    ),
    "null in a location": (put("request.location", {"region": None}), "request.location.region"),
    "repeated key": (SMALL.replace(b'"gpus": 4', b'"gpus": 4, "gpus": 4', 1), "leases[0].gpus"),
    "no object": (b"[]", "$"),
    "no JSON": (b'{"now": ', "$"),
}


def test_bad_input_is_refused_line_by_line_with_its_path() -> None:
    """Every hostile document gets its error in its place; good ones around it are answered."""
    lines = [line for data, _ in HOSTILE.values() for line in (data, SMALL)]
    result = decide("--jsonl", data=b"\n".join(lines))
    assert (result.returncode, result.stderr) == (2, b"")
    answers = [json.loads(line) for line in result.stdout.splitlines()]
    told = dict(zip(HOSTILE, (answer["error"]["path"] for answer in answers[::2]), strict=True))
    assert told == {name: path for name, (_, path) in HOSTILE.items()}
    assert all(answer["error"]["message"] for answer in answers[::2])
    assert all(answer == FUNDED for answer in answers[1::2])


@pytest.mark.parametrize("name", ["unknown payer", "one's own parent", "width off the steps"])
def test_a_bad_document_exits_with_2(name: str) -> None:
    """The error goes to stderr, path first; nothing to stdout."""
    data, path = HOSTILE[name]
    result = decide(data=data)
    assert (result.returncode, result.stdout) == (2, b"")
    assert result.stderr.decode().startswith(f"error: {path}: ")


def test_recurrence_is_the_only_optional_field() -> None:
    """Every other field of the example, left out anywhere, is named as missing."""
    lines, paths = [], []
    for where in (
        "",
        "budgets.0",
        "budgets.0.envelopes.0",
        "budgets.0.envelopes.0.lending",
        "budgets.0.aggregate_caps.0",
        "leases.0",
        "request",
    ):
        holder: Any = EXAMPLE
        for step in where.split(".") if where else ():
            holder = holder[int(step) if step.isdigit() else step]
        for field in holder:
            lines.append(without(where, field))
            paths.append(f"{where}.{field}".removeprefix(".").replace(".0", "[0]"))
    with_it = put("budgets.0.envelopes.0.recurrence", "monthly")
    result = decide("--jsonl", data=b"\n".join([*lines, with_it]))
    answers = [json.loads(line) for line in result.stdout.splitlines()]
    assert [answer["error"]["path"] for answer in answers[:-1]] == paths
    assert answers[-1]["refusal"]["code"] == "ConcurrencyCapExceeded"


def test_the_schema_describes_both_sides() -> None:
    """Required fields, closed objects, and the words of the contract."""
    schema = json.loads(decide("--schema", data=b"").stdout)
    shapes = schema["input"]["$defs"]
    assert set(shapes["RequestDocument"]["required"]) == set(EXAMPLE["request"])
    assert set(shapes["EnvelopeDocument"]["required"]) == set(ENVELOPE)
    assert all(shape.get("additionalProperties", False) is False for shape in shapes.values())
    assert "RemedyDocument" in schema["output"]["$defs"]
