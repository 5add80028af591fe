"""The `fairlead` command: finds the subcommand, maps errors to exit codes."""

import errno
import importlib
import os
import sys
from typing import TYPE_CHECKING, ClassVar, TextIO

import click

from fairlead import __version__
from fairlead.cli.terminal import guard
from fairlead.core.invariant import InvariantBroken
from fairlead.ports.faults import Fault, PermanentFault

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}
EXIT_REFUSED, EXIT_BAD_INPUT, EXIT_FAULT, EXIT_BUG, EXIT_INTERRUPTED = 1, 2, 3, 70, 130


# Spellings of 0.1, still accepted: two words in place of one.
FORMER = {
    ("runs", "nominate"): "nominate",
    ("runs", "shrink"): "shrink",
    ("node", "replay"): "replay",
    ("traffic", "replay"): "replay",
}


class LazyGroup(click.Group):
    """A group that imports the module of a command on use (start-up: 60 ms)."""

    MODULES: ClassVar[dict[str, tuple[str, str]]] = {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*self.commands, *self.MODULES])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the module of `cmd_name` and take its `command`, or what is named after `:`."""
        if cmd_name not in self.MODULES:
            return super().get_command(ctx, cmd_name)
        module, _, name = self.MODULES[cmd_name][0].partition(":")
        command = getattr(importlib.import_module(f"fairlead.cli.{module}"), name or "command")
        return command if isinstance(command, click.Command) else None


class Main(LazyGroup):
    """All commands, with one line of help each: listing them imports none."""

    MODULES: ClassVar[dict[str, tuple[str, str]]] = {
        "apply": ("gpu.objects:apply", "Create or change budgets, runs, nodes, …"),
        "audit": ("audit.commands", "Read, prove and verify the ledger"),
        "budgets": ("gpu.budgets:budgets", "Show what each envelope grants, uses and has left"),
        "cancel": ("gpu.objects:cancel", "Cancel runs"),
        "clock": ("gpu.overview:clock", "Compare the clock with ledger time; judge a jump"),
        "completion": ("completion", "Print the completion script of a shell"),
        "cordon": ("gpu.objects:cordon", "Stop placing runs on nodes"),
        "decide": ("decide", "Run one decision: JSON in, JSON out"),
        "delete": ("gpu.objects:delete", "Delete objects that nothing uses"),
        "demo": ("demo", "Watch the CPU market live, in virtual time"),
        "describe": ("gpu.objects:describe", "Show one object in full, with its events"),
        "doctor": ("doctor", "Check what this machine supports and how to fix it"),
        "drain": ("gpu.objects:drain", "Cordon nodes and move their runs off"),
        "explain": ("gpu.plans:explain", "Explain the state of an object"),
        "get": ("gpu.objects:get", "List objects of a kind, or show one"),
        "heads": ("audit.checkpoints", "List or forget ledger checkpoints that you saw"),
        "import": ("importing.commands", "Make budgets from Slurm's or Kueue's"),
        "kube": ("kube.commands", "Run Fairlead on Kubernetes, and clusters for development"),
        "leases": ("gpu.budgets:leases", "Show which run holds which devices, and the payer"),
        "login": ("gpu.access:login", "Print a link that signs a browser in as you"),
        "logs": ("gpu.follow:logs", "Print the output of a run"),
        "node": ("node.commands", "Govern CPU limits of this machine's cgroups"),
        "nominate": ("gpu.objects:nominate", "Nominate your runs to be preempted first"),
        "owes": ("gpu.budgets:owes", "Show who owes whom"),
        "pause": ("gpu.objects:pause", "Pause runs; they keep their devices"),
        "plan": ("gpu.plans:plan", "Show who would pay for a run, or what would fund it"),
        "run": ("gpu.run:run", "Run a command on GPUs: its output, its exit code"),
        "replay": ("replay", "Run recorded decisions again and compare"),
        "report": ("gpu.budgets:report", "Report GPU-hours for chargeback, and idle devices"),
        "reserve": ("gpu.preemption:reserve", "Reserve a start time for a run"),
        "resolve": ("gpu.preemption:resolve", "Preempt runs to free GPUs, or preview it"),
        "resume": ("gpu.objects:resume", "Resume paused runs"),
        "sessions": ("gpu.access:sessions", "List and end sessions of browsers"),
        "shrink": ("gpu.objects:shrink", "Shrink a malleable run to fewer GPUs"),
        "sim": ("sim", "Simulate the governors in virtual time"),
        "sponsors": ("gpu.budgets:sponsors", "Show who lends to an owner"),
        "status": ("gpu.overview:status", "Show the governors, and what needs attention"),
        "submit": ("gpu.run:submit", "Submit a command, a script or manifests"),
        "tokens": ("gpu.access:tokens", "Create, list and revoke tokens for HTTP"),
        "traffic": ("traffic.commands", "Balance and admit a service's connections"),
        "uncordon": ("gpu.objects:uncordon", "Allow placement on nodes again"),
        "up": ("up", "Run the embedded control plane"),
        "users": ("gpu.access:users", "Bind users of this machine to owners"),
        "watch": ("gpu.follow:watch", "Print events as they happen"),
        "wait": ("gpu.follow:wait", "Wait until a run has started or ended"),
        "whoami": ("gpu.access:whoami", "Show your user and owners"),
    }

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, by a former spelling too."""
        present = FORMER.get((args[0], args[1])) if len(args) > 1 else None
        if present is not None:
            args = [present, *("--withdraw" if arg == "--take-back" else arg for arg in args[2:])]
        if args[0] not in self.MODULES:
            from difflib import get_close_matches

            close = get_close_matches(args[0], sorted(self.MODULES), 1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            ctx.fail(f"unknown command {args[0]!r}{hint}")
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> "list[CompletionItem]":
        """Complete commands from the table, without importing them."""
        from click.shell_completion import CompletionItem

        names = [
            CompletionItem(name, help=text)
            for name, (_, text) in sorted(self.MODULES.items())
            if name.startswith(incomplete)
        ]
        return [*names, *click.Command.shell_complete(self, ctx, incomplete)]

    def invoke(self, ctx: click.Context) -> object:
        """Run the command; a closed pipe (`| head`) is not an error."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            silence(sys.stdout)
            return ctx.exit(0)
        except OSError as error:
            if error.errno not in _FULL:
                raise
            silence(sys.stdout)
            raise PermanentFault(f"cannot write the output: {error.strerror}") from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, self.MODULES[name][1]) for name in self.list_commands(ctx)])


def silence(stream: TextIO) -> None:
    """Point a broken stream at /dev/null: Python flushes it once more at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


SETTINGS = {"help_option_names": ["-h", "--help"], "show_default": True}


@click.command(cls=Main, context_settings=SETTINGS)
@click.version_option(__version__, prog_name="fairlead")
def main() -> None:
    """Fairlead shares scarce compute: GPU budgets, node CPU and service traffic.

    Every decision is a pure function of a recorded snapshot. Exit codes: 0 done, 1 refused,
    2 bad usage or bad input, 3 fault, 70 bug.
    """


def run() -> None:
    sys.exit(run_command(main, "fairlead"))


def run_command(command: click.Command, program: str) -> int:
    """Run a program; returns its exit code."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed by the parent process
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 - open until the process ends
    guard()
    try:
        code = command.main(prog_name=program, standalone_mode=False)
    except Exception as error:  # noqa: BLE001 - the last place where one can be told
        return _code_of(error)
    return code if isinstance(code, int) else 0


def _code_of(error: Exception) -> int:
    """Tell what went wrong; the exit code that it has."""
    if isinstance(error, click.exceptions.Abort):
        return EXIT_INTERRUPTED
    if isinstance(error, click.ClickException):
        error.show()
        return error.exit_code
    if isinstance(error, Fault):
        click.echo(f"fault: {error}", err=True)
        return EXIT_FAULT
    culprit = _not_utf8() if isinstance(error, UnicodeEncodeError) else None
    if culprit is not None:
        click.echo(f"Error: {culprit!r} is not UTF-8", err=True)
        return EXIT_BAD_INPUT
    if isinstance(error, InvariantBroken):
        click.echo(f"bug: {error} (please report this with the input that led to it)", err=True)
        return EXIT_BUG
    return _bug(error)


def _bug(error: Exception) -> int:
    import traceback  # 10 ms that no other command pays

    traceback.print_exception(error)
    click.echo("bug: please report this with the input that led to it", err=True)
    return EXIT_BUG


def _not_utf8() -> str | None:
    """The argument, or setting, with bytes that are no text; None if there is none.

    A path may have them. Where a name has them, it cannot be sent, and nothing was."""
    settings = (value for name, value in os.environ.items() if name.startswith("FAIRLEAD_"))
    for text in (*sys.argv[1:], *settings):
        if not text.isascii() and any("\ud800" <= char <= "\udfff" for char in text):
            return text
    return None
