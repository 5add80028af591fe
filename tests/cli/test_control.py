"""The control plane's commands: outputs, exit codes, errors with the field, heads that are kept."""

import json
import threading
from pathlib import Path

import pytest
import yaml

from fairlead.cli.client import Client
from tests.api.servers import budget, manifest, run
from tests.cli.shells import Shell
from tests.e2e.planes import documents


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


def test_a_list_has_every_page(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server answers with a page; commands list all of them, each object once."""
    monkeypatch.setattr("fairlead.cli.client.PAGE", 2)
    made = [f"many-{n}" for n in range(5)]
    shell.server.apply(*(manifest("Node", name, flavor="H100", devices=1) for name in made))
    got = json.loads(shell.ok("get", "nodes", "-o", "json"))
    assert [node["metadata"]["name"] for node in got] == ["box", *made]
    for name in made:
        shell.server.ok("DELETE", f"/v1/objects/Node/{name}")


def test_exit_codes_and_the_offending_field(shell: Shell) -> None:
    """0 done, 1 refused, 2 bad usage or input, 3 fault; one line that says what and where."""
    bad = shell("apply", "-f", "-", input=documents(budget("new"), run("x", gpus=0)))
    assert (bad.returncode, bad.stderr) == (
        2,
        "error: standard input, document 2 (run/x): spec.totalGPUs: must be an integer between 1 "
        "and 100000, got 0\n",
    )
    assert shell("get", "budget", "new").returncode == 2
    assert shell("apply", "-f", "-", input="a: [").returncode == 2
    assert shell("apply", "-f", "-", input="").returncode == 2
    assert shell("submit", "-f", "-", input=documents(budget("new"))).returncode == 2
    assert shell("get", "pods").returncode == 2
    assert shell("explain", "train").returncode == 2
    asked = shell("plan", "-f", "-", input=documents(run("x", gpus=99)))
    assert (asked.returncode, asked.stdout.split(": ")[:2]) == (
        1,
        ["not funded", "ConcurrencyCapExceeded"],
    )
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
    events = shell.ok("watch", "--after", "0", "--limit", "3", "-o", "json").splitlines()
    assert [json.loads(line)["seq"] for line in events] == [1, 2, 3]
    about = shell.ok("watch", "run/moved", "--after", "0", "--limit", "2", "-o", "yaml")
    assert [each["object"]["name"] for each in yaml.safe_load_all(about)] == ["moved", "moved"]
    drained = shell.ok("watch", "--after", "0", "--limit", "4", "--owner", "team-a")
    assert len(drained.splitlines()) == 4


def test_every_writing_verb_has_a_dry_run(shell: Shell) -> None:
    """It says what would happen, and nothing happens."""
    shell.server.apply(run("dry-live", gpus=2, duration="1h"))
    running = shell.server
    running.until("running", lambda: running.status("Run", "dry-live")["phase"] == "Running")
    size = running.ok("GET", "/v1/head")["size"]
    manifest = documents(run("dry"), budget("dry"))
    shown = shell.ok("apply", "-f", "-", "--dry-run", input=manifest)
    assert shown.splitlines()[0] == "run/dry created (dry run)"
    assert "starts now on" in shown
    drained = shell.ok("drain", "box", "--dry-run").splitlines()
    assert drained[0] == "node/box drained (dry run)"
    assert drained[1].startswith("  run dry-live would be Pending (Drained)")
    for arguments in (
        ("submit", "-f", "-"),
        ("delete", "node/box"),
        ("cancel", "dry-live"),
        ("pause", "run/dry-live"),
        ("cordon", "box"),
        ("uncordon", "box"),
        ("users", "bind", "ada", "--owner", "team-a"),
        ("tokens", "create", "--user", "ada"),
    ):
        given = documents(run("dry")) if arguments[0] == "submit" else None
        done = shell(*arguments, "--dry-run", input=given)
        if arguments[0] == "delete":
            assert (done.returncode, "drain it first" in done.stderr) == (1, True)
        else:
            assert (done.returncode, "dry run" in done.stdout + done.stderr) == (0, True), done
    assert running.ok("GET", "/v1/head")["size"] == size
    shell.ok("cancel", "dry-live")


def test_every_read_command_speaks_json_and_yaml(shell: Shell) -> None:
    """The same data in both; so do the results of verbs."""
    shell.server.apply(run("spoken", duration="1h"))
    running = shell.server
    running.until("running", lambda: running.status("Run", "spoken")["phase"] == "Running")
    for arguments in (
        ("get", "runs"),
        ("get", "run", "spoken"),
        ("describe", "run/spoken"),
        ("budgets",),
        ("explain", "run/spoken"),
        ("explain", "budget/team-a"),
        ("explain", "node/box"),
        ("sponsors", "--owner", "team-a", "--flavor", "H100"),
        ("owes",),
        ("whoami",),
        ("users", "list"),
        ("tokens", "list"),
        ("heads", "list"),
        ("pause", "spoken", "--dry-run"),
        ("delete", "run/spoken", "--dry-run"),
        ("cordon", "box", "--dry-run"),
        ("users", "bind", "x", "--dry-run"),
        ("report", "--by", "owner"),
    ):
        told = {}
        for output in ("json", "yaml", "table"):
            done = shell(*arguments, "-o", output)
            told[output], refused = done.stdout, arguments[0] == "delete"
            assert done.returncode == (1 if refused else 0), (arguments, output)
        if not refused:
            documents_ = list(yaml.safe_load_all(told["yaml"]))
            found = json.loads(told["json"])
            one = documents_[0] if len(documents_) == 1 else documents_
            if isinstance(found, list) and not isinstance(one, list):
                one = [one]
            assert _shape(one) == _shape(found), arguments
    shell.ok("cancel", "spoken")


def _shape(value: object) -> object:
    """What a document is made of; its numbers grow from one call to the next."""
    if isinstance(value, dict):
        return {key: _shape(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_shape(each) for each in value]
    return type(value).__name__ if not isinstance(value, str) else "str"


def test_what_is_empty_or_misspelt_is_said(shell: Shell) -> None:
    """On stderr, beside an empty table: what was asked for, and what there is."""
    assert "owners are team-a" in shell("budgets", "--owner", "tem-a").stderr
    assert "team-x holds no lease" in shell("leases", "--owner", "team-x").stderr
    assert (
        "lending: {allow: true" in shell("sponsors", "--owner", "team-a", "--flavor", "H100").stderr
    )
    assert "no owner has ever borrowed" in shell("owes").stderr
    shell.server.apply(run("train-7", gpus=99))
    for arguments in (
        ("get", "run", "train-8"),
        ("describe", "run/train-8"),
        ("explain", "run/train-8"),
        ("cancel", "train-8"),
        ("logs", "train-8"),
        ("delete", "run/train-8"),
    ):
        done = shell(*arguments)
        assert (done.returncode, done.stderr) == (
            2,
            "error: there is no Run 'train-8'; did you mean 'train-7'?\n",
        ), arguments
    silent = shell("logs", "train-7")
    assert (silent.returncode, silent.stdout) == (0, "")
    shell.server.until("refused", lambda: shell.server.status("Run", "train-7")["refusal"])
    assert (
        "has no output; it is Pending (ConcurrencyCapExceeded)" in shell("logs", "train-7").stderr
    )
    assert (
        "FAIRLEAD_TOKEN_FILE"
        in shell(
            "cancel", "train-7", FAIRLEAD_SERVER=f"http://127.0.0.1:{shell.server.port}"
        ).stderr
    )
    shell.ok("delete", "run/train-7")


@pytest.mark.parametrize(
    ("server", "said"),
    [
        ("http://", "names no host"),
        ("http://127.0.0.1:99999", "ort"),
        ("http://127.0.0.1:1", "no control plane answers"),
    ],
)
def test_a_server_that_cannot_be(shell: Shell, server: str, said: str) -> None:
    """Neither a traceback nor a guess: what is wrong with the address."""
    done = shell("budgets", "--server", server)
    assert done.returncode in (2, 3)
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_a_token_is_never_sent_in_the_open(shell: Shell, tmp_path: Path) -> None:
    """Only to this machine, or over https."""
    (tmp_path / "token").write_text("flt_x")
    done = shell(
        "budgets",
        FAIRLEAD_SERVER="http://192.0.2.1:8470",
        FAIRLEAD_TOKEN_FILE=str(tmp_path / "token"),
    )
    assert (done.returncode, "over https or to this machine" in done.stderr) == (2, True)


@pytest.mark.parametrize("held", [b"flt_hush\nsecond", b"\xffflt_hush", b" \n"])
def test_a_file_that_holds_no_token_is_said_and_not_shown(
    shell: Shell, tmp_path: Path, held: bytes
) -> None:
    """It may be a secret all the same."""
    (tmp_path / "token").write_bytes(held)
    done = shell("whoami", FAIRLEAD_TOKEN_FILE=str(tmp_path / "token"))
    assert (done.returncode, "must hold one token" in done.stderr) == (2, True)
    assert "hush" not in done.stderr


def test_an_empty_name_is_no_alarm(shell: Shell) -> None:
    """A slip of the pen must not look like a ledger that was changed."""
    done = shell("get", "run/")
    assert done.returncode == 2, done.stderr


def test_silence_is_no_sign_that_the_server_is_gone(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that says nothing for longer than any request takes is still followed."""
    go = tmp_path / "go"
    command = ["sh", "-c", f"echo one; while [ ! -e {go} ]; do sleep 0.05; done; echo two"]
    shell.server.apply(run("quiet", command=command))
    monkeypatch.setenv("FAIRLEAD_HEADS", str(shell.heads))
    heard = Client(str(shell.server.socket), hasty=True).lines("/v1/runs/quiet/logs", follow=True)
    assert next(heard) == b"one\n"
    waiter = threading.Timer(4, go.touch)  # twice as long as the patience of a request
    waiter.start()
    assert b"".join(heard) == b"two\n"
