"""`logs`, `wait` and `watch`: the output of runs, their end, and the stream of events."""

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from math import ceil, inf
from typing import Any, TypeVar

import click

from fairlead.cli.client import Client, ServerError, Unreachable, reads_api, segment
from fairlead.cli.completion import OBJECT, RUN, owner_option
from fairlead.cli.gpu.arrays import runs_named
from fairlead.cli.gpu.jobs import output_file
from fairlead.cli.gpu.render import reason_text, told, wait_text
from fairlead.cli.main import EXIT_INTERRUPTED, EXIT_REFUSED
from fairlead.cli.options import Integer, flag, option, server_option
from fairlead.cli.table import Output, cell, escaped, moment, note, show
from fairlead.schema.border import BadInput
from fairlead.schema.times import parse_duration

OVER = ("Completed", "Failed")
WAIT_S, RETRY_S, AWAY_S_MAX = 20, 0.5, 900.0
SIGNALLED = 128


def exit_status(status: dict[str, Any]) -> int:
    """The exit code of a run, as a shell counts: 128 and the number for a signal."""
    if status["exitSignal"] is not None:
        return SIGNALLED + int(status["exitSignal"])
    if status["exitCode"] is not None:
        return int(status["exitCode"])
    return 0 if status["phase"] == "Completed" else EXIT_REFUSED


class Follower:
    """The output of a run, from where it was read last: also after the control plane was away.

    `patient`: says on standard error what a run waits for that has not begun.
    """

    def __init__(
        self, client: Client, run: str, *, tail: int | None = None, patient: bool = False
    ) -> None:
        self._client, self._run, self._patient = client, run, patient
        self._at: dict[str, Any] = {"tail": tail}
        self._told = ""

    def chunks(self, *, follow: bool = True, previous: bool = False) -> Iterator[bytes]:
        path, ended = f"/v1/runs/{segment(self._run)}/output", False
        while not ended:
            wait_s = (1 if self._patient and not self._at.get("job") else WAIT_S) if follow else 0
            query = {**self._at, "wait_s": wait_s, "previous": previous}
            data, headers = again(
                lambda query=query: self._client.exchange(path, **query),  # type: ignore[misc]  # bound now
                patient=follow,
            )
            if headers["Fairlead-Job"]:
                self._at = {"job": headers["Fairlead-Job"], "after": headers["Fairlead-Next"]}
            if data:
                yield data
            ended = headers["Fairlead-Ended"] == "true" or (not follow and not data)
            if not ended and not data and self._patient:
                self._tell()

    def _tell(self) -> None:
        """A line when what it waits for is another thing."""
        run = self._client.get_object("Run", self._run)
        status, said = run["status"], wait_text(run)
        if status["phase"] == "Pending" and status["reason"] != "Submitted" and said != self._told:
            self._told = said
            note(f"run/{self._run}: {said}")


T = TypeVar("T")


def again(ask: Callable[[], T], *, patient: bool = True, within_s: float = AWAY_S_MAX) -> T:
    """Ask until the control plane answers: it may be starting again, and runs go on meanwhile."""
    deadline, told = time.monotonic() + within_s, False
    while True:
        try:
            return ask()
        except (Unreachable, ServerError) as error:
            away = isinstance(error, Unreachable) or error.status == 503
            if not patient or not away or time.monotonic() >= deadline:
                raise
            if not told:
                note("the control plane does not answer; the run goes on, and so does this command")
            told = True
            time.sleep(RETRY_S)  # between attempts, not for something to be ready


@click.command("logs")
@click.argument("run", type=RUN)
@flag("-f --follow", "Follow until the run ends.")
@option("--tail", Integer(0, 100_000), "Start this many lines from the end.")
@flag("-p --previous", "The output of the start before the latest.")
@flag("--exit-code", "Exit with the run's exit code; with -f once it has ended.")
@server_option
def logs(
    *, run: str, follow: bool, tail: int | None, previous: bool, exit_code: bool, server: str | None
) -> int:
    """Print the output of a run.

    Standard output and errors in the order of writing. Requires that you act for the run's owner.
    Of a long output the end is kept. -f also waits for a run that has not started, and goes on
    where it was when the control plane restarts; Ctrl-C stops following, and the run continues.

    \b
      fairlead logs train-7
      fairlead logs -f train-7 --tail 20
      fairlead logs train-7 --previous
      fairlead logs -f train-7 --exit-code && ./publish.sh
    """
    client, empty, out = Client(server), True, sys.stdout.buffer
    try:
        with client.about("Run", run):
            follower = Follower(client, run, tail=tail)
            for data in follower.chunks(follow=follow, previous=previous):
                out.write(data)
                out.flush()
                empty = False
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED if exit_code else 0
    if not exit_code and not (empty and tail != 0):
        return 0
    found = client.get_object("Run", run)
    status, file = found["status"], output_file(found["spec"])
    if empty and tail != 0:
        why = f": {reason_text(found)}" if status["message"] else ""
        what = "no output" if file is None else f"its output in {cell(file)}"
        note(f"run/{run} has {what}; it is {status['phase']} ({status['reason']}){why}")
    if exit_code and status["phase"] not in OVER:
        note(f"run/{run} has no exit code yet: it is {status['phase']}")
        return EXIT_REFUSED
    return exit_status(status) if exit_code else 0


