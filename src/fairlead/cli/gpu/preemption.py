"""`resolve` and `reserve`: preempt runs by hand, or reserve a start that may preempt."""

import re
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

import click

from fairlead.cli.client import Client, ServerError, changes_api
from fairlead.cli.completion import BUDGET, RUN, Completed, query
from fairlead.cli.gpu.render import (
    NO_PREVIEW,
    forecast_of,
    print_forecast,
    print_outcome,
    print_preview,
)
from fairlead.cli.input import Source, object_name, read_manifests
from fairlead.cli.main import EXIT_REFUSED
from fairlead.cli.options import Integer, option
from fairlead.cli.table import Output, moment, note, show
from fairlead.host.clock import now_ms
from fairlead.schema.border import BadInput
from fairlead.schema.objects import API_VERSION, parse_duration
from fairlead.schema.times import format_time, parse_kept_time


def scope_labels(text: str) -> dict[str, str]:
    """`flavor=H100,region=us-west` as labels; the flavor is one of them."""
    labels: dict[str, str] = {}
    for part in text.split(","):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not (key and equals and value):
            example = "flavor=H100,region=west"
            raise click.BadParameter(f"must be KEY=VALUE,... such as {example}, got {text!r}")
        if key in labels:
            raise click.BadParameter(f"names {key!r} twice")
        labels[key] = value
    if "flavor" not in labels:
        raise click.BadParameter("must name the flavor, such as flavor=H100")
    return labels


def cap_name(text: str) -> tuple[str, str]:
    """`team-a/main` as the budget and the name of its cap or envelope."""
    short = text.removeprefix("budget/")
    # A budget may be called `budget`: the word is a prefix only where two names follow it.
    budget, _, cap = (short if "/" in short else text).partition("/")
    if not (budget and cap):
        raise click.BadParameter(f"must be BUDGET/NAME of a cap or an envelope, got {text!r}")
    return budget, cap


def _caps(ctx: click.Context, _: str) -> list[str]:
    return [
        f"{budget['metadata']['name']}/{cap['name']}"
        for budget in query(ctx, "/v1/objects/Budget")
        for cap in (*budget["spec"]["aggregateCaps"], *budget["spec"]["envelopes"])
    ]


@click.command("resolve")
@option("--scope=KEY=VALUE,...", scope_labels, "Select GPUs: flavor=H100,region=west.")
@option("--gpus", Integer(1, 100_000), "Number of GPUs to free there.")
@option(
    "--cap=BUDGET/NAME",
    Completed(_caps, cap_name),
    "Free what an exceeded cap or envelope does not fund.",
)
@option("--budget", BUDGET, "Free all exceeded caps of a budget, then --scope.")
@option("--run", RUN, "Start this pending run, with preemption.")
@changes_api
def resolve(
    client: Client,
    out: Output,
    *,
    scope: dict[str, str] | None,
    gpus: int | None,
    cap: tuple[str, str] | None,
    budget: str | None,
    run: str | None,
) -> None:
    """Preempt runs to free GPUs, or preview the candidates.

    Spares are dropped first, then malleable runs shrink step by step, then the lottery selects
    whole gangs. Use it for maintenance (--scope with --gpus; cordon the nodes too), after lowering
    a budget (--cap, or --budget for all of its caps), or to start one run (--run; for the operator
    and the owners of `up --may-resolve`). Reservations resolve by themselves.

    --dry-run shows the candidates and their odds and draws nothing. Without it, the conflict is
    recorded before the draw, and anyone can verify the draw: `fairlead audit outcome N`. Exit code
    1: GPUs are missing and no run was preempted.

    \b
      fairlead resolve --scope flavor=H100,region=us-west --gpus 8 --dry-run
      fairlead resolve --cap team-a/main
      fairlead resolve --budget team-a --dry-run
      fairlead resolve --run train-7 --dry-run
    """
    chosen = (None if budget is not None else scope, cap, budget, run)
    if sum(option is not None for option in chosen) != 1:
        raise click.UsageError("give one of --scope with --gpus, --cap, --budget or --run")
    if (scope is None) != (gpus is None):
        raise click.UsageError("--scope and --gpus belong together")
    if run is not None:
        _for_run(client, out, run)
        return
    body: dict[str, Any] = {}
    if cap is not None:
        body["cap"] = {"budget": cap[0], "name": cap[1]}
    if scope is not None:
        location = {key: value for key, value in scope.items() if key != "flavor"}
        body = {"flavor": scope["flavor"], "location": location, "gpus": gpus}
    if budget is not None:
        body["budget"] = budget
    reply = client.change("POST", "/v1/resolve", body)
    if budget is not None:
        _show_steps(client, out, reply, body["budget"])
        _exit_code(out, reply, [step["forecast"] for step in reply["steps"]])
        return
    number = reply["outcome"]
    outcome = None if number is None else client.get(f"/v1/outcomes/{number}")
    if not out.is_table:
        show({**reply, "result": outcome}, out.format)
    elif outcome is not None:
        print_outcome(outcome)
    else:
        lack = "are missing" if cap is None else f"are above {cap[0]}/{cap[1]}"
        print_forecast(reply["forecast"], lack=lack)
    _exit_code(out, reply, [reply["forecast"]])


