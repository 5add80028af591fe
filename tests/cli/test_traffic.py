"""`fairlead traffic` as a user calls it: exit codes, streams, files, and words that help."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from fairlead.cli.traffic.status import ADMISSION, CAUSES, SENTENCES, explain_backend, explain_group
from fairlead.core.reasons import TrafficReason
from fairlead.core.traffic import AdmissionMode, Cause
from tests.cli.shells import FAIRLEAD, run_text

CONFIG: dict[str, Any] = {
    "plane": "memory",
    "tick_ms": 20,
    "node": {"watch": False},
    "groups": [
        {
            "name": "web",
            "vip": "127.0.0.1",
            "port": 8080,
            "backends": [
                {"id": "a", "host": "127.0.0.1", "port": 9001},
                {"id": "b", "host": "127.0.0.1", "port": 9002},
            ],
        }
    ],
}


def traffic(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return fairlead("traffic", *arguments, cwd=cwd, **environment)


def fairlead(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return run_text(*arguments, cwd=cwd, **{**state_of(cwd), **environment})


def run_agent(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """An agent is a process: it handles signals, and ends with whoever started it."""
    return subprocess.run(
        [*FAIRLEAD, "traffic", "run", *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, **state_of(cwd)},
    )


def state_of(cwd: Path) -> dict[str, str]:
    return {"FAIRLEAD_TRAFFIC_STATE_DIR": str(cwd / "state")}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where an agent has run for some ticks, with a ledger."""
    folder = tmp_path_factory.mktemp("traffic")
    config = {**CONFIG, "ledger": str(folder / "ledger" / "ledger.db")}
    (folder / "ledger").mkdir()
    (folder / "web.yaml").write_text(json.dumps(config))
    done = run_agent("web.yaml", "--ticks", "5", "--metrics-port", "0", cwd=folder)
    assert done.returncode == 0, done.stderr
    events = [json.loads(line) for line in done.stderr.splitlines()]
    assert [event["event"] for event in events] == ["agent started", "agent stopped"]
    assert events[0]["sources"]
    assert events[0]["metrics_port"] > 0
    return folder


def test_the_help_lists_and_teaches(tmp_path: Path) -> None:
    """Every command, an example configuration, and where to go on."""
    text = traffic("--help", cwd=tmp_path).stdout
    for name in ("run", "status", "explain", "drain", "isolate", "restore", "harness"):
        assert f"  {name}" in text
    assert "plane: haproxy" in traffic("run", "--help", cwd=tmp_path).stdout
    assert "--real-time" in traffic("harness", "--help", cwd=tmp_path).stdout


def test_the_example_of_the_help_is_a_good_configuration(tmp_path: Path) -> None:
    """It can be copied as it is."""
    lines = traffic("run", "--help", cwd=tmp_path).stdout.splitlines()
    start = next(n for n, line in enumerate(lines) if "plane: haproxy" in line)
    example = []
    for line in lines[start:]:
        if not line.strip():
            break
        example.append(line.removeprefix("    "))
    (tmp_path / "example.yaml").write_text("\n".join(example) + "\n")
    done = traffic("check", "example.yaml", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "web: 127.0.0.1:8080/tcp to 2 backends\n")


def test_a_bad_file_is_refused_with_its_path(tmp_path: Path) -> None:
    """Exit code 2, nothing started, nothing written."""
    bad = {**CONFIG, "groups": [{**CONFIG["groups"][0], "vip": "here"}]}
    (tmp_path / "bad.yaml").write_text(json.dumps(bad))
    for done in (run_agent("bad.yaml", cwd=tmp_path), traffic("check", "bad.yaml", cwd=tmp_path)):
        assert done.returncode == 2
        assert "bad.yaml: groups[0].vip: must be an IP address, got 'here'" in done.stderr
    assert not (tmp_path / "state").exists()


def test_status_and_explain(place: Path) -> None:
    """For eyes and for scripts."""
    table = traffic("status", cwd=place).stdout
    assert "plane memory, 5 ticks of 20 ms" in table
    assert "No agent is running" in table
    assert "web 127.0.0.1:8080/tcp: admission normal, laminar" in table
    document = json.loads(traffic("status", "web", "-o", "json", cwd=place).stdout)
    assert [each["slots"] for each in document["groups"][0]["backends"]] == [128, 128]
    words = traffic("explain", "web", cwd=place).stdout
    assert "web: normal, laminar. Admission is open." in words
    assert "signals of the memory dataplane" in words
    assert "a: 128 of 256 slots" in traffic("explain", "web", "a", cwd=place).stdout


