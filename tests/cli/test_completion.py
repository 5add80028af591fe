"""Shell completion in real shells: commands, options, kinds, and the names that the server has."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.api.servers import budget, run
from tests.cli.shells import Shell


@pytest.fixture(scope="module")
def named(shell: Shell, tmp_path_factory: pytest.TempPathFactory) -> Shell:
    """Objects to complete, and `fairlead` on PATH."""
    shell.server.apply(
        budget("team-b"), run("train-1", gpus=99), run("train-2", gpus=99), run("eval", gpus=99)
    )
    folder = tmp_path_factory.mktemp("bin")
    program = folder / "fairlead"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m fairlead "$@"\n')
    program.chmod(0o755)
    os.environ["FAIRLEAD_TEST_BIN"] = str(folder)
    return shell


def in_shell(named: Shell, command: list[str], home: Path) -> list[str]:
    path = f"{os.environ['FAIRLEAD_TEST_BIN']}:{os.environ['PATH']}"
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=named.environment(PATH=path, HOME=str(home), TERM="dumb"),
    )
    assert done.returncode == 0, done.stderr
    return [line.split("\t")[0].strip() for line in done.stdout.splitlines() if line.strip()]


CASES = [
    (["fairlead", "spo"], {"sponsors"}),
    (["fairlead", "get", "r"], {"runs", "reservations"}),
    (["fairlead", "get", "runs", "tr"], {"train-1", "train-2"}),
    (["fairlead", "describe", "run/e"], {"run/eval"}),
    (["fairlead", "describe", "budget/"], {"budget/team-a", "budget/team-b"}),
    (["fairlead", "cancel", "train-1", "ev"], {"eval"}),
    (["fairlead", "budgets", "--owner", "team-"], {"team-a", "team-b"}),
    (["fairlead", "report", "--by", "en"], {"envelope"}),
    (["fairlead", "drain", ""], {"box"}),
    (["fairlead", "nominate", "tr"], {"train-1", "train-2"}),
    (["fairlead", "resolve", "--cap", "team-a"], {"team-a/main"}),
    (["fairlead", "logs", "--fo"], {"--follow"}),
    (["fairlead", "decide", "cpu."], {"cpu.allocate", "cpu.clear"}),
    (["fairlead", "sim", "run", "qu"], {"quiet"}),
    (["fairlead", "traffic", "harness", "un"], {"unhurried"}),
]
IDS = [" ".join(words) for words, _ in CASES]


@pytest.mark.parametrize(("words", "expected"), CASES, ids=IDS)
def test_bash(named: Shell, tmp_path: Path, words: list[str], expected: set[str]) -> None:
    """As bash does it: the script is evaluated, its function called, what it replies is read."""
    quoted = " ".join(f"'{each}'" for each in words)
    script = (
        'eval "$(fairlead completion bash)"; '
        f"COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; "
        '_fairlead_completion fairlead; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    assert set(in_shell(named, ["bash", "--norc", "-c", script], tmp_path)) == expected


@pytest.mark.component("fish")
@pytest.mark.parametrize(("words", "expected"), CASES, ids=IDS)
def test_fish(named: Shell, tmp_path: Path, words: list[str], expected: set[str]) -> None:
    """fish completes a line without a terminal."""
    script = f"fairlead completion fish | source; complete --do-complete '{' '.join(words)}'"
    found = in_shell(named, ["fish", "--no-config", "-c", script], tmp_path)
    assert expected <= set(found)
    assert all(each.startswith(words[-1]) for each in found)


# What is waited for is never what is typed, which the terminal shows too; and nothing is typed
# before the prompt, by which the line editor, not the terminal, has the keys.
ZSH = """
zmodload zsh/zpty
zpty -b shell zsh -f -i
zpty -w shell "PS2=; unset zle_bracketed_paste; autoload -Uz compinit; compinit -u -D"
zpty -w shell 'eval "$(fairlead completion zsh)"; zstyle ":completion:*" list-prompt ""'
zpty -w shell 'LISTMAX=1000; setopt no_always_last_prompt; PS1=REA""DY'
zpty -r -m shell out '*READY*'
zpty -w -n shell $'LINE\\t\\t\\C-U'
zpty -w shell 'print DO""NE'
zpty -r -m shell out '*DONE*'
print -r -- "$out"
"""


@pytest.mark.component("zsh")
@pytest.mark.parametrize(("words", "expected"), CASES, ids=IDS)
def test_zsh(named: Shell, tmp_path: Path, words: list[str], expected: set[str]) -> None:
    """zsh completes on a terminal only, so it gets one: Tab, and what it then shows."""
    script = ZSH.replace("LINE", " ".join(words))
    shown = " ".join(in_shell(named, ["zsh", "-f", "-c", script], tmp_path))
    for each in expected:
        assert each in shown


def test_a_completion_never_gets_in_the_way(named: Shell, tmp_path: Path) -> None:
    """No server, a server that is no server, a broken file of heads: nothing offered, no noise."""
    for server in ("/nowhere/fairlead.sock", "http://127.0.0.1:1", "http://"):
        done = named(
            _FAIRLEAD_COMPLETE="bash_complete",
            COMP_WORDS="fairlead get run ",
            COMP_CWORD="3",
            FAIRLEAD_SERVER=server,
        )
        assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "", ""), server
    broken = tmp_path / "heads.json"
    broken.write_text("{")
    done = named(
        _FAIRLEAD_COMPLETE="bash_complete",
        COMP_WORDS="fairlead get runs ev",
        COMP_CWORD="3",
        FAIRLEAD_HEADS=str(broken),
    )
    assert (done.stdout, done.stderr) == ("plain,eval\n", "")
    assert broken.read_text() == "{"
