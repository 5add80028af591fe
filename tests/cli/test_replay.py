"""`fairlead replay`: every decision of a ledger or a record again, for all governors."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import click
import pytest
import yaml
from click.testing import CliRunner

from fairlead.cli.main import LazyGroup, main
from fairlead.ledger.place import open_file, open_for_reading
from fairlead.ports.ledger import Draft
from fairlead.ports.recorder import RecordHead
from fairlead.recorder import FileRecorder
from fairlead.schema.replay import first_difference
from tests.cli.shells import run_text
from tests.ledger.test_replay import INPUT, OUTPUT, decision


def replay(*arguments: object, state: Path) -> subprocess.CompletedProcess[str]:
    return run_text("replay", *map(str, arguments), FAIRLEAD_STATE=str(state))


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A ledger with two decisions and an entry that is none; a node's record with two more."""
    with open_file(tmp_path / "ledger.db") as ledger:
        ledger.append([decision({"input": INPUT, "output": OUTPUT})] * 2)
    recorder = FileRecorder(tmp_path / "node" / "record")
    for _ in range(2):
        recorder.append("cpu.clear", version=1, time_ms=1, input=INPUT, output=OUTPUT)
    recorder.close()
    return tmp_path


def test_without_arguments_the_whole_ledger(state: Path) -> None:
    """Counts per kind; entries that are no decisions are left out."""
    done = replay(state=state)
    assert (done.returncode, done.stderr) == (0, "")
    header, row, total = done.stdout.splitlines()
    assert header.split() == ["KIND", "VERSION", "SAME", "DIFFERENT", "UNKNOWN"]
    assert row.split() == ["cpu.clear", "1", "2", "0", "0"]
    assert total == "2 same, 0 different, 0 unknown"


def test_several_places_at_once(state: Path) -> None:
    """A ledger's file and a record, found below its state directory; JSON and YAML."""
    done = replay(state / "ledger.db", state / "node", "-o", "json", state=state)
    assert done.returncode == 0
    document = json.loads(done.stdout)
    assert (document["same"], document["first"]) == (4, None)
    spoken = replay(state / "ledger.db", state / "node", "-o", "yaml", state=state)
    assert yaml.safe_load(spoken.stdout) == document


def test_an_export_replays_without_its_ledger(state: Path) -> None:
    """Entries and the documents beside them are in the file."""
    with open_for_reading(state / "ledger.db") as reader:
        reader.export(state / "export.jsonl")
    done = replay(state / "export.jsonl", state=state)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "2 same, 0 different, 0 unknown")
    (state / "odd.jsonl").write_text("{}\n")
    odd = replay(state / "odd.jsonl", state=state)
    assert (odd.returncode, odd.stderr.startswith("error: ")) == (2, True)


def test_a_damaged_export_is_a_fault_and_no_traceback(state: Path) -> None:
    """A line that was cut off, or is no entry: named by its number."""
    with open_for_reading(state / "ledger.db") as reader:
        reader.export(state / "export.jsonl")
    first, second, *_ = lines = (state / "export.jsonl").read_bytes().splitlines(keepends=True)
    for bad in ([first, second[:40]], [first, b"[]\n", *lines[2:]]):
        (state / "export.jsonl").write_bytes(b"".join(bad))
        done = replay(state / "export.jsonl", state=state)
        assert (done.returncode, "Traceback" in done.stderr) == (3, False)
        assert "entry 1 cannot be read" in done.stderr


def test_the_first_difference_is_named(state: Path) -> None:
    """Exit code 1, with the entry and the field."""
    with open_file(state / "ledger.db") as ledger:
        lie = {**OUTPUT, "mode": "overloaded"}
        ledger.append([decision({"input": INPUT, "output": lie})])
        seq = ledger.head().head.size
    done = replay(state=state)
    assert done.returncode == 1
    assert f"entry {seq}: different cpu.clear v1 (mode: recorded 'overloaded'" in done.stdout
    first = json.loads(replay("-o", "json", state=state).stdout)["first"]
    assert (first["seq"], first["verdict"]) == (seq, "different")


def test_what_cannot_be_replayed(state: Path, tmp_path: Path) -> None:
    """Exit code 3 for a damaged record, 2 for a place that is none."""
    (segment,) = (state / "node" / "record").glob("segment-*")
    segment.write_bytes(segment.read_bytes().replace(b"cpu.clear", b"cpu.claer", 1))
    damaged = replay(state / "node" / "record", state=state)
    assert (damaged.returncode, "damaged" in damaged.stderr) == (3, True)
    assert replay("nowhere", state=state).returncode == 2
    (tmp_path / "empty").mkdir()
    assert "has no record" in replay(tmp_path / "empty", state=state).stderr


def test_a_folder_that_cannot_be_listed_is_bad_usage(state: Path) -> None:
    """`fairlead replay /` ended with 70: a process that has ended has a folder without entries."""
    with subprocess.Popen(["true"]) as ended:
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
        done = replay(f"/proc/{ended.pid}/task", state=state)
    assert (done.returncode, done.stderr.startswith("error: /proc/")) == (2, True), done.stderr


