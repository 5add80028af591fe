"""`fairlead decide` as a user calls it: in this process, and as one where pipes matter."""

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from fairlead.core.canonical import canonical
from fairlead.schema.kinds import KINDS
from tests.cli.shells import FAIRLEAD, run_inside
from tests.work import calls_of

DOCUMENT = {
    "capacity_millicores": 1000,
    "pods": [{"uid": "a", "min_millicores": 100, "max_millicores": 900, "demand": 0.5}],
}
EXPECTED = (
    b'{"allocations":{"a":587},"capacity_millicores":1000,"mode":"uncongested","needs":{"a":587},'
    b'"reasons":{"a":["demand-driven"]},"reduction_ratio":{"a":0},"shadow_price":0,'
    b'"total_min":100,"total_need":587}\n'
)


def decide(*arguments: str, data: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return run_inside("decide", *arguments, input=data)


def test_one_document_prints_canonical_json_in_a_pipe(tmp_path: Path) -> None:
    """From standard input and from a file, the same bytes; from a process as from inside."""
    data = json.dumps(DOCUMENT).encode()
    file = tmp_path / "input.json"
    file.write_bytes(data)
    command = [*FAIRLEAD, "decide", "cpu.clear"]
    process = subprocess.run(command, input=data, capture_output=True, check=False, timeout=60)
    for result in (process, decide("cpu.clear", data=data), decide("cpu.clear", str(file))):
        assert (result.returncode, result.stdout, result.stderr) == (0, EXPECTED, b"")


def test_a_terminal_gets_indented_json(tmp_path: Path) -> None:
    """On a pseudo-terminal the result is for eyes."""
    file = tmp_path / "input.json"
    file.write_text(json.dumps(DOCUMENT))
    reader, writer = pty.openpty()
    try:
        subprocess.run(
            [*FAIRLEAD, "decide", "cpu.clear", str(file)], stdout=writer, check=True, timeout=60
        )
        shown = os.read(reader, 65536).decode()
    finally:
        os.close(reader)
        os.close(writer)
    assert '\r\n  "mode": "uncongested"' in shown


def pod(**fields: object) -> bytes:
    return json.dumps({**DOCUMENT, "pods": [{**DOCUMENT["pods"][0], **fields}]}).encode()


GOOD = DOCUMENT["pods"][0]
HOSTILE = {
    "nan": (pod(demand=float("nan")), "pods[0].demand"),
    "unknown field of two lines": (pod(**{"a\nb": 1}), "pods[0].a\nb"),
    "infinity": (pod(weight=float("inf")), "pods[0].weight"),
    "minus infinity": (pod(demand=float("-inf")), "pods[0].demand"),
    "too large for a double": (pod().replace(b"0.5", b"1e999"), "pods[0].demand"),
    "boolean as integer": (pod(min_millicores=True), "pods[0].min_millicores"),
    "boolean as number": (pod(demand=True), "pods[0].demand"),
    "integer as boolean": (pod(signal_ok=1), "pods[0].signal_ok"),
    "string as number": (pod(demand="0.5"), "pods[0].demand"),
    "float as integer": (pod(min_millicores=100.0), "pods[0].min_millicores"),
    "negative size": (pod(usage_millicores=-1), "pods[0].usage_millicores"),
    "oversized": (pod(max_millicores=10**12 + 1), "pods[0].max_millicores"),
    "five thousand digits": (pod().replace(b"900", b"9" * 5000), "pods[0].max_millicores"),
    "demand above one": (pod(demand=1.0000001), "pods[0].demand"),
    "null weight": (pod(weight=None), "pods[0].weight"),
    "null demand": (pod(demand=None), "pods[0].demand"),
    "unknown field": (pod(bogus=1), "pods[0].bogus"),
    "unknown top field": (json.dumps({**DOCUMENT, "bogus": 1}).encode(), "bogus"),
    "unknown field without a name": (pod(**{"": 1}), 'pods[0].""'),
    "unknown top field without a name": (b'{"": 1, "capacity_millicores": 1, "pods": []}', '""'),
    "unknown top field that reads like a place": (
        b'{"x` - at `$.pods[7]": 1, "capacity_millicores": 1, "pods": []}',
        "x` - at `$.pods[7]",
    ),
    "unknown field that reads like a place": (
        pod(**{"x` - at `$.pods[7]": 1}),
        "pods[0].x` - at `$.pods[7]",
    ),
    "unknown policy that reads like a place": (
        json.dumps({**DOCUMENT, "policy": "x' - at `$.pods[7]"}).encode(),
        "policy",
    ),
    "missing field": (b'{"capacity_millicores": 1, "pods": [{}]}', "pods[0].uid"),
    "missing top field": (b'{"pods": []}', "capacity_millicores"),
    "unknown policy": (json.dumps({**DOCUMENT, "policy": "dictator"}).encode(), "policy"),
    "unknown mode": (json.dumps({**DOCUMENT, "previous_mode": "calm"}).encode(), "previous_mode"),
    "band above one": (json.dumps({**DOCUMENT, "hysteresis_band": 2}).encode(), "hysteresis_band"),
    "bad headroom": (json.dumps({**DOCUMENT, "headroom": {"cap": 9}}).encode(), "headroom.cap"),
    "repeated uid": (json.dumps({**DOCUMENT, "pods": [GOOD, GOOD]}).encode(), "pods[1].uid"),
    "repeated key": (b'{"capacity_millicores": 1, "pods": [], "pods": []}', "pods"),
    "repeated inner key": (
        b'{"capacity_millicores": 1, "pods": [{"uid": "a", "uid": "b"}]}',
        "pods[0].uid",
    ),
    "lone surrogate": (pod().replace(b'"a"', b'"\\ud800"'), "pods[0].uid"),
    "surrogate key": (pod().replace(b'"uid"', b'"\\ud800"'), "pods[0].\\ud800"),
    "pods not a list": (b'{"capacity_millicores": 1, "pods": {}}', "pods"),
    "pod not an object": (b'{"capacity_millicores": 1, "pods": [7]}', "pods[0]"),
    "list": (b"[]", "$"),
    "number": (b"7", "$"),
    "no JSON": (b"{", "$"),
    "two documents": (b"{} {}", "$"),
    "bad UTF-8": (b"\xff{}", "$"),
    "byte order mark": (b"\xef\xbb\xbf{}", "$"),
    "nested too deeply": (b"[" * 100_000, "$"),
    "white space of no JSON": (b"\x0b\x0c", "$"),
    "nothing": (b"", "$"),
}


def test_bad_input_is_refused_line_by_line_with_its_path() -> None:
    """Every hostile document gets its error in its place; good ones around it are answered."""
    lines = [line for data, _ in HOSTILE.values() if data for line in (data, pod())]
    result = decide("cpu.clear", "--jsonl", data=b"\n\n  \n".join(lines))
    assert result.returncode == 2
    assert result.stderr == b""
    answers = [json.loads(line) for line in result.stdout.splitlines()]
    paths = [path for data, path in HOSTILE.values() if data]
    assert [answer["error"]["path"] for answer in answers[::2]] == paths
    assert all(answer["allocations"] == {"a": 587} for answer in answers[1::2])
    assert all(answer["error"]["message"] for answer in answers[::2])


@pytest.mark.parametrize("name", ["nan", "repeated key", "no JSON", "nothing", "surrogate key"])
def test_a_bad_document_exits_with_2(name: str) -> None:
    """The error goes to stderr, path first; nothing to stdout."""
    data, path = HOSTILE[name]
    result = decide("cpu.clear", data=data)
    assert (result.returncode, result.stdout) == (2, b"")
    assert result.stderr.decode().startswith(f"error: {path}: ")


def test_an_error_is_one_line_whatever_a_key_holds() -> None:
    """No line of its own, no order to the terminal; letters stay letters."""
    result = decide("cpu.clear", data=pod(**{"a\nb\x1b[31m\u00e9": 1}))
    said = "error: pods[0].a\\nb\\x1b[31m\u00e9: is not a known field\n"
    assert (result.returncode, result.stderr.decode()) == (2, said)


def test_the_message_says_what_was_expected_and_what_was_given() -> None:
    """The sentence of the architecture page."""
    result = decide("cpu.clear", data=pod(demand=float("nan")))
    assert result.stderr == b"error: pods[0].demand: must be between 0 and 1, got nan\n"


@pytest.mark.parametrize("sign", [b"", b"-"])
def test_the_message_shows_a_long_number_as_it_was_given(sign: bytes) -> None:
    """Of more digits than anything can be, the first: it showed 1000… for any of them."""
    result = decide("cpu.clear", data=pod().replace(b"900", sign + b"9" * 5000))
    shown = (sign + b"9" * 60)[:60].decode()
    assert result.stderr.decode().endswith(f", got {shown}…\n")


def test_answers_are_flushed_one_by_one() -> None:
    """A partner can talk line by line: each answer comes before the next question."""
    with subprocess.Popen(
        [*FAIRLEAD, "decide", "cpu.clear", "--jsonl"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin
        assert process.stdout
        for _ in range(3):
            process.stdin.write(pod() + b"\n")
            process.stdin.flush()
            assert process.stdout.readline() == EXPECTED
        process.stdin.close()
        assert process.wait(timeout=30) == 0


def test_totals_beyond_exact_json_are_refused() -> None:
    """9 008 pods of 10^12 add up past 2^53 - 1: refused, not rounded."""
    pods = [
        {"uid": str(i), "min_millicores": 10**12, "max_millicores": 10**12, "demand": 0}
        for i in range(9_008)
    ]
    result = decide("cpu.clear", data=json.dumps({"capacity_millicores": 1, "pods": pods}).encode())
    assert result.returncode == 2
    assert b"error: pods: add up to more than" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], b"KIND is missing"),
        (["cpu.claer"], b"unknown kind 'cpu.claer': did you mean 'cpu.clear'?"),
        (["xyzzy"], b"unknown kind 'xyzzy': expected cpu.allocate, cpu.clear, gpu."),
        (["cpu.clear", "/no/such/file"], b"No such file"),
        (["cpu.clear", "--bogus"], b"No such option"),
    ],
)
def test_bad_usage_exits_with_2(arguments: list[str], said: bytes) -> None:
    """Usage errors say what to do instead."""
    result = decide(*arguments)
    assert result.returncode == 2
    assert said in result.stderr