CONDITIONS: dict[str, tuple[str, ...]] = {
    "started": ("Running", "Shrunk", *OVER),
    "completed": ("Completed",),
    "failed": ("Failed",),
    "ended": OVER,
}


@click.command("wait")
@click.argument("names", type=RUN, metavar="run/NAME...", nargs=-1, required=True)
@option("--for condition", tuple(CONDITIONS), "What to wait for.", default="completed")
@option("--timeout=DURATION", str, "Give up after this long, like 90s or 2h [default: never].")
@flag("--exit-code", "Exit with the run's exit code.")
@server_option
def wait(
    *,
    names: tuple[str, ...],
    condition: str,
    timeout: str | None,
    exit_code: bool,
    server: str | None,
) -> int:
    """Wait until runs have started or ended.

    Goes on while the control plane restarts. Exits with 0 when all of them are as asked, with 1
    when one never will be (a failed run is never completed) or at the timeout. The name of an array
    means all of its tasks.

    \b
      fairlead wait run/train-7 --timeout 2h && ./publish.sh
      fairlead wait run/a run/b --for=ended
      fairlead wait run/sweep --timeout 8h        # every task of the array
      fairlead wait run/train-7 --for=ended --exit-code
    """
    if any("/" in name for name in names):
        raise click.UsageError("only runs are waited for: fairlead wait run/NAME")
    client, deadline, code = Client(server), inf, 0
    if timeout is not None:
        try:
            deadline = time.monotonic() + parse_duration(timeout, "--timeout") / 1000
        except BadInput as error:
            raise click.UsageError(str(error)) from error
    for name in again(
        lambda: list(runs_named(client, names)), within_s=deadline - time.monotonic()
    ):
        run = _wait(client, name, CONDITIONS[condition], deadline)
        status = run["status"]
        reached = status["phase"] in CONDITIONS[condition]
        words = f"{status['phase']} ({status['reason']}): {reason_text(run)}"
        if reached:
            click.echo(f"run/{name} {words}")
        else:
            late = "" if status["phase"] in OVER else "timeout; "
            note(f"refused: run/{name} is not {condition}: {late}{words}")
        if exit_code and status["phase"] in OVER:
            code = code or exit_status(status)
        elif not reached:
            code = code or EXIT_REFUSED
    return code


def _wait(client: Client, name: str, wanted: Sequence[str], deadline: float) -> dict[str, Any]:
    """A run once it is as wanted, has ended, or the time is over."""
    while True:
        left = deadline - time.monotonic()
        size = again(lambda: client.get("/v1/head")["size"], within_s=max(0, left))
        run: dict[str, Any] = again(lambda: client.get_object("Run", name))
        phase = run["status"]["phase"]
        if phase in wanted or phase in OVER or left <= 0:
            return run
        query = {"after": size, "limit": 1, "wait_s": max(1, ceil(min(WAIT_S, left)))}
        again(lambda query=query: client.get("/v1/events", **query))  # type: ignore[misc]  # bound now


@click.command("watch")
@click.argument("which", type=OBJECT, required=False)
@option("--after", Integer(0), "Start after this entry [default: now].")
@option("--limit", Integer(1), "Stop after this many events.")
@owner_option
@reads_api
def watch(
    client: Client,
    out: Output,
    *,
    which: tuple[str, str] | None,
    after: int | None,
    limit: int | None,
    owner: str | None,
) -> None:
    """Print events as they happen, of all objects or one.

    Each event is an entry of the ledger. -o json prints one JSON document per line, -o yaml one
    YAML document each. Ctrl-C stops it.

    \b
      fairlead watch
      fairlead watch run/train-7
      fairlead watch --owner team-a --after 0 -o json | jq -r .kind
    """
    left = limit
    with contextlib.suppress(KeyboardInterrupt):
        for event in _events(client, after):
            about = event["object"] or {"kind": None, "name": None}
            if owner not in (None, event["owner"]):
                continue
            if which not in (None, (about["kind"], about["name"])):
                continue
            print_event(event, out.format)
            left = None if left is None else left - 1
            if left == 0:
                return


def _events(client: Client, after: int | None) -> Iterator[dict[str, Any]]:
    rest = b""
    for data in client.lines("/v1/watch", after=after):
        *lines, rest = (rest + data).split(b"\n")
        for line in filter(None, lines):
            yield json.loads(line)


def print_event(event: dict[str, Any], output: str) -> None:
    if output == "json":
        click.echo(escaped(json.dumps(event, ensure_ascii=False, separators=(",", ":"))))
    elif output == "yaml":
        click.echo("---")
        show(event, "yaml")
    else:
        about = event["object"]
        parts = (
            "" if event["seq"] is None else str(event["seq"]).rjust(6),
            moment(event["time"]),
            event["kind"].ljust(16),
            f"{about['kind'].lower()}/{about['name']}" if about else "-",
            event["reason"] or "",
            told(event["message"] or ""),
        )
        click.echo("  ".join(cell(part) for part in parts if part))
    sys.stdout.flush()
