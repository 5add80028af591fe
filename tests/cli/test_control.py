"""The control plane's commands: outputs, exit codes, errors with the field, heads that are kept."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.api.servers import Running, budget, node, run, serving, short_folder
from tests.e2e.planes import documents


class Shell:
    """Commands against a server that runs in this process."""

    def __init__(self, server: Running, heads: Path) -> None:
        self.server, self.heads = server, heads

    def __call__(
        self, *arguments: str, input: str | None = None, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "fairlead", *arguments],
            input=input, capture_output=True, text=True, check=False, timeout=60,
            env={**os.environ, "FAIRLEAD_SERVER": str(self.server.socket),
                 "FAIRLEAD_HEADS": str(self.heads), **environment},
        )  # fmt: skip


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    heads = tmp_path_factory.mktemp("heads") / "heads.json"
    with short_folder() as folder, serving(folder) as running:
        running.apply(node(), budget("team-a"))
        yield Shell(running, heads)


def test_what_is_got_can_be_applied_again(shell: Shell) -> None:
    """`get -o yaml | apply -f -` changes nothing; JSON and tables tell the same."""
    text = shell("get", "budgets", "-o", "yaml").stdout
    assert shell("apply", "-f", "-", input=text).stdout == "budget/team-a unchanged\n"
    (document,) = yaml.safe_load_all(text)
    assert (
        json.loads(shell("get", "budget/team-a", "-o", "json").stdout)["spec"] == (document["spec"])
    )
    lines = shell("get", "nodes").stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["NAME", "box"]
    assert shell("get", "runs").stdout.splitlines()[0].startswith("NAME")


def test_exit_codes_and_the_offending_field(shell: Shell) -> None:
    """0 done, 1 refused, 2 bad usage or input, 3 fault; one line that says what and where."""
    bad = shell("apply", "-f", "-", input=documents(budget("new"), run("x", gpus=0)))
    assert (bad.returncode, bad.stderr) == (
        2, "error: manifests[1].spec.totalGPUs: must be an integer between 1 and 100000, got 0\n",
    )  # fmt: skip
    assert shell("get", "budget", "new").returncode == 2
    assert shell("apply", "-f", "-", input="a: [").returncode == 2
    assert shell("apply", "-f", "-", input="").returncode == 2
    assert shell("submit", "-f", "-", input=documents(budget("new"))).returncode == 2
    assert shell("get", "pods").returncode == 2
    assert shell("explain", "train").returncode == 2
    asked = shell("plan", "-f", "-", input=documents(run("x", gpus=99)))
    assert (asked.returncode, asked.stdout.split(":")[0]) == (1, "ConcurrencyCapExceeded")
    nowhere = shell("get", "runs", FAIRLEAD_SERVER="/nowhere/fairlead.sock")
    assert (nowhere.returncode, nowhere.stderr.startswith("fault: ")) == (3, True)


def test_tokens_over_http(shell: Shell, tmp_path: Path) -> None:
    """A token in a file acts for its user's owners; revoked, it opens nothing."""
    assert shell("users", "bind", "ada", "--owner", "team-a").stdout == "ada acts for team-a\n"
    made = shell("tokens", "create", "--user", "ada", "--note", "laptop")
    file = tmp_path / "token"
    file.write_text(made.stdout)
    http = {"FAIRLEAD_SERVER": f"http://127.0.0.1:{shell.server.port}"}
    ada = {**http, "FAIRLEAD_TOKEN_FILE": str(file)}
    assert shell("whoami", **ada).stdout == "ada, acts for team-a\n"
    assert shell("submit", "-f", "-", input=documents(run("hers")), **ada).returncode == 0
    refused = shell("cordon", "box", **ada)
    assert (refused.returncode, refused.stderr.startswith("refused: ")) == (1, True)
    assert shell("budgets", **http).returncode == 0
    assert shell("cancel", "hers", **http).returncode == 1
    token = made.stderr.split()[1]
    assert token in shell("tokens", "list").stdout
    assert shell("tokens", "revoke", token).returncode == 0
    assert shell("get", "runs", **ada).returncode == 1


def test_nodes_are_cordoned_and_drained(shell: Shell) -> None:
    """What stands on a drained node waits again."""
    shell.server.apply(run("moved", duration="1h"))
    running = shell.server
    running.until("running", lambda: running.status("Run", "moved")["phase"] == "Running")
    assert shell("drain", "box").stdout == "node/box drained\n"
    assert running.status("Run", "moved")["phase"] == "Pending"
    assert shell("uncordon", "box").returncode == 0
    running.until("running", lambda: running.status("Run", "moved")["phase"] == "Running")
    assert shell("delete", "run/moved").returncode == 1
    assert shell("cancel", "moved").returncode == 0
    assert shell("delete", "run/moved", "--dry-run").stdout == "run/moved deleted (dry run)\n"
    assert shell("delete", "run/moved").returncode == 0
    events = shell("watch", "--after", "0", "--limit", "3", "-o", "json").stdout.splitlines()
    assert [json.loads(line)["seq"] for line in events] == [1, 2, 3]


def test_a_rewritten_past_is_noticed(shell: Shell) -> None:
    """The head of the last call is kept, and the next must continue it; 3 if it does not."""
    assert shell("budgets").returncode == 0
    kept = json.loads(shell.heads.read_text())
    (where,) = [name for name in kept if name.endswith(".sock")]
    shell.server.apply(budget("team-z"))
    assert shell("budgets").returncode == 0
    assert json.loads(shell.heads.read_text())[where]["size"] > kept[where]["size"]
    for lie in ({"root": "0" * 64}, {"size": 10**6}, {"ledger": "another:0"}):
        shell.heads.write_text(json.dumps({where: {**kept[where], **lie}}))
        noticed = shell("budgets")
        assert (noticed.returncode, "ledger" in noticed.stderr) == (3, True), lie
    shell.heads.unlink()
    assert shell("budgets").returncode == 0


def test_completion_and_help(shell: Shell) -> None:
    """Every shell gets a script that completes commands; every command has help."""
    for name in ("bash", "zsh", "fish"):
        assert "_FAIRLEAD_COMPLETE" in shell("completion", name).stdout
    words = {"COMP_WORDS": "fairlead sp", "COMP_CWORD": "1", "_FAIRLEAD_COMPLETE": "bash_complete"}
    assert "sponsors" in shell(**words).stdout
    listed = shell("--help").stdout
    for name in ("apply", "submit", "plan", "owes", "report", "tokens", "up"):
        assert name in listed
    assert "fairlead submit -f run.yaml" in shell("submit", "--help").stdout