def _exit_code(out: Output, reply: dict[str, Any], forecasts: list[dict[str, Any]]) -> None:
    """Exit with 1 where GPUs are missing and no run was preempted."""
    missing = any(forecast["deficitGPUs"] for forecast in forecasts)
    refused = reply["outcome"] is None and missing and not out.dry_run
    if refused:
        note(
            f"refused: the resolver is {reply['resolver']} (fairlead up --resolver enforce); "
            "no run was preempted"
        )
    if refused or any(forecast["shortfallGPUs"] for forecast in forecasts):
        click.get_current_context().exit(EXIT_REFUSED)


def _show_steps(client: Client, out: Output, reply: dict[str, Any], budget: str) -> None:
    """One resolve for each exceeded cap, by name, then for the scope."""
    steps = reply["steps"]
    if not out.is_table:
        show(reply, out.format)
        return
    if not steps:
        click.echo(f"budget/{budget} exceeds none of its caps: no preemption needed")
    for step in steps:
        cap = f"{budget}/{step['name']}"
        where, lack = f"{step['kind']} {cap}", f"are above {cap}"
        if step["kind"] == "place":
            where, lack = "then the scope", "are missing"
        if step["state"] == "waits":
            click.echo(f"{where}: starts after the step before it, with what that leaves")
        elif step["state"] == "passed":
            click.echo(f"{where}: no longer needs preemption")
        elif step["outcome"] is None:
            click.echo(f"{where}:")
            print_forecast(step["forecast"], "  ", lack=lack)
        else:
            click.echo(f"{where}:")
            print_outcome(client.get(f"/v1/outcomes/{step['outcome']}"))


def _for_run(client: Client, out: Output, run: str) -> None:
    change = client.change_object("POST", "Run", run, "/actions/resolve")
    if not out.is_table:
        show(change, out.format)
    elif out.dry_run:
        click.echo(f"run/{run} would be started (dry run)")
        print_preview(change["preview"]["forecast"], "  ")
    else:
        phase = change["object"]["status"]["phase"]
        click.echo(
            f"run/{run} is {phase}; runs that hold its devices are preempted if needed "
            "(fairlead audit outcome)"
        )


MINUTE_MS = 60_000
_DAY = re.compile(r"\d{4}-\d{2}-\d{2}")


def _ahead_ms(text: str) -> int:
    try:
        return parse_duration(text[1:], "TIME")
    except BadInput as error:
        raise click.BadParameter(f"{text!r}: after the + {error.message}") from error


