"""`run` and `submit`: a command, a script with #SBATCH lines, or manifests, as runs."""

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import click

from fairlead.cli.client import Client, ServerError, changes_api, segment
from fairlead.cli.completion import FLAVOR, OWNER
from fairlead.cli.gpu.arrays import refuse_taken, runs_named
from fairlead.cli.gpu.follow import Follower, exit_status
from fairlead.cli.gpu.jobs import JobRequest, chosen, manifests, read_after, read_env, read_secrets
from fairlead.cli.gpu.objects import print_effects
from fairlead.cli.gpu.sbatch import read_script, slurm_time
from fairlead.cli.input import BadFile, read_manifests
from fairlead.cli.main import EXIT_INTERRUPTED
from fairlead.cli.options import Integer, Number, flag, option, server_option
from fairlead.cli.table import Output, cell, note
from fairlead.schema.border import BadInput
from fairlead.schema.times import parse_duration


def run_time(text: str) -> str:
    """A duration, or Slurm's `2:00:00` and `1-12`. A bare number has no unit here."""
    try:
        if ":" in text or "-" in text:
            return slurm_time(text, "TIME")
        parse_duration(text, "TIME")
    except (BadInput, BadFile) as error:
        form = "must be like 90m, 2h, 1h30m or 2:00:00, more than 0 and at most 366d"
        raise click.BadParameter(f"{form}, got {text!r}") from error
    return text


_DASHES = "fairlead.dashes"
_OPTIONS = (
    option("-G --gpus", Integer(1, 100_000), "Number of GPUs [default: 1]."),
    option("-t --time", run_time, "How long it will take, like 90m, 2h or 2:00:00."),
    option("-J --name", str, "An unused name [default: made from the command]."),
    option("--owner", OWNER, "Who pays, if you act for several.", envvar="FAIRLEAD_OWNER"),
    option("--flavor", FLAVOR, "Kind of GPU; needed where several fit."),
    option("--env=NAME[=VALUE]", str, "Pass a variable of your shell (repeatable).", multiple=True),
    option(
        "--secret=NAME=FILE",
        str,
        "A variable from a file, read at start (repeatable).",
        multiple=True,
    ),
    option(
        "-D --chdir=DIR directory",
        click.Path(file_okay=False, exists=True, resolve_path=True),
        "Working directory [default: yours].",
    ),
    option(
        "--after=RUN[:any]",
        str,
        "Start after a run or array (:any: failed too; repeatable).",
        multiple=True,
    ),
    option("-c --cpus", Number(0.001, 4096), "CPUs that it may use."),
    option("--mem=SIZE memory", str, "Memory that it may use, like 16Gi."),
    option("--retry", Integer(0, 1000), "Start again after a failure, this often."),
    option("--borrow=OWNER", OWNER, "Let this owner lend (repeatable, in order).", multiple=True),
)


def _job_options(function: Callable[..., Any]) -> Callable[..., Any]:
    for each in reversed(_OPTIONS):
        function = each(function)
    words = click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[--] COMMAND...")
    return words(function)