def test_a_clock_that_was_set_makes_no_agent_late(place: Path, tmp_path: Path) -> None:
    """An agent carries the time of its start on: what it wrote is as old as the file is."""
    shutil.copytree(place / "state", tmp_path / "state")
    file = tmp_path / "state" / "status.json"
    for hours in (-5, 5):
        document = json.loads(file.read_text())
        document["time_ms"] += hours * 3_600_000
        file.write_text(json.dumps(document))
        status = json.loads(traffic("status", "-o", "json", cwd=tmp_path).stdout)
        assert 0 <= status["age_ms"] < 3_600_000
    os.utime(file, (1_000_000_000, 1_000_000_000))
    status = json.loads(traffic("status", "-o", "json", cwd=tmp_path).stdout)
    assert status["stale"] is True


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["status", "api"], "unknown group 'api'; governed groups: web"),
        (["explain", "web", "z"], "unknown backend 'z' of web; it has: a, b"),
        (["drain", "web", "z"], "unknown backend 'z' of web; it has: a, b"),
        (["isolate", "api", "a"], "unknown group 'api'"),
    ],
)
def test_names_that_are_not_there(place: Path, arguments: list[str], message: str) -> None:
    """Exit code 2, and what there is instead."""
    done = traffic(*arguments, cwd=place)
    assert done.returncode == 2
    assert message in done.stderr


def test_status_before_any_agent(tmp_path: Path) -> None:
    """Says what to do."""
    done = traffic("status", cwd=tmp_path)
    assert done.returncode == 2
    assert "see `fairlead traffic run`" in done.stderr


def test_replay_is_byte_identical(place: Path) -> None:
    """A directory of records, one record, one segment: the configuration, the first tick, and those
    after it in which the group was not calm."""
    from fairlead.recorder import read  # noqa: PLC0415 - only here

    record = place / "state" / "record"
    entries = len(list(read(record / "web")))
    assert entries >= 3
    for path in (record, record / "web", *(record / "web").glob("segment-*.jsonl")):
        done = fairlead("replay", str(path), cwd=place)
        assert (done.returncode, done.stdout.splitlines()[-1]) == (
            0,
            f"{entries} same, 0 different, 0 unknown",
        )
    counts = json.loads(fairlead("replay", str(record), "-o", "json", cwd=place).stdout)
    assert [counts[name] for name in ("same", "different", "unknown")] == [entries, 0, 0]


def test_a_damaged_record_is_a_fault(place: Path, tmp_path: Path) -> None:
    """Exit code 3; an agent puts such a record aside and goes on."""
    (segment,) = (place / "state" / "record" / "web").glob("segment-*.jsonl")
    spoiled = tmp_path / "state" / "record" / "web"
    spoiled.mkdir(parents=True)
    data = segment.read_bytes().replace(b'"slots"', b'"slotz"', 1)
    (spoiled / segment.name).write_bytes(data)
    assert fairlead("replay", str(spoiled), cwd=tmp_path).returncode == 3
    (tmp_path / "web.yaml").write_text(json.dumps(CONFIG))
    done = run_agent("web.yaml", "--ticks", "2", cwd=tmp_path)
    assert done.returncode == 0
    assert "a new one begins" in done.stderr
    assert list((tmp_path / "state" / "record").glob("web.damaged-*"))


def test_orders_wait_for_an_agent(place: Path) -> None:
    """Given while nobody runs, obeyed from the first tick on, and once only."""
    done = traffic("isolate", "web", "b", cwd=place)
    assert (done.returncode, done.stdout) == (0, "web/b will be isolated when an agent runs\n")
    assert traffic("isolate", "web", "b", cwd=place).stdout == "web/b is isolated already\n"
    assert run_agent("web.yaml", "--ticks", "2", cwd=place).returncode == 0
    document = json.loads(traffic("status", "-o", "json", cwd=place).stdout)
    assert [each["slots"] for each in document["groups"][0]["backends"]] == [256, 0]
    assert "by the operator" in traffic("explain", "web", "b", cwd=place).stdout
    assert traffic("restore", "web", "b", cwd=place).returncode == 0