def test_list_schema_and_help() -> None:
    """--list names the kinds, --schema describes both sides, --help teaches with an example."""
    assert b"cpu.clear" in decide("--list").stdout.split()
    schema = json.loads(decide("cpu.clear", "--schema").stdout)
    pods = schema["input"]["$defs"]["PodDocument"]
    assert pods["required"] == ["uid", "min_millicores", "max_millicores", "demand"]
    assert pods["additionalProperties"] is False
    assert "shadow_price" in schema["output"]["$defs"]["ClearResult"]["properties"]
    assert b"--jsonl < documents.jsonl" in decide("--help").stdout


def test_a_reader_that_goes_away_is_not_an_error() -> None:
    """`fairlead decide ... | head -1` ends quietly."""
    command = f"'{sys.executable}' -m fairlead decide cpu.clear --jsonl | head -1"
    result = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        input=(pod() + b"\n") * 5000,
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, EXPECTED, b"")


@pytest.mark.parametrize("arguments", [[], ["--jsonl"]])
def test_an_answer_that_cannot_be_written_is_a_fault(arguments: list[str]) -> None:
    """The disk is full: that is no bug, and nobody gets half an answer unnoticed."""
    with Path("/dev/full").open("wb") as full:
        result = subprocess.run(
            [*FAIRLEAD, "decide", "cpu.clear", *arguments],
            input=pod() + b"\n",
            stdout=full,
            stderr=subprocess.PIPE,
            check=False,
            timeout=60,
        )
    assert result.returncode == 3
    assert result.stderr == b"fault: cannot write the output: No space left on device\n"