def start_time(text: str) -> str:
    """A time with its zone, a day (midnight here), or `+2h` from now, as the server takes it.

    From a minute on it is the next whole minute: `+1h` would miss an hour's notice by the
    milliseconds that the request takes.
    """
    try:
        if text.startswith("+"):
            ahead_ms = 0 if text in ("+0", "+0s") else _ahead_ms(text)
            step_ms = 1 if ahead_ms < MINUTE_MS else MINUTE_MS
            return format_time(-(-(now_ms() + ahead_ms) // step_ms) * step_ms)
        day = _DAY.fullmatch(text) and datetime.fromisoformat(text).astimezone()
        if day:
            written = day.isoformat(timespec="seconds")
            note(f"{text} is taken as midnight in your time zone, {written}")
            return format_time(parse_kept_time(written, "TIME"))
        return format_time(parse_kept_time(text, "TIME"))
    except BadInput as error:
        raise click.BadParameter(f"{error.message}; or a day, or +30m from now") from error
    except ValueError as error:
        raise click.BadParameter(f"{text!r} is no day of the calendar") from error


@click.command("reserve")
@click.argument("run", type=RUN, required=False)
@option(
    "-f --file=FILE file",
    click.Path(allow_dash=True),
    "Submit this run together with its reservation.",
)
@option("--at=TIME", start_time, "Earliest start: a time with zone, a day, or +2h.", required=True)
@option("--name", str, "Name of the reservation [default: the run's].")
@changes_api
def reserve(
    client: Client, out: Output, *, run: str | None, file: str | None, at: str, name: str | None
) -> None:
    """Reserve a start time for a run, with preemption.

    The run starts at that time, not earlier. If devices are missing then, other runs are preempted
    by the rules of `fairlead resolve`; `fairlead up --resolver` decides whether that is enforced.
    The run must be funded like any other. Repeating the command with another time moves the
    reservation. The preemption preview is shown now, and later by `fairlead describe
    reservation/NAME`.

    \b
      fairlead reserve -f big.yaml --at 2026-01-05T08:00:00+01:00
      fairlead reserve train-7 --at +2h --dry-run
      fairlead get reservations
    """
    if (run is None) == (file is None):
        raise click.UsageError("name a run, or give its manifest with -f")
    sources = read_manifests([file], only="Run") if file else []
    if len(sources) > 1:
        raise click.UsageError(f"{file} has {len(sources)} runs; reserve one at a time")
    of = object_name(sources[0].document).removeprefix("run/") if sources else str(run)
    if not sources:
        client.get_object("Run", of)  # suggests a similar name
    name = name or of
    reservation = {
        "apiVersion": API_VERSION,
        "kind": "Reservation",
        "metadata": {**_namespace(sources), "name": name},
        "spec": {"run": of, "earliestStart": at},
    }
    changes = client.apply(sources, reservation)
    if not out.dry_run:
        forecast, why = forecast_of(client, name)
    elif (preview := changes[-1]["preview"]) is None:  # of a cluster: nothing was reserved
        forecast, why = None, NO_PREVIEW
    else:  # None: a control plane without a resolver has no forecast.
        forecast, why = preview.get("forecast"), ""
    if not out.is_table:
        show({"changes": changes, "forecast": forecast}, out.format)
        return
    for change in changes:
        out.done(change, f"{object_name(change['object'])} {change['change']}")
    click.echo(f"  run {of} is to start at {moment(at)}")
    if forecast is not None:
        print_preview(forecast, "  ", reserved=True)
    elif why:
        click.echo(f"  {why}")
    if forecast is not None and forecast["deficitGPUs"]:
        _warn_if_not_enforced(client)


def _namespace(sources: Sequence[Source]) -> dict[str, Any]:
    """That of the run's manifest: a reservation is in its run's namespace."""
    meta = sources[0].document.get("metadata") if sources else None
    return {"namespace": meta["namespace"]} if meta and "namespace" in meta else {}


def _warn_if_not_enforced(client: Client) -> None:
    with suppress(ServerError):  # degraded just now; the reservation is recorded
        mode = client.get("/healthz")["resolver"]
        if mode != "enforce":
            note(f"the resolver is {mode}: the reservation would be Blocked, without preemption")
