"""`run`, `submit`, `wait` and `logs`: a command as in the shell, on leased GPUs."""

import os
import pty
import select
import signal
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import click
import pytest

from fairlead.cli.client import Client
from fairlead.cli.gpu.jobs import JobRequest, chosen, manifests, passed_environment, read_array
from fairlead.cli.gpu.run import run_time
from fairlead.cli.gpu.sbatch import read_script
from fairlead.cli.input import BadFile
from tests.api.servers import budget, manifest, node, run, serving, short_folder
from tests.cli.shells import FAIRLEAD, Shell


def popen(shell: Shell, *arguments: str) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [*FAIRLEAD, *arguments], stdout=pipe, stderr=pipe, text=True, env=shell.environment()
    )


def test_a_command_is_as_in_the_shell(shell: Shell, tmp_path: Path) -> None:
    """Directory, umask, PATH, the list of variables, the exit code; a secret by its file only."""
    secret = tmp_path / "token"
    secret.write_text("s3cret\n")
    script = 'pwd; umask; echo "$PATH|$LC_FOO|$OTHER|$HIDDEN|$KEY|$FAIRLEAD_WIDTH"; exit 7'
    words = ("--name", "like", "-G", "2", "-t", "1h", "--env", "OTHER", "--chdir", str(tmp_path))
    before = os.umask(0o077)
    try:
        done = shell(
            *("run", *words, "--secret", f"KEY={secret}", "--", "sh", "-c", script),
            **{"PATH": "/odd:/usr/bin:/bin", "LC_FOO": "x", "OTHER": "y", "HIDDEN": "z"},
        )
    finally:
        os.umask(before)
    assert done.returncode == 7, done
    assert done.stdout == f"{tmp_path}\n0077\n/odd:/usr/bin:/bin|x|y||s3cret|2\n"
    kept = shell.server.ok("GET", "/v1/objects/Run/like")["spec"]
    assert "s3cret" not in str(kept)
    assert (kept["owner"], kept["flavor"], kept["duration"]) == ("team-a", "H100", "1h")
    away = shell("run", "--chdir", str(tmp_path / "away"), "--", "true")
    assert (away.returncode, "does not exist" in away.stderr) == (2, True)
    missing = shell("run", "--name", "none", "--", "no-such-program")
    assert missing.returncode == 127
    assert "command not found: no-such-program" in missing.stderr


def test_who_and_what_is_asked_only_where_several_fit(shell: Shell) -> None:
    """The error lists those that fit; a user that acts for no owner is told what to ask for."""
    server = shell.server
    server.apply(
        manifest("Node", "cold", flavor="A100", devices=1),
        budget("team-b", flavor="A100"),
        budget("team-c", flavor="H100"),
    )
    try:
        done = shell("submit", "--dry-run", "--", "true")
        assert done.returncode == 2
        assert "say which with --owner team-a|team-b|team-c" in done.stderr
        shell.ok("submit", "--owner", "team-b", "--dry-run", "--", "true")
        many = shell("submit", "--owner", "team-b", "--gpus", "3", "--dry-run", "--", "true")
        assert "no flavor here has 3 GPUs for you; there are: A100 (1), H100" in many.stderr
    finally:
        shell.ok("delete", "budget/team-b", "budget/team-c", "node/cold")


def test_a_run_can_wait_for_a_node_that_is_cordoned(shell: Shell) -> None:
    """Maintenance ends: a submit that names no flavor is not refused meanwhile."""
    shell.ok("cordon", "box")
    try:
        shell.ok("submit", "--gpus", "2", "--dry-run", "--", "true")
    finally:
        shell.ok("uncordon", "box")


def test_logs_name_the_file_that_a_run_writes_to(shell: Shell, tmp_path: Path) -> None:
    """As `#SBATCH --output` said: a run without output would look as if it had printed none."""
    script = tmp_path / "job.sh"
    output = tmp_path / "filed.out"
    script.write_text(f"#!/bin/sh\n#SBATCH --output={output} --job-name=filed\necho hello\n")
    shell.ok("submit", str(script))
    (name,) = [name for name in shell.ok("get", "runs", "-o", "name").split() if "filed" in name]
    shell.ok("wait", name, "--for=ended", "--timeout", "60s")
    assert f"has its output in {output}; it is " in shell("logs", name).stderr
    assert output.read_text() == "hello\n"


def test_an_admin_without_a_budget_is_told_how_to_make_one() -> None:
    """Not to ask the operator: it is one."""
    replies = {"/v1/whoami": {"user": "root", "admin": True, "owners": []}, "/v1/budgets": []}
    client = SimpleNamespace(get=replies.get, objects=lambda _kind: [])
    with pytest.raises(click.UsageError, match=r"there is no budget yet.*fairlead apply"):
        chosen(cast(Client, client), JobRequest(command=("true",)))
    replies["/v1/whoami"] = {"user": "ada", "admin": False, "owners": []}
    with pytest.raises(click.UsageError, match="ask the operator for `fairlead users bind ada"):
        chosen(cast(Client, client), JobRequest(command=("true",)))


