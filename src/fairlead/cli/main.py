"""The `fairlead` command: finds the subcommand, turns every kind of "no" into its exit code."""

import errno
import importlib
import os
import sys
import traceback
from typing import TYPE_CHECKING, ClassVar, TextIO

import click

from fairlead import __version__
from fairlead.core.invariant import InvariantBroken
from fairlead.ports.faults import Fault, PermanentFault

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}
EXIT_REFUSED, EXIT_BAD_INPUT, EXIT_FAULT, EXIT_BUG, EXIT_INTERRUPTED = 1, 2, 3, 70, 130


class LazyGroup(click.Group):
    """A group whose commands live in modules of their own, imported on use (start-up: 60 ms)."""

    MODULES: ClassVar[dict[str, tuple[str, str]]] = {
        "apply": ("fairlead.cli.objects:apply", "create or change budgets, runs, nodes, …"),
        "audit": ("fairlead.cli.audit", "read the ledger, prove and verify what is in it"),
        "budgets": ("fairlead.cli.tables:budgets", "what every envelope grants, uses, has left"),
        "cancel": ("fairlead.cli.runs:cancel", "end runs"),
        "completion": ("fairlead.cli.completion", "print the completion script of a shell"),
        "cordon": ("fairlead.cli.runs:cordon", "place nothing new on nodes"),
        "decide": ("fairlead.cli.decide", "run one decision by hand, as a function"),
        "delete": ("fairlead.cli.objects:delete", "remove objects that nothing uses"),
        "demo": ("fairlead.cli.demo", "watch the CPU market live, in virtual time"),
        "describe": ("fairlead.cli.objects:describe", "show one object in full, with its events"),
        "doctor": ("fairlead.cli.doctor", "say what this machine can do, and how to cure the rest"),
        "drain": ("fairlead.cli.runs:drain", "cordon nodes and take their runs off"),
        "explain": ("fairlead.cli.plans:explain", "say why an object is as it is"),
        "get": ("fairlead.cli.objects:get", "list budgets, runs, nodes, …, or show one"),
        "heads": ("fairlead.cli.heads_list", "the ledgers that you have seen, to notice changes"),
        "leases": ("fairlead.cli.tables:leases", "which run holds which devices, and who pays"),
        "logs": ("fairlead.cli.follow:logs", "print what a run wrote"),
        "node": ("fairlead.cli.node", "govern the CPU of this machine's cgroups"),
        "owes": ("fairlead.cli.tables:owes", "who owes whom"),
        "pause": ("fairlead.cli.runs:pause", "stop runs in place"),
        "plan": ("fairlead.cli.plans:plan", "who would pay for a run, or what would fix it"),
        "replay": ("fairlead.cli.replay", "decide a recorded decision again, compare the bytes"),
        "report": ("fairlead.cli.report:report", "GPU-hours for chargeback, and idle devices"),
        "reserve": ("fairlead.cli.reserve:reserve", "reserve a time for a run"),
        "resolve": ("fairlead.cli.resolve:resolve", "have runs give way, or see who would"),
        "resume": ("fairlead.cli.runs:resume", "let paused runs go on"),
        "runs": ("fairlead.cli.runs:runs", "offer your runs to give way, or shrink them"),
        "sim": ("fairlead.cli.sim", "play a scenario against the real decision code"),
        "sponsors": ("fairlead.cli.tables:sponsors", "who lends to an owner"),
        "submit": ("fairlead.cli.objects:submit", "submit runs"),
        "tokens": ("fairlead.cli.access:tokens", "make, list and revoke tokens for HTTP"),
        "traffic": ("fairlead.cli.traffic", "govern a service's connections and its door"),
        "uncordon": ("fairlead.cli.runs:uncordon", "place on nodes again"),
        "up": ("fairlead.cli.up", "run the embedded control plane"),
        "users": ("fairlead.cli.access:users", "say which user acts for which owners"),
        "watch": ("fairlead.cli.follow:watch", "print what happens, as it happens"),
        "whoami": ("fairlead.cli.access:whoami", "say who the server takes you for"),
    }

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in a fixed order."""
        return sorted(self.MODULES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the module of `cmd_name` and take its `command`, or what is named after `:`."""
        if cmd_name not in self.MODULES:
            return None
        module, _, name = self.MODULES[cmd_name][0].partition(":")
        command = getattr(importlib.import_module(module), name or "command")
        return command if isinstance(command, click.Command) else None

    def shell_complete(self, ctx: click.Context, incomplete: str) -> "list[CompletionItem]":
        """Complete commands from the table: a shell that completes must not import them all."""
        from click.shell_completion import CompletionItem

        found = [
            CompletionItem(name, help=text)
            for name, (_, text) in sorted(self.MODULES.items())
            if name.startswith(incomplete)
        ]
        return [*found, *click.Command.shell_complete(self, ctx, incomplete)]

    def invoke(self, ctx: click.Context) -> object:
        """Run the command; a reader that went away (`| head`) is not an error."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            silence(sys.stdout)
            return ctx.exit(0)
        except OSError as error:
            if error.errno not in _FULL:
                raise
            silence(sys.stdout)
            raise PermanentFault(f"cannot write the answer: {error.strerror}") from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands from the table, without importing any of them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, self.MODULES[name][1]) for name in self.list_commands(ctx)])


def silence(stream: TextIO) -> None:
    """Python would try to flush once more at exit: give it somewhere to flush to."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


@click.command(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="fairlead")
def main() -> None:
    """Fairlead leads scarce compute fairly: GPU budgets, node CPU and service traffic.

    Every decision is a pure function of a recorded snapshot. Exit codes: 0 done, 1 refused,
    2 bad usage or bad input, 3 fault, 70 bug.
    """


def run() -> None:
    """Entry point of the console script."""
    sys.exit(_run())


def _run() -> int:
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed by whoever started us: nobody there
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 - for as long as we run
    try:
        code = main.main(prog_name="fairlead", standalone_mode=False)
    except click.exceptions.Abort:
        return EXIT_INTERRUPTED
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except Fault as error:
        click.echo(f"fault: {error}", err=True)
        return EXIT_FAULT
    except InvariantBroken as error:
        click.echo(f"bug: {error} (please report this with the input that led to it)", err=True)
        return EXIT_BUG
    except Exception:  # noqa: BLE001 - the last resort: any other exception is a bug of ours
        traceback.print_exc()
        click.echo("bug: please report this with the input that led to it", err=True)
        return EXIT_BUG
    return code if isinstance(code, int) else 0