class WithCommand(click.Command):
    """Options end at the command, and it is known whether `--` stood before it."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.allow_interspersed_args = False
        ctx.meta[_DASHES] = "--" in args
        return super().parse_args(ctx, args)


def _request(base: JobRequest, values: dict[str, Any]) -> JobRequest:
    """What the options say, on top of what a script says."""
    given = {name: value for name, value in values.items() if value not in (None, (), False)}
    for name, read in (("after", read_after), ("secrets", read_secrets)):
        if name in given:
            given[name] = read(given[name])
    if "env" in given:
        given["env"] = (*base.env, *read_env(given["env"], os.environ))
    fields = {name: getattr(base, name) for name in base.__dataclass_fields__}
    return JobRequest(**{**fields, **given})


def named(client: Client, job: JobRequest) -> JobRequest:
    """The job with the runs that it starts after by name; its own name must be free."""
    refuse_taken(client, job.name, array=job.array is not None)
    after = [(run, how) for name, how in job.after for run in runs_named(client, [name])]
    return replace(job, after=tuple(dict(after).items()))


@click.command("run", cls=WithCommand)
@_job_options
@flag("-i --interactive", "Run on a terminal, and type into it.")
@server_option
def run(
    *, words: tuple[str, ...], interactive: bool, server: str | None, secret: Any, **values: Any
) -> int:
    """Run a command on GPUs: its output, its exit code.

    The command runs as you, in this directory, with your PATH, umask and the usual variables of
    your shell (--env adds others; they are kept in the ledger, so pass secrets with --secret).
    It waits until it is funded and placed. Ctrl-C interrupts it, a second one cancels it. It goes
    on when the control plane restarts, and when this command is killed: `fairlead logs -f NAME`.

    \b
      fairlead run --gpus 2 --time 2h -- python train.py
      fairlead run --gpus 1 -i -- bash
      fairlead run --owner vision --flavor H100 --env WANDB_MODE -- ./sweep.sh
    """
    if not words:
        raise click.UsageError("say which command: fairlead run --gpus 1 -- python train.py")
    if interactive and not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise click.UsageError("-i needs a terminal on standard input and output")
    client = Client(server)
    asked = _request(JobRequest(command=words, terminal=interactive), {**values, "secrets": secret})
    job = named(client, chosen(client, asked))
    (change,) = client.apply([], *manifests(job))
    name = change["object"]["metadata"]["name"]
    if interactive:
        from fairlead.cli.gpu.terminal import attached

        with attached(client, name):
            return _attend(client, name)
    note(f"run/{name} submitted")
    return _attend(client, name)


class _Pressed(Exception):
    """Ctrl-C, or SIGTERM."""


class _Presses:
    """Counts Ctrl-C. Raises at most once each time it is armed: a second one, pressed while the
    first is passed on, is counted and not lost. SIGTERM counts as two: the run is cancelled."""

    def __init__(self) -> None:
        self.count, self.armed = 0, False

    def _hear(self, number: int, _: object) -> None:
        self.count += 2 if number == signal.SIGTERM else 1
        if self.armed:
            self.armed = False
            raise _Pressed

    @contextlib.contextmanager
    def heard(self) -> Iterator[None]:
        numbers = (signal.SIGINT, signal.SIGTERM)
        before = [signal.signal(number, self._hear) for number in numbers]
        try:
            yield
        finally:
            for number, handler in zip(numbers, before, strict=True):
                signal.signal(number, handler)


def _attend(client: Client, name: str) -> int:
    """Print a run's output until it ends; its exit code."""
    follower, presses, passed_on = Follower(client, name, patient=True), _Presses(), 0
    with presses.heard():
        while True:
            try:
                presses.armed = presses.count == passed_on
                if not presses.armed:
                    raise _Pressed
                for data in follower.chunks():
                    sys.stdout.buffer.write(data)
                    sys.stdout.buffer.flush()
                presses.armed = False
                break
            except _Pressed:
                passed_on = presses.count
                _interrupt(client, name, passed_on)
        status = client.get_object("Run", name)["status"]
    if passed_on and status["exitCode"] is None and status["exitSignal"] is None:
        return EXIT_INTERRUPTED
    if status["phase"] != "Completed" and (status["exitReason"] or status["exitCode"] is None):
        note(f"run/{name} {status['phase']} ({status['reason']}): {cell(status['message'])}")
    return exit_status(status)


def _interrupt(client: Client, name: str, times: int) -> None:
    """The first Ctrl-C is the command's; the second cancels, as does one before it began."""
    try:
        if times == 1:
            with contextlib.suppress(ServerError):
                client.call("POST", f"/v1/runs/{segment(name)}/keyboard", body={"interrupt": True})
                note(f"\nrun/{name} interrupted; Ctrl-C again cancels it")
                return
        client.call("POST", f"/v1/objects/Run/{segment(name)}/actions/cancel")
        note(f"\nrun/{name} is being cancelled")
    except ServerError:
        return  # it has ended


@click.command("submit", cls=WithCommand)
@_job_options
@option("--array", str, "One run per index, at most N at once: 0-99%N or 1,3,7.")
@option(
    "-f --file=FILE files",
    click.Path(allow_dash=True),
    "Submit the runs in a file, folder or - (repeatable).",
    multiple=True,
)
@changes_api
def submit(
    client: Client,
    out: Output,
    *,
    words: tuple[str, ...],
    files: tuple[str, ...],
    secret: Any,
    **values: Any,
) -> None:
    """Submit a command, a script or manifests.

    `submit -- COMMAND` is `fairlead run` in the background. `submit SCRIPT` takes a copy of the
    script and reads its #SBATCH lines (gpus, time, job-name, output, array, dependency, …);
    directives that are not carried over are named. A run starts once it is funded and placed;
    `fairlead explain run/NAME` says why it waits. `fairlead plan` or --dry-run answers before.
    A name is used once. That of an array means all of its tasks in --after, `wait` and `cancel`.

    \b
      fairlead submit --gpus 2 --time 2h -- python train.py
      fairlead submit job.sh --epochs 3
      fairlead submit --array 0-99%4 --name sweep -- python trial.py
      fairlead submit --after sweep --after other:any -- python merge.py
      fairlead submit -f run.yaml && fairlead logs -f train-7
    """
    if bool(files) == bool(words):
        raise click.UsageError("say either which command or script, or -f with which manifests")
    if files:
        given = sorted(name for name, value in {**values, "secret": secret}.items() if value)
        if given:
            raise click.UsageError(f"--{given[0]}: with -f the manifest says it")
        changes = client.apply(read_manifests(files, only="Run"))
    else:
        dashes = click.get_current_context().meta[_DASHES]
        base = JobRequest(command=words) if dashes else read_script(words, note)
        job = chosen(client, _request(base, {**values, "secrets": secret}))
        job = named(client, job)
        changes = client.apply([], *manifests(job))
    out.each(changes, lambda change: print_effects(out, change))