def test_an_entry_that_is_no_decision_is_bad_usage(state: Path) -> None:
    """It was `unknown`, as a decision that this release cannot run."""
    done = replay(1, state=state)
    assert done.returncode == 2
    assert "entry 1 (ledger.created) is not a decision" in done.stderr


def test_a_ledger_that_is_not_there_is_bad_usage(tmp_path: Path) -> None:
    done = replay(state=tmp_path)
    assert done.returncode == 2
    assert f"there is no ledger {tmp_path}/ledger.db" in done.stderr


def test_a_damaged_record_hides_no_other(state: Path) -> None:
    """It is named with its place, and what is whole is replayed."""
    aside = state / "node" / "record.damaged-1"
    FileRecorder(aside).close()
    (segment,) = aside.glob("segment-*")
    segment.write_bytes(b"{" + segment.read_bytes())
    (state / "node" / "record").rename(state / "node" / "records")  # behind it, by name
    done = replay(state / "node", state=state)
    assert done.returncode == 3
    assert f"{aside}: segment-" in done.stderr
    assert "2 same, 0 different" in done.stdout


def recorded(place: Path, decisions: int) -> RecordHead:
    """A group's record of so many decisions, each of which replays; its end."""
    with FileRecorder(place) as recorder:
        for number in range(decisions):
            recorder.append("cpu.clear", version=1, time_ms=number, input=INPUT, output=OUTPUT)
        return recorder.head()


def anchored(state: Path, *, agents: tuple[str, ...] = ("n1",)) -> tuple[str, ...]:
    """A record with its end in a ledger; the arguments that replay it against that."""
    head = recorded(state / "record" / "web", 3)
    heads = {"web": {"seq": head.seq, "hash": head.hash}}
    other = {"web": {"seq": head.seq + 5, "hash": "00" * 32}}
    drafts = [
        Draft(
            kind="traffic.anchor",
            time_ms=1,
            author="agent:traffic",
            body={"agent": agent, "heads": heads if agent == "n1" else other},
        )
        for agent in agents
    ]
    with open_file(state / "anchors.db") as ledger:
        ledger.append(drafts)
    return str(state / "record"), "--ledger", str(state / "anchors.db")


@pytest.mark.parametrize("agents", [("n1",), ("n1", "n2"), ("n2", "n1")])
def test_a_record_meets_its_anchors(tmp_path: Path, agents: tuple[str, ...]) -> None:
    """Also where another agent anchors a group of that name."""
    done = CliRunner().invoke(main, ["replay", *anchored(tmp_path, agents=agents)])
    assert (done.exit_code, "3 same" in done.output) == (0, True)


@pytest.mark.parametrize(("decisions", "problem"), [(2, "was anchored"), (4, "is not the one")])
def test_a_record_that_was_written_anew_is_found(
    tmp_path: Path, decisions: int, problem: str
) -> None:
    """Its chain is whole and its decisions replay: only the ledger shows it."""
    arguments = anchored(tmp_path)
    shutil.rmtree(tmp_path / "record")
    with FileRecorder(tmp_path / "record" / "web") as recorder:
        for _ in range(decisions):
            recorder.append("cpu.clear", version=1, time_ms=9, input=INPUT, output=OUTPUT)
    assert CliRunner().invoke(main, ["replay", arguments[0]]).exit_code == 0
    done = CliRunner().invoke(main, ["replay", *arguments])
    assert (done.exit_code, problem in done.output) == (3, True)


def test_first_difference_walks_into_lists_and_objects() -> None:
    """The path of the field, in the order of keys."""
    one = {"a": [{"b": 1}, {"b": 2}], "c": 3}
    assert first_difference(one, {"a": [{"b": 1}, {"b": 5}], "c": 4}) == (
        "a[1].b: recorded 2, decided 5"
    )
    assert first_difference(one, one) == ""
    assert first_difference([1], [1, 2]).startswith("output: recorded")


@pytest.mark.parametrize("former", [("node", "replay"), ("traffic", "replay")])
def test_the_former_spellings_still_replay(former: tuple[str, str]) -> None:
    """Scripts written for 0.1 go on: `fairlead node replay PATH` is `fairlead replay PATH`."""
    done = CliRunner().invoke(main, [*former, "--help"])
    assert done.exit_code == 0
    assert "Run recorded decisions again" in done.output


def test_the_former_spelling_of_a_withdrawal() -> None:
    """`runs nominate --take-back` is `nominate --withdraw`."""
    context = click.Context(main)
    args = ["runs", "nominate", "sweep-3", "--take-back"]
    assert isinstance(main, LazyGroup)
    name, _, rest = main.resolve_command(context, args)
    assert (name, rest) == ("nominate", ["sweep-3", "--withdraw"])
