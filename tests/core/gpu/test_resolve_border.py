"""`gpu.resolve` at the border: what is refused, with which path, and what is not."""

import copy
import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from fairlead.core.canonical import canonical
from fairlead.schema.border import BadInput
from fairlead.schema.kinds import KINDS
from tests.core.gpu.conflicts import decide

Document = dict[str, Any]
CAP: Document = {"budget": "b", "name": "all", "envelopes": ["west"]}
EXAMPLE: Document = {
    "scope": {"flavor": "H100", "location": {"cluster": "a"}, "cap": None},
    "deficit_gpus": 4,
    "seed": "0123456789abcdef" * 4,
    "runs": [
        {
            "id": "ns/b",
            "owner": "team-b",
            "malleable": {"min_gpus": 8, "step_gpus": 4},
            "nominated": False,
        }
    ],
    "leases": [
        {
            "id": "l1",
            "run": "ns/b",
            "role": "active",
            "group": 0,
            "gpus": 4,
            "flavor": "H100",
            "location": {"region": "us-west", "cluster": "a", "domain": "d1"},
            "funded": True,
            "budget": "b",
            "envelope": "west",
        }
    ],
}
LEASE, RUN = EXAMPLE["leases"][0], EXAMPLE["runs"][0]


def edited(edit: Callable[[Document], object]) -> Document:
    """The contract's example after one edit."""
    changed = copy.deepcopy(EXAMPLE)
    edit(changed)
    return changed


def put(where: str, value: Any) -> Document:
    """The example with one field set: `leases.0.gpus`."""

    def edit(changed: Document) -> None:
        *path, last = [int(step) if step.isdigit() else step for step in where.split(".")]
        holder: Any = changed
        for step in path:
            holder = holder[step]
        holder[last] = value

    return edited(edit)


def path_of(where: str) -> str:
    """`leases.0.gpus` as the refusal writes it."""
    return "".join(
        f"[{step}]" if step.isdigit() else f".{step}" for step in where.split(".")
    ).removeprefix(".")


def refused(given: Document | bytes) -> str:
    """The path at which it is refused."""
    data = given if isinstance(given, bytes) else json.dumps(given).encode()
    with pytest.raises(BadInput) as refusal:
        KINDS["gpu.resolve"].run(data)
    assert refusal.value.message
    return refusal.value.path


REQUIRED = [
    "scope",
    "scope.flavor",
    "scope.location",
    "deficit_gpus",
    "seed",
    "runs",
    "leases",
    "runs.0.id",
    "runs.0.owner",
    "runs.0.malleable.min_gpus",
    "runs.0.malleable.step_gpus",
    *(f"leases.0.{field}" for field in LEASE),
]


@pytest.mark.parametrize("where", REQUIRED)
def test_everything_else_is_required(where: str) -> None:
    """Left out or null, it is named."""

    def leave_out(changed: Document) -> None:
        *path, last = [int(step) if step.isdigit() else step for step in where.split(".")]
        holder: Any = changed
        for step in path:
            holder = holder[step]
        del holder[last]

    assert refused(edited(leave_out)) == path_of(where)
    assert refused(put(where, None)) == path_of(where)


def test_cap_malleable_and_nominated_are_optional() -> None:
    """Left out, they are null, null and false, also in the digest."""
    plain = put("runs.0", {"id": "ns/b", "owner": "team-b"})
    del plain["scope"]["cap"]
    filled = put("runs.0", {**RUN, "malleable": None})
    assert decide(plain) == decide(filled)


INTEGERS = {
    "deficit_gpus": 0,
    "leases.0.group": 0,
    "leases.0.gpus": 1,
    "runs.0.malleable.min_gpus": 1,
    "runs.0.malleable.step_gpus": 1,
}


@pytest.mark.parametrize(("where", "least"), INTEGERS.items())
def test_integers_are_json_integers_in_range(where: str, least: int) -> None:
    """No 4.0, no "4", no true; from the least to 2^53 - 1."""
    for value in (least - 1, 4.0, 4.5, "4", True, [4], 2**53, -(10**30), 1e3):
        assert refused(put(where, value)) == path_of(where)
    for value in (least, 2**53 - 1):
        decide(put(where, value))


def test_not_a_number_is_no_number() -> None:
    """As text that only some parsers take."""
    data = json.dumps(EXAMPLE).replace('"deficit_gpus": 4', '"deficit_gpus": NaN').encode()
    assert refused(data) == "deficit_gpus"


@pytest.mark.parametrize(
    "seed",
    [
        "",
        "0" * 63,
        "0" * 65,
        "g" * 64,
        "0x" + "0" * 62,
        "0" * 63 + "\n",
        "0" * 64 + "\n",
        "٠" * 64,
        "0" * 32 + " " * 32,
        0,
    ],
)
def test_a_seed_is_64_hex_digits(seed: object) -> None:
    """ASCII ones, nothing around them; the case of letters does not matter."""
    assert refused(put("seed", seed)) == "seed"
    assert decide(put("seed", "AbCdEf01" * 8)) == decide(put("seed", "abcdef01" * 8))