@pytest.mark.parametrize(
    ("text", "duration"),
    [("90m", "90m"), ("2:00:00", "7200s"), ("1-12", "129600s"), ("30:00", "1800s")],
)
def test_a_time_is_a_duration_or_as_in_slurm(text: str, duration: str) -> None:
    assert run_time(text) == duration


@pytest.mark.parametrize("text", ["2", "2x", "", "1:x", "0:00", "367d", "999999999999h"])
def test_a_time_without_a_unit_or_out_of_range_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match=r"2:00:00, more than 0 and at most 366d"):
        run_time(text)


def test_ctrl_c_reaches_the_command_and_twice_cancels(shell: Shell) -> None:
    """The first is the command's own to handle; a run that ignores it is cancelled by the next."""
    polite = 'trap "echo INT; exit 9" INT; echo ready; while :; do sleep 0.05; done'
    client = popen(shell, "run", "--name", "polite", "--", "sh", "-c", polite)
    assert client.stdout is not None
    assert client.stdout.readline() == "ready\n"
    client.send_signal(signal.SIGINT)
    rest, _ = client.communicate(timeout=30)
    assert (client.returncode, rest) == (9, "INT\n")
    rude = 'trap "" INT; trap "exit 4" TERM; echo ready; while :; do sleep 0.05; done'
    client = popen(shell, "run", "--name", "rude", "--", "sh", "-c", rude)
    assert client.stdout is not None
    assert client.stdout.readline() == "ready\n"
    client.send_signal(signal.SIGINT)
    shell.server.until("heard", lambda: _interrupts(shell, "rude"))
    client.send_signal(signal.SIGINT)
    client.communicate(timeout=30)
    assert client.returncode == 4
    assert shell.server.status("Run", "rude")["reason"] == "Cancelled"


def _interrupts(shell: Shell, run: str) -> bool:
    return any(
        "keys.json" in each.name for each in (shell.server.folder / "runs").glob(f"jobs/{run}*/*")
    )


def test_a_terminal_is_typed_into(shell: Shell) -> None:
    """`-i`: a real terminal of the same size; without one on our side it is refused."""
    refused = shell("run", "-i", "--", "sh")
    assert refused.returncode == 2
    assert "needs a terminal" in refused.stderr
    ours, theirs = pty.openpty()
    script = "test -t 0 && test -t 1 && stty size; read line; echo got $line; exit 3"
    command = [*FAIRLEAD, "run", "-i", "--name", "shell", "--", "sh", "-c", script]
    client = subprocess.Popen(
        command,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=shell.environment(COLUMNS="", LINES=""),
    )
    os.close(theirs)
    seen, deadline, typed = b"", time.monotonic() + 30, False
    while time.monotonic() < deadline:
        if select.select([ours], [], [], 0.2)[0]:
            try:
                seen += os.read(ours, 4096)
            except OSError:
                break
        if b"80\r\n" in seen and not typed:
            os.write(ours, b"hello\r")
            typed = True
    assert client.wait(timeout=30) == 3, seen
    assert b"got hello" in seen
    status = shell.server.send("POST", "/v1/runs/shell/keyboard", {"interrupt": True})
    assert (status.status, status.code) == (409, "NotRunning")
    bad = shell.server.send("POST", "/v1/runs/shell/keyboard", {"text": "%"})
    assert (bad.status, bad.json["error"]["path"]) == (422, "text")


def test_following_survives_a_restart_of_the_control_plane(tmp_path: Path) -> None:
    """No byte lost, none twice; and the exit code is the run's."""
    gate = tmp_path / "gate"
    script = f"seq 1 2000; while [ ! -e {gate} ]; do sleep 0.05; done; seq 2001 4000; exit 5"
    with short_folder() as folder:
        with serving(folder) as server:
            shell = Shell(server, tmp_path / "heads.json")
            server.apply(node(), budget("team-a"), run("long", command=["sh", "-c", script]))
            client = popen(shell, "logs", "-f", "--exit-code", "long")
            waiter = popen(shell, "wait", "run/long", "--for=ended", "--exit-code")
            assert client.stdout is not None
            first = [client.stdout.readline() for _ in range(2000)]
        gate.touch()
        with serving(folder):
            rest, _ = client.communicate(timeout=60)
            told, _ = waiter.communicate(timeout=60)
    assert "".join(first) + rest == "".join(f"{n}\n" for n in range(1, 4001))
    assert (client.returncode, waiter.returncode) == (5, 5)
    assert told == "run/long Failed (Exited): the command ended with 5\n"


