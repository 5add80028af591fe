"""`fairlead doctor` as a user calls it, on this machine."""

import json
import os
import pty
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from fairlead.cli.doctor import ebpf_plane
from fairlead.cli.main import main
from fairlead.dataplane import ebpf
from fairlead.node.cgroup_mounts import read_cgroup_host
from fairlead.node.doctor import checks
from fairlead.node.doctor.machine import CheckStatus, Machine
from fairlead.ports.faults import PermanentFault
from tests.cli.shells import FAIRLEAD, run_text

FIELDS = {"governor", "name", "status", "found", "why", "cure", "required"}


def doctor(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return run_text("doctor", *arguments, **environment)


def on_a_terminal(*arguments: str, **environment: str) -> str:
    reader, writer = pty.openpty()
    with subprocess.Popen(
        [*FAIRLEAD, "doctor", *arguments],
        stdout=writer,
        env={**os.environ, "COLUMNS": "100", "TERM": "xterm", **environment},
    ) as process:
        os.close(writer)
        shown = b""
        try:
            while chunk := os.read(reader, 65536):
                shown += chunk
        except OSError:  # how a pseudo-terminal says that the other side is closed
            pass
        os.close(reader)
        assert process.wait(timeout=30) == 0
    return shown.decode()


def probes_left() -> list[Path]:
    try:
        mount = read_cgroup_host().cpu_mount
    except PermanentFault:
        return []
    return list(mount.glob("fairlead-doctor-*"))


def test_json_names_every_governor_and_the_exit_code_agrees() -> None:
    """One document; nothing on stderr; the probe cgroup is gone."""
    result = doctor("-o", "json")
    assert result.stderr == ""
    document = json.loads(result.stdout)
    assert list(dict.fromkeys(each["governor"] for each in document["checks"])) == [
        "base",
        "cpu",
        "gpu",
        "traffic",
    ]
    assert all(set(each) == FIELDS for each in document["checks"])
    assert all(each["status"] in {"ok", "warn", "missing"} for each in document["checks"])
    assert sum(document["summary"].values()) == len(document["checks"])
    assert result.returncode == (0 if document["base_works"] else 1)
    assert probes_left() == []


def test_the_machine_that_runs_the_tests_has_a_working_base() -> None:
    """Python, a clock and a place for the state: whatever else is missing, exit code 0."""
    document = json.loads(doctor("-o", "json").stdout)
    needed = {each["name"]: each["status"] for each in document["checks"] if each["required"]}
    assert set(needed) == {"python", "clock", "state directory"}
    assert "missing" not in needed.values()


def test_strict_exits_with_1_unless_all_is_well() -> None:
    """The same report, another exit code."""
    result = doctor("-o", "json", "--strict")
    summary = json.loads(result.stdout)["summary"]
    assert result.returncode == (0 if summary["warn"] == summary["missing"] == 0 else 1)


def test_a_base_that_does_not_work_exits_with_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No place for the state: said by name, with the cure."""
    (tmp_path / "file").touch()
    monkeypatch.setattr(checks.paths, "state_directory", lambda: tmp_path / "file" / "x")
    result = CliRunner().invoke(main, ["doctor"])
    assert result.exit_code == 1
    assert "the base does not work (state directory)" in result.stdout
    assert "cure: " in result.stdout


def test_a_pipe_gets_plain_text() -> None:
    """No escape sequence, no trailing padding; each governor heads its own lines."""
    result = doctor()
    assert result.returncode == 0
    assert "\x1b" not in result.stdout
    lines = result.stdout.splitlines()
    assert [line for line in lines if line in {"base", "cpu", "gpu", "traffic"}] == [
        "base",
        "cpu",
        "gpu",
        "traffic",
    ]
    assert lines[-1].endswith(": the base works")
    assert all(line == line.rstrip() for line in lines)


def test_a_terminal_gets_colour_unless_told_otherwise() -> None:
    """NO_COLOR is honoured; the words are the same."""
    coloured = on_a_terminal()
    plain = on_a_terminal(NO_COLOR="1")
    assert "\x1b[32m" in coloured
    assert "\x1b[3" not in plain
    assert "the base works" in coloured
    assert "the base works" in plain


def test_json_on_a_terminal_is_indented() -> None:
    """For eyes; the same document."""
    assert json.loads(on_a_terminal("-o", "json"))["base_works"] is True


def test_a_missing_program_comes_with_its_cure() -> None:
    """With an empty PATH the tools are looked for in vain."""
    document = json.loads(doctor("-o", "json", PATH="/nonexistent").stdout)
    clang = next(each for each in document["checks"] if each["name"] == "clang")
    assert clang["status"] == "missing"
    assert "clang" in clang["cure"]


def test_what_the_ebpf_plane_lacks_is_its_own_word(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of it, as the plane would say it when it is opened; and nothing when it can be."""
    document = json.loads(doctor("-o", "json").stdout)
    told = next(each for each in document["checks"] if each["name"] == "eBPF plane")
    assert (told["status"] == "ok") == (not ebpf.missing())
    assert all(each in told["found"] for each in ebpf.missing())
    monkeypatch.setattr(ebpf, "missing", lambda: ["no clang (get it)", "no cgroup2 (mount it)"])
    finding = ebpf_plane(Machine())
    assert finding.status is CheckStatus.MISSING
    assert finding.found == "no clang (get it); no cgroup2 (mount it)"
    monkeypatch.setattr(ebpf, "missing", list)
    assert ebpf_plane(Machine()).status is CheckStatus.OK


def test_bad_usage_exits_with_2() -> None:
    """An unknown format is refused before anything is looked at."""
    result = doctor("-o", "xml")
    assert result.returncode == 2
    assert "'xml' is not one of 'table', 'json'" in result.stderr


def test_help_shows_an_example() -> None:
    """And the group lists the command."""
    assert "fairlead doctor -o json | jq" in doctor("--help").stdout
    assert "doctor" in run_text("--help").stdout