HOSTILE: dict[str, tuple[Document | bytes, str]] = {
    "empty run id": (put("runs.0.id", ""), "runs[0].id"),
    "empty owner": (put("runs.0.owner", ""), "runs[0].owner"),
    "empty lease id": (put("leases.0.id", ""), "leases[0].id"),
    "unknown run": (put("leases.0.run", "ns/c"), "leases[0].run"),
    "empty run": (put("leases.0.run", ""), "leases[0].run"),
    "repeated run": (put("runs", [RUN, {**RUN, "owner": "x"}]), "runs[1].id"),
    "repeated lease": (put("leases", [LEASE, {**LEASE, "gpus": 1}]), "leases[1].id"),
    "unknown role": (put("leases.0.role", "Active"), "leases[0].role"),
    "funded as a number": (put("leases.0.funded", 1), "leases[0].funded"),
    "nominated null": (put("runs.0.nominated", None), "runs[0].nominated"),
    "a label that is no text": (
        put("leases.0.location", {"cluster": "a", "rack": 7}),
        "leases[0].location.rack",
    ),
    "a label null": (put("scope.location", {"cluster": None}), "scope.location.cluster"),
    "a location that is a list": (put("scope.location", []), "scope.location"),
    "unknown field": (put("bogus", 1), "bogus"),
    "unknown scope field": (put("scope.bogus", 1), "scope.bogus"),
    "unknown lease field": (put("leases.0.owner", "x"), "leases[0].owner"),
    "unknown run field": (put("runs.0.priority", 1), "runs[0].priority"),
    "unknown malleable field": (put("runs.0.malleable.max_gpus", 9), "runs[0].malleable.max_gpus"),
    "owner weighting is not of this contract": (
        put("owner_weighting", "tokens"),
        "owner_weighting",
    ),
    "cap without envelopes": (
        put("scope.cap", {"budget": "b", "name": "n"}),
        "scope.cap.envelopes",
    ),
    "cap as text": (put("scope.cap", "b/all"), "scope.cap"),
    "cap with a number": (
        put("scope.cap", {**CAP, "envelopes": ["w", 1]}),
        "scope.cap.envelopes[1]",
    ),
    "malleable as a flag": (put("runs.0.malleable", True), "runs[0].malleable"),
    "runs as an object": (put("runs", {}), "runs"),
    "a lease that is a list": (put("leases.0", []), "leases[0]"),
    "more GPUs than JSON can count": (
        put("leases", [{**LEASE, "id": str(i), "gpus": 2**52} for i in range(3)]),
        "leases",
    ),
    "repeated key": (
        json.dumps(EXAMPLE).replace('"gpus": 4,', '"gpus": 4, "gpus": 4,', 1).encode(),
        "leases[0].gpus",
    ),
    "half a character": (
        json.dumps(EXAMPLE).replace("team-b", "\\ud800").encode(),
        "runs[0].owner",
    ),
    "no object": (b"[]", "$"),
    "no JSON": (b'{"scope": ', "$"),
    "bad UTF-8": (b'{"\xff": 1}', "$"),
}


@pytest.mark.parametrize("name", list(HOSTILE))
def test_bad_input_is_refused_with_its_path(name: str) -> None:
    """Before anything is decided."""
    given, path = HOSTILE[name]
    assert refused(given) == path


def test_what_only_looks_odd_is_decided() -> None:
    """No runs, no leases; an empty cap; empty labels; a minimum above the width; huge groups."""
    for given in (
        put("runs", []) | {"leases": []},
        put("scope.cap", {**CAP, "envelopes": []}),
        put("scope.cap", {**CAP, "envelopes": ["west", "west"]}),
        put("scope.location", {"": ""}),
        put("leases.0.location", {"cluster": ""}),
        put("runs.0.malleable.min_gpus", 2**53 - 1),
        put("leases.0.group", 2**53 - 1),
        put("leases", [{**LEASE, "id": str(i), "gpus": 2**52 - 1} for i in range(2)]),
    ):
        assert set(decide(given)) >= {"resolved", "conflict_digest"}


# The command.


def command(*arguments: str, data: bytes) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "fairlead", "decide", "gpu.resolve", *arguments],
        input=data,
        capture_output=True,
        check=False,
        timeout=120,
    )


def test_exit_codes() -> None:
    """Resolved 0, not resolved 1 with its result on stdout, bad input 2 with its path."""
    done = command(data=json.dumps(EXAMPLE).encode())
    assert (done.returncode, done.stdout) == (0, canonical(decide(EXAMPLE)) + b"\n")
    short = put("deficit_gpus", 5)
    done = command(data=json.dumps(short).encode())
    assert (done.returncode, done.stdout) == (1, canonical(decide(short)) + b"\n")
    done = command(data=json.dumps(put("leases.0.run", "x")).encode())
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.decode().startswith("error: leases[0].run: ")


def test_a_stream_goes_on_after_bad_lines() -> None:
    """Each answer in its place; refusals are lines like others; 2 at the end."""
    lines = [EXAMPLE, put("deficit_gpus", -1), put("deficit_gpus", 9), EXAMPLE]
    done = command("--jsonl", data=b"\n".join(json.dumps(line).encode() for line in lines))
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert [answer.get("resolved") for answer in answers] == [True, None, False, True]
    assert (done.returncode, answers[1]["error"]["path"]) == (2, "deficit_gpus")


def test_the_schema_describes_both_sides() -> None:
    """Closed objects, required fields, the pattern of a seed, the words of the contract."""
    schema = json.loads(command("--schema", data=b"").stdout)
    shapes = schema["input"]["$defs"]
    assert shapes["ConflictLeaseDocument"]["required"] == list(LEASE)
    assert shapes["ConflictRunDocument"]["required"] == ["id", "owner"]
    assert shapes["ResolveDocument"]["properties"]["seed"]["pattern"] == "^[0-9a-fA-F]{64}$"
    assert all(shape.get("additionalProperties", False) is False for shape in shapes.values())
    assert shapes["Role"]["enum"] == ["active", "spare"]
    kinds = schema["output"]["$defs"]["CutKind"]["enum"]
    assert sorted(kinds) == ["DropSpare", "RandomPreempt", "Shrink"]