def test_transitions_and_anchors_are_in_the_ledger(place: Path) -> None:
    """The record of every group is anchored, and the anchor is in the record."""
    from fairlead.ledger.place import open_for_reading  # noqa: PLC0415 - only here
    from fairlead.ports.recorder import RecordHead  # noqa: PLC0415
    from fairlead.recorder import verify  # noqa: PLC0415

    reader = open_for_reading(place / "ledger" / "ledger.db")
    anchors = [entry.body["heads"]["web"] for entry in reader.entries(kind="traffic.anchor")]
    reader.close()
    heads = [RecordHead(each["seq"], each["hash"]) for each in anchors]
    assert heads
    found = verify(place / "state" / "record" / "web", anchors=heads)
    assert found.anchors_met == len(heads)


def test_build_ebpf_says_what_is_missing(tmp_path: Path) -> None:
    """Exit code 3, and the cure."""
    done = traffic("build-ebpf", "--to", str(tmp_path / "x.o"), cwd=tmp_path, PATH="/nowhere")
    assert done.returncode == 3
    assert "clang is not on PATH (apt-get install clang)" in done.stderr


SCENARIO = {"name": "small", "duration_s": 3, "backends": [{"name": "a"}], "load": {"per_s": 20}}


def test_the_harness_plays_and_judges(tmp_path: Path) -> None:
    """0 when all promises were kept, 1 when not; the same seed, the same digest."""
    (tmp_path / "s.yaml").write_text(json.dumps(SCENARIO))
    one = traffic("harness", "s.yaml", "--no-plots", cwd=tmp_path)
    two = traffic("harness", "s.yaml", "--no-plots", "--out", "again", "-o", "json", cwd=tmp_path)
    assert (one.returncode, two.returncode) == (0, 0)
    assert one.stderr == "report: out/small/report.md\n"
    document = json.loads(two.stdout)
    assert f"digest  {document['digest']}\n" in one.stdout
    assert (tmp_path / "out" / "small" / "timeline.csv").exists()
    replayed = fairlead("replay", "out/small/record", cwd=tmp_path)
    assert replayed.stdout.endswith("16 same, 0 different, 0 unknown\n")
    hopeless = {**SCENARIO, "expect": [{"what": "mode", "mode": "hard"}]}
    (tmp_path / "s.yaml").write_text(json.dumps(hopeless))
    done = traffic("harness", "s.yaml", "--no-plots", cwd=tmp_path)
    assert done.returncode == 1
    assert "BROKEN  admission is hard at some time" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["harness"], "name a scenario"),
        (["harness", "nowhere"], "bundled scenarios: agent-death"),
        (["harness", "slow", "--real-time"], "--real-time and --plane haproxy"),
        (["harness", "slow", "--plane", "haproxy"], "--real-time and --plane haproxy"),
    ],
)
def test_bad_usage_of_the_harness(tmp_path: Path, arguments: list[str], message: str) -> None:
    """Exit code 2."""
    done = traffic(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr


def test_the_harness_lists_its_scenarios(tmp_path: Path) -> None:
    """With what each is about."""
    assert (
        "one backend of four turns 10 times slower"
        in traffic("harness", "--list", cwd=tmp_path).stdout
    )
    assert '"TrafficScenarioDocument"' in traffic("harness", "--schema", cwd=tmp_path).stdout


def test_every_reason_mode_and_cause_has_its_words() -> None:
    """Nobody is shown a code without a sentence."""
    assert set(SENTENCES) == set(TrafficReason)
    assert set(ADMISSION) == {mode.value for mode in AdmissionMode}
    assert set(CAUSES) == {cause.value for cause in Cause}
    for mode in AdmissionMode:
        for reason in TrafficReason:
            group = {
                "group": "web",
                "mode": mode.value,
                "regime": "crisis",
                "rate_per_s": 1.5,
                "burst": 2.0,
                "reasons": [reason.value],
                "conductance": 0.1,
                "skew": 0.3,
                "ttf_s": 12.0,
                "retry_index": 0.7,
                "stall": True,
                "scale_hint": True,
                "fault": "not applied: busy",
                "sequence": 7,
                "backends": [],
                "inside_max": 60,
            }
            lines = explain_group(group, {"plane": "ebpf", "sources": {"queue": "scraped"}})
            assert all(lines)
    for cause in Cause:
        backend = {
            "backend": "a",
            "slots": 0,
            "target": 0,
            "weight": 0.0,
            "pressure": {"total": 0.1},
            "p95_ms": None,
            "error_rate": None,
            "queue": None,
            "requests": None,
            "age_ms": 3,
            "open": 4,
            "isolated": cause.value,
            "order": "drain",
        }
        lines = explain_backend(backend, {"backends": [backend]})
        assert any(line.startswith("ejected ") for line in lines)
