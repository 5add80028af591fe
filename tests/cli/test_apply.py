"""`apply` and friends with several files: one step; errors name file, document and field."""

from pathlib import Path

import pytest

from tests.api.servers import budget, node, run
from tests.cli.shells import Shell
from tests.e2e.planes import documents


@pytest.fixture
def lab(tmp_path: Path) -> Path:
    """A folder of manifests, and things that are none."""
    (tmp_path / "1-nodes.yaml").write_text(documents(node("n1"), node("n2")))
    (tmp_path / "2-budgets.yml").write_text("---\n---\n" + documents(budget("b1"), budget("b2")))
    (tmp_path / "3-run.json").write_text(documents(run("r1", "b1", 99)))
    (tmp_path / "README.md").write_text("no manifest")
    return tmp_path


def test_a_folder_is_applied_in_one_step(shell: Shell, lab: Path) -> None:
    """Every file of it in order, one line for each object; again, nothing changes."""
    size = shell.server.ok("GET", "/v1/head")["size"]
    done = shell.ok("apply", "-f", str(lab))
    names = ["node/n1", "node/n2", "budget/b1", "budget/b2", "run/r1"]
    assert done.splitlines() == [f"{name} created" for name in names]
    events = shell.server.ok("GET", f"/v1/events?after={size}&limit=100")["items"]
    applied = [each["seq"] for each in events if each["kind"] == "object.applied"]
    assert applied == list(range(applied[0], applied[0] + 5)), "nothing came between"
    again = shell.ok("apply", "-f", str(lab / "1-nodes.yaml"), "-f", str(lab / "2-budgets.yml"))
    assert again.splitlines() == [f"{name} unchanged" for name in names[:4]]
    assert shell.ok("submit", "-f", str(lab / "3-run.json")) == "run/r1 unchanged\n"
    for name in reversed(names):
        shell.ok("delete", name)


def test_errors_name_file_document_and_field(shell: Shell, lab: Path) -> None:
    """Also in the second file, behind empty documents; and nothing of the others is applied."""
    budgets = lab / "2-budgets.yml"

    def error(*arguments: str) -> str:
        done = shell(*arguments)
        assert done.returncode == 2, done
        return done.stderr.removeprefix("error: ").rstrip()

    budgets.write_text("---\n---\n" + documents(budget("b1"), budget("b2", 0)))
    place = f"{budgets}, document 3 (budget/b2): "
    assert error("apply", "-f", str(lab)) == (
        f"{place}spec.envelopes[0].concurrency: must be an integer between 1 and 100000, got 0"
    )
    budgets.write_text(documents(budget("b1"), {**budget("b2"), "spce": {}}))
    assert error("apply", "-f", str(lab)) == (
        f"{budgets}, document 2 (budget/b2): spce: is not a known field; did you mean spec?"
    )
    budgets.write_text(documents(budget("b1"), budget("b1")))
    assert "document 2 (budget/b1): metadata.name: repeats" in error("apply", "-f", str(lab))
    budgets.write_text("just text")
    assert error("apply", "-f", str(lab)).startswith(f"{budgets}, document 1: must be an object")
    budgets.write_text("a: [")
    assert error("apply", "-f", str(lab)).startswith(f"{budgets}: $: must be YAML")
    assert error("submit", "-f", str(lab / "1-nodes.yaml")) == (
        f"{lab}/1-nodes.yaml, document 1 (node/n1): kind: must be Run, got 'Node'"
    )
    assert error("plan", "-f", "-").startswith("-: has no manifest")
    assert "No such file" in error("apply", "-f", str(lab / "none.yaml"))
    (lab / "empty").mkdir()
    assert "has no .yaml" in error("apply", "-f", str(lab / "empty"))
    assert shell("get", "node", "n1").returncode == 2, "nothing of it was applied"


def test_a_conflict_names_the_document_too(shell: Shell, lab: Path) -> None:
    """A version that is not the newest any more: refused, exit code 1, nothing applied."""
    stale = {**budget("team-a"), "metadata": {"name": "team-a", "resourceVersion": 1}}
    (lab / "2-budgets.yml").write_text(documents(budget("b1"), stale))
    done = shell("apply", "-f", str(lab))
    assert (done.returncode, done.stderr) == (
        1,
        f"refused: {lab}/2-budgets.yml, document 2 (budget/team-a): Budget 'team-a' is not in "
        "version 1 any more\n",
    )
    assert shell("get", "budget", "b1").returncode == 2


def test_plans_of_several_runs(shell: Shell, lab: Path) -> None:
    """Exit code 1 when one is not funded; a bad one is named."""
    runs = lab / "runs.yaml"
    runs.write_text(documents(run("fits"), run("big", gpus=99)))
    done = shell("plan", "-f", str(runs))
    assert done.returncode == 1
    assert "starts now on box#" in done.stdout
    assert "would fund it: concurrency of envelope team-a/main from 4 to 99" in done.stdout
    runs.write_text(documents(run("fits"), run("odd", gpus=-1)))
    bad = shell("plan", "-f", str(runs))
    assert (bad.returncode, "document 2 (run/odd): spec.totalGPUs" in bad.stderr) == (2, True)