@pytest.mark.parametrize(("closed", "code"), [("<&-", 2), (">&-", 0), ("2>&-", 0)])
def test_a_closed_stream_is_nobody_and_no_bug(closed: str, code: int) -> None:
    """As some supervisors start their programs."""
    command = f"'{sys.executable}' -m fairlead decide cpu.clear {closed}"
    result = subprocess.run(
        ["bash", "-c", command], input=pod(), capture_output=True, check=False, timeout=60
    )
    assert result.returncode == code
    assert b"Traceback" not in result.stderr


def test_a_document_of_thirty_pods_is_a_thousand_calls() -> None:
    """0.3 ms each on one core: a stream of 10 000 takes seconds. Counted, not timed."""
    pods = [
        {
            "uid": f"pod-{i:02}",
            "min_millicores": 100 + i,
            "max_millicores": 2000 + 13 * i,
            "demand": i / 30,
            "weight": 1 + i,
            "usage_millicores": 500,
        }
        for i in range(30)
    ]
    line = json.dumps({"capacity_millicores": 16_000, "pods": pods}).encode() + b"\n"
    answer = canonical(KINDS["cpu.clear"].run(line).result) + b"\n"
    assert decide("cpu.clear", "--jsonl", data=line * 1_000).stdout == answer * 1_000
    assert calls_of(lambda: canonical(KINDS["cpu.clear"].run(line).result)) < 1_000