def test_the_output_of_the_start_before(shell: Shell) -> None:
    """`--previous`, where a failed command was started again; and `wait` for what never comes."""
    script = "echo attempt; exit 1"
    shell.ok("submit", "--name", "again", "--retry", "1", "--", "sh", "-c", script)
    refused = shell("wait", "run/again", "--timeout", "30s")
    assert refused.returncode == 1
    assert "run/again is not completed: Failed (Exited)" in refused.stderr
    assert shell.ok("logs", "again", "--previous") == "attempt\n"
    shell.ok("submit", "--name", "once", "--", "true")
    shell.ok("wait", "run/once")
    missing = shell("logs", "once", "--previous")
    assert (missing.returncode, "did you mean" in missing.stderr) == (2, False)
    shell.server.apply(run("never", gpus=99))
    late = shell("wait", "run/never", "--for", "started", "--timeout", "1s")
    assert (late.returncode, "timeout; Pending" in late.stderr) == (1, True)


def test_a_name_is_used_once(shell: Shell, tmp_path: Path) -> None:
    """A second `run` would print the first one's output and exit code, and run nothing. A manifest
    that says what is so already is applied again."""
    count = tmp_path / "count"
    words = ("--name", "only", "--", "sh", "-c", f"echo x >> {count}; exit 4")
    assert shell("run", *words).returncode == 4
    for command in ("run", "submit"):
        again = shell(command, *words)
        assert (again.returncode, again.stdout) == (1, ""), again
        assert again.stderr == (
            "refused: the name 'only' is taken by a run that is Failed: give another name, or free "
            "it with `fairlead delete run/only`\n"
        )
    assert count.read_text() == "x\n"
    same = shell.ok("get", "run", "only", "-o", "yaml")
    assert shell.ok("apply", "-f", "-", input=same) == "run/only unchanged\n"
    shell.ok("delete", "run/only")
    assert shell("run", *words).returncode == 4


def test_the_name_of_an_array_means_all_of_its_tasks(shell: Shell, tmp_path: Path) -> None:
    """For --after, `wait` and `cancel`; a run and an array never share a name."""
    gate, log = tmp_path / "gate", tmp_path / "log"
    task = f"while [ ! -e {gate} ]; do sleep 0.05; done; echo $SLURM_ARRAY_TASK_ID >> {log}"
    shell.ok("submit", "--array", "8-10%1", "--name", "many", "--", "sh", "-c", task)
    shell.ok("submit", "--name", "merge", "--after", "many", "--", "sh", "-c", f"wc -l < {log}")
    after = shell.server.ok("GET", "/v1/objects/Run/merge")["spec"]["after"]
    assert [row["run"] for row in after] == ["many-8", "many-9", "many-10"]
    listed = shell.ok("get", "runs", "-l", "fairlead.dev/array=many", "-o", "name")
    assert sorted(listed.split()) == ["run/many-10", "run/many-8", "run/many-9"]
    for words, other in (
        (("run", "--name", "many", "--", "true"), "an array"),
        (("submit", "--array", "1-2", "--name", "many", "--", "true"), "an array"),
        (("submit", "--array", "1-2", "--name", "merge", "--", "true"), "a run"),
    ):
        taken = shell(*words)
        assert (taken.returncode, f"is taken by {other}" in taken.stderr) == (1, True), taken
    missing = shell("logs", "many")
    assert missing.returncode == 2
    assert "it is an array of 3 tasks: name one of them" in missing.stderr
    gate.touch()
    said = shell.ok("wait", "run/many", "--for=ended", "--timeout", "60s")
    assert [line.split()[0] for line in said.splitlines()] == [f"run/many-{n}" for n in (8, 9, 10)]
    shell.ok("wait", "merge", "--timeout", "60s")
    assert shell.ok("logs", "merge").strip() == "3"
    partly = shell("cancel", "merge", "marge", "--dry-run")
    assert (partly.returncode, partly.stdout) == (2, ""), "nothing is done where a name is wrong"
    assert "did you mean 'merge'?" in partly.stderr
    over = shell("cancel", "many")
    assert (over.returncode, over.stderr) == (
        1,
        "refused: array 'many' has ended, all of its 3 tasks\n",
    )


