"""The two plugins, and their completion.

A command of `fairlead` that asks the control plane gets kubectl's options in place of --server, and
a transport through Kubernetes; it is the same command otherwise.
"""

import copy
import re
import sys
from typing import ClassVar

import click
from click.shell_completion import ShellComplete

from fairlead import __version__
from fairlead.cli.kubectl.target import options
from fairlead.cli.main import SETTINGS, Main, run_command

OWN = {
    "submit": ("kubectl.pods:submit", "Submit runs"),
    "pods": ("kubectl.pods:pods", "Show the pods of a run"),
    "logs": ("kubectl.pods:logs", "Print the output of one rank of a run"),
    "watch": ("kubectl.pods:watch", "Print changes of runs as they happen"),
    "outcome": ("audit.outcomes:outcome", "List, show or export outcomes of preemption"),
    "verify": ("kubectl.verify:verify", "Verify an outcome of preemption"),
}
_RUNS = ("submit", "plan", "explain", "budgets", "leases", "sponsors", "shrink", "resolve")
_NAMED = re.compile(r"(?<=[ `])fairlead (?:audit (?=outcome))?(\w+)")
_NOT_HERE = (
    *("tokens", "users", "login", "sessions", "pause", "resume", "cordon", "uncordon", "drain"),
    *("completion", "run", "wait"),
    *("up", "kube", "node", "traffic", "doctor", "demo", "sim", "decide", "replay"),
)
"""A cluster has its own: RBAC, kubectl cordon, drain, run and wait; pods cannot be paused. What
asks no control plane is `fairlead`'s alone."""


def for_cluster(command: click.Command, group: type["Plugin"]) -> click.Command:
    """The same command, for a cluster."""
    made = copy.copy(command)
    if isinstance(command, click.Group) and isinstance(made, click.Group):
        made.commands = {name: for_cluster(one, group) for name, one in command.commands.items()}
    asks = [param for param in command.params if param.name == "server"]
    own = command.callback is not None and "kubectl" in command.callback.__module__
    if asks or own:
        kept = [param for param in command.params if param.name != "server"]
        made.params = [*kept, *options()]
        made.help = group.as_called(command.help or "")
    return made


class Plugin(Main):
    """Commands of `fairlead`, and those that a cluster has besides."""

    program: ClassVar[str] = "kubectl fairlead"
    MODULES: ClassVar[dict[str, tuple[str, str]]] = {
        **{name: row for name, row in Main.MODULES.items() if name not in _NOT_HERE},
        **OWN,
    }

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        command = super().get_command(ctx, cmd_name)
        return None if command is None else for_cluster(command, type(self))

    @classmethod
    def as_called(cls, text: str) -> str:
        """A text with its commands as they are called here."""
        return _NAMED.sub(cls.spell, text)

    @classmethod
    def spell(cls, named: "re.Match[str]") -> str:
        """A command in a text, as it is called here."""
        word = named[1]
        program = cls.program if word in cls.MODULES else Plugin.program
        return f"{program if word in Plugin.MODULES else 'fairlead'} {word}"


class RunsPlugin(Plugin):
    """What a tenant needs."""

    program: ClassVar[str] = "kubectl runs"
    MODULES: ClassVar[dict[str, tuple[str, str]]] = {
        **{name: Main.MODULES[name] for name in _RUNS},
        **OWN,
    }


def _plugin(group: type[Plugin], text: str) -> click.Group:
    made = group(
        group.program.replace(" ", "-"),
        help=text,
        params=list(options()),
        context_settings=SETTINGS,
    )
    return click.version_option(__version__, prog_name=group.program)(made)


_EXIT_CODES = "Exit codes: 0 done, 1 refused, 2 bad usage or bad input, 3 fault, 70 bug."
runs = _plugin(
    RunsPlugin,
    "Submit and follow GPU runs of a cluster with Fairlead.\n\nFinds the cluster as kubectl does, "
    f"and needs the role `fairlead-tenant` in the namespace. {_EXIT_CODES}",
)
fairlead = _plugin(
    Plugin, f"The commands of `fairlead`, for a cluster.\n\nFinds it as kubectl does. {_EXIT_CODES}"
)


def run_runs() -> None:
    sys.exit(run_command(runs, RunsPlugin.program))


def run_fairlead() -> None:
    sys.exit(run_command(fairlead, Plugin.program))


# -- completion, as kubectl asks for it: `kubectl_complete-runs WORD... LAST` ----------------------

NO_FILES, FILES = 4, 0
"""Directives of kubectl's shell script: complete no file names; or do, where we know nothing."""


def complete(group: click.Group, words: list[str]) -> None:
    """Print what may follow, one on each line with its help, then the directive."""
    *before, last = words or [""]
    asked = ShellComplete(group, {}, group.name or "", "_UNUSED")
    directive = NO_FILES
    for item in asked.get_completions(before, last):
        if item.type in ("file", "dir"):
            directive = FILES
            continue
        click.echo(f"{item.value}\t{item.help}" if item.help else item.value)
    click.echo(f":{directive}")


def complete_runs() -> None:
    complete(runs, sys.argv[1:])


def complete_fairlead() -> None:
    complete(fairlead, sys.argv[1:])
