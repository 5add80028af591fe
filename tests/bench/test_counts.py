"""Large counts are kept while what they depend on is the same, and played on in parts."""

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("apsw", reason="the simulated disk needs apsw: make dev")

from tests import mutants, soak
from tests.kube import fault_soak
from tests.sim import vopr_soak
from tests.sources import digest


def test_a_digest_is_of_names_and_contents(tmp_path: Path) -> None:
    (tmp_path / "core").mkdir()
    (tmp_path / "core" / "a.py").write_text("a = 1\n")
    (tmp_path / "other.py").write_text("b = 1\n")
    before = digest(["core"], tmp_path)
    (tmp_path / "other.py").write_text("b = 2\n")
    assert digest(["core"], tmp_path) == before
    assert digest([""], tmp_path) != before
    (tmp_path / "core" / "a.py").rename(tmp_path / "core" / "c.py")
    assert digest(["core"], tmp_path) != before


def test_schedules_are_played_on_from_where_they_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of another source are dropped: they say nothing about this one."""
    monkeypatch.setattr(vopr_soak, "STEPS_EACH", 10)
    monkeypatch.setattr(vopr_soak, "PART", 2)
    record = tmp_path / "parts.jsonl"

    def play(steps: int, source: str) -> dict[str, Any]:
        return vopr_soak.soak(steps, commit="c", digest=source, lanes=1, record=record)

    assert play(20, "one")["steps"] == 20
    again = play(40, "one")
    assert (again["steps"], again["seeds"], again["commits"]) == (40, 4, {"c": 2})
    rows = [json.loads(line) for line in record.read_text().splitlines()]
    assert [row["first"] - vopr_soak.FIRST for row in rows] == [0, 2]
    assert play(20, "two")["seeds"] == 2
    assert len(record.read_text().splitlines()) == 1


def test_faults_of_a_cluster_count_on_the_source_that_they_were_played_on(tmp_path: Path) -> None:
    """A pass of another source, or of a record without one, is played again; so is a failure."""
    rows = (
        {"seed": 1, "digest": "this", "failed": "first"},
        {"seed": 1, "digest": "this", "played": {}},
        {"seed": 2, "digest": "other", "played": {}},
        {"seed": 3, "played": {}},
        {"seed": 4, "digest": "this", "failed": "still"},
    )
    record = tmp_path / "faults.jsonl"
    record.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert list(fault_soak.passed_before(record, "this")) == [1]


def test_a_count_below_the_promised_one_is_partial() -> None:
    """With both numbers; of several parts the smallest counts. What broke is failed."""
    few = soak.judged("whole system", {"steps": 24_000}, ok=True)
    assert few == {"result": "partial", "unit": "steps", "promised": 2_000_000, "done": 24_000}
    assert soak.judged("whole system", {"steps": 2_000_000}, ok=True)["result"] == "passed"
    parts = {"decide": {"seconds": 60, "cases": 9}, "http": {"seconds": 10, "cases": 9}}
    assert soak.judged("rubbish at every border", parts, ok=True)["done"] == 10
    assert soak.judged("rubbish at every border", parts, ok=True)["result"] == "partial"
    assert soak.judged("linearizable histories", {}, ok=True)["result"] == "partial"
    assert soak.judged("forgeries", {"forgeries": 153}, ok=True) == {"result": "passed"}
    assert soak.judged("whole system", {"failure": "..."}, ok=False) == {"result": "failed"}


def test_the_stored_report_tells_what_was_counted() -> None:
    """Of each soak its commit, its result and, where a count is promised, both numbers."""
    for name, row in json.loads(soak.REPORT.read_text())["soaks"].items():
        assert row["commit"], name
        _, promised = soak.PROMISED.get(name, ("", None))
        if row["result"] != "failed" and row.get("promised") == promised:
            told = {key: row[key] for key in ("result", "unit", "promised", "done") if key in row}
            assert told == soak.judged(name, row["counted"], ok=True), name


def test_every_module_of_core_has_tests_to_be_mutated_against() -> None:
    found = mutants.modules(())
    assert len(found) > 60
    assert [str(path) for path in mutants.modules(["gpu/clock"])] == ["gpu/clock.py"]
    for module in found:
        assert all(path.exists() for path in mutants.tests_of(module)), module


def test_survivors_are_open_until_they_are_killed_or_explained(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    row = {"digest": "", "mutants": 10, "killed": 7, "timeouts": 1}
    row["survived"] = {"x_1": "- a\n+ b", "x_2": "- a\n+ c"}  # type: ignore[assignment]
    monkeypatch.setattr(mutants, "explained", lambda: {"gpu/clock.py\n- a\n+ b": "the same"})
    found = mutants.summary({"gpu/clock.py": row})
    assert (found["killed"], found["survived"], found["explained"], found["open"]) == (8, 2, 1, 1)
    assert found["killed_percent"] == 80.0
    assert found["killed_percent_unexplained"] == 88.89
    assert found["modules_changed_since"] == ["gpu/clock.py"]


def test_what_is_explained_survives() -> None:
    """An explanation of a mutant that is killed, or gone, goes too; of a module that has changed
    since it was run, nothing is known."""
    if not mutants.REPORT.exists():
        pytest.skip("make mutants was not run")
    kept = json.loads(mutants.REPORT.read_text())["modules"]
    alive = {
        f"{module}\n{change}" for module, row in kept.items() for change in row["survived"].values()
    }
    current = {name for name, row in kept.items() if row["digest"] == mutants.digest(Path(name))}
    asked = {row for row in mutants.explained() if row.partition("\n")[0] in current}
    assert asked <= alive


def test_every_stored_mutant_of_core_is_killed_or_explained() -> None:
    """Of all modules; those that were changed since are played again by `make mutants`."""
    kept = mutants.summary(json.loads(mutants.REPORT.read_text())["modules"])
    assert (kept["modules_not_run"], kept["open"]) == ([], 0)
    assert kept["killed_percent"] > 95


def test_a_change_that_decides_nothing_is_seen_from_itself() -> None:
    bug = '- require(a == b, "they agree")\n+ require(a == b, None)'
    assert mutants.rule_of(bug) is not None
    assert (
        mutants.rule_of('- require(a == b, "they agree")\n+ require(a != b, "they agree")') is None
    )
    assert mutants.rule_of('- n.to_bytes(8, "big")\n+ n.to_bytes(8, )') is not None
    assert mutants.rule_of('- n.to_bytes(8, "big")\n+ n.to_bytes(9, "big")') is None
    assert mutants.rule_of('- hmac(key, text, "sha256")\n+ hmac(key, text, "SHA256")') is not None
    assert mutants.rule_of("- return a\n+ return b") is None
    assert mutants.rule_of('- a = known(b, "it is there").c\n+ a = known(b, None).c') is not None
    assert (
        mutants.rule_of('- a = known(b, "it is there").c\n+ a = known(None, "it is there").c')
        is None
    )
    assert mutants.rule_of('- a = cast("list[int]", b)\n+ a = cast(None, b)') is not None
    assert mutants.rule_of('- a = cast("list[int]", b)\n+ a = cast("list[int]", None)') is None