def test_an_array_is_cancelled_from_its_end(shell: Shell, tmp_path: Path) -> None:
    """Else a task would start each time that the one it waits for is gone."""
    started = tmp_path / "started"
    wait = f"echo x >> {started}; exec sleep 60"
    shell.ok("submit", "--array", "0-2%1", "--name", "row", "--", "sh", "-c", wait)
    shell.ok("wait", "row-0", "--for=started", "--timeout", "60s")
    preview = shell.ok("cancel", "row", "--dry-run")
    assert [line for line in preview.splitlines() if line.startswith("run/")] == [
        f"run/row-{n} is being cancelled (dry run)" for n in (2, 1, 0)
    ]
    shell.ok("cancel", "row")
    shell("wait", "row", "--for=ended", "--timeout", "60s")
    phases = [shell.server.status("Run", f"row-{n}")["reason"] for n in range(3)]
    assert phases == ["Cancelled"] * 3
    assert len(started.read_text().splitlines() if started.exists() else []) <= 1


# -- what a command line and a script come to ------------------------------------------------------


@pytest.fixture
def script(tmp_path: Path) -> Path:
    return tmp_path / "Job 1.sh"


def test_directives_become_a_run_and_the_others_are_named(script: Path) -> None:
    """As sbatch reads them: before the first command, `--a=b`, `--a b` and short ones."""
    script.write_text(
        "#!/bin/bash\n#SBATCH --gres=gpu:h100:2 -t 1-2:30\n#SBATCH --job-name=My.Job # x\n"
        "#SBATCH -d afterok:a:b,afterany:c --output=%x-%a.log\n#SBATCH --mem 4G --exclusive\n"
        "#SBATCH -N1 -c 8\n"
        "#SBATCH -a 0-6:2%2\n\necho hello\n#SBATCH --gpus=9\n"
    )
    said: list[str] = []
    job = read_script([str(script), "--epochs", "3"], said.append)
    assert (job.gpus, job.flavor, job.time, job.title) == (2, "H100", "95400s", "my.job")
    assert job.after == (("a", "afterOK"), ("b", "afterOK"), ("c", "afterAny"))
    assert said == [f"warning: {script}, line 5: --exclusive is not carried over"]
    assert (job.cpus, job.memory) == (8, "4Gi")
    assert job.command[0] == "/bin/bash"
    assert job.command[-3:] == (str(script), "--epochs", "3")
    made = manifests(JobRequest(**{**_fields(job), "name": "m"}))
    assert [each["metadata"]["name"] for each in made] == ["m-0", "m-2", "m-4", "m-6"]
    third = made[2]["spec"]
    assert third["after"][-1] == {"run": "m-0", "condition": "afterAny"}
    assert third["env"]["SLURM_ARRAY_TASK_ID"] == "4"
    assert "my.job-4.log" in third["command"]


def _fields(job: JobRequest) -> dict[str, object]:
    return {name: getattr(job, name) for name in job.__dataclass_fields__}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("echo hello\n", "must begin with #!"),
        ("#!/usr/bin/perl\n", "'perl' takes no script as an argument"),
        ("#!/bin/sh\n#SBATCH --gpus=some\n", "line 2: --gpus: must be a number of GPUs"),
        ("#!/bin/sh\n#SBATCH --time=soon\n", "line 2: --time: must be like 90"),
        ("#!/bin/sh\n#SBATCH --time=0\n", "line 2: --time: must be more than nothing"),
        ('#!/bin/sh\n#SBATCH --job-name="x\n', "line 2: cannot be read as words of a shell"),
        ('#!/bin/sh "\n', "line 1: cannot be read as words of a shell"),
        (f"#!/bin/sh\n#SBATCH --gpus={'9' * 5000}\n", "--gpus: must be a number of GPUs"),
        (f"#!/bin/sh\n#SBATCH --time={'9' * 5000}\n", "--time: must be like 90"),
        (f"#!/bin/sh\n#SBATCH --mem={'9' * 5000}\n", "--mem: must be like 512M"),
        (f"#!/bin/sh\n#SBATCH -c {'9' * 5000}\n", "must be a number"),
        ("#!/bin/sh\n#SBATCH --dependency=singleton\n", "must be afterok:RUN or afterany:RUN"),
        ("#!/bin/sh\n" + "#" * 100_000, "at most 100000 bytes"),
    ],
)
def test_a_bad_script_is_refused_with_its_line(script: Path, text: str, problem: str) -> None:
    script.write_text(text)
    with pytest.raises(BadFile, match=problem.replace("+", r"\+")):
        read_script([str(script)], print)


@pytest.mark.parametrize("text", ["", "a", "3-1", "0-5000", "1,1", "0-3%0", "0-3%x", "0-4:0"])
def test_a_bad_array_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="--array"):
        read_array(text)


def test_only_listed_variables_pass() -> None:
    """The ledger keeps what passes: a token in the environment must not."""
    given = {"PATH": "/bin", "LC_ALL": "C", "WANDB_API_KEY": "k", "CONDA_PREFIX": "/c", "TZ": ""}
    assert passed_environment(given) == {"CONDA_PREFIX": "/c", "LC_ALL": "C", "PATH": "/bin"}
